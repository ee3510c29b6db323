"""Normalization in operations that XLA can split.

torch_xla lowers LayerNorm, BatchNorm and GroupNorm to XLA's batch normalization, which the
partitioner does not split: it gathers the whole activation on every device. Here the same values,
in the same precision, come from means and elementwise operations. Subclasses are left alone: they
may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def make_splittable(model: Any) -> None:
    """Replace the forward of every norm in the model by one that does not gather its input."""
    for module in model.modules():
        forward = _FORWARDS.get(type(module))
        if forward is not None and "forward" not in vars(module):
            module.forward = partial(forward, module)


def _layer_norm(module: Any, x: Tensor) -> Tensor:
    wide, dims = _wide(x), tuple(range(-len(module.normalized_shape), 0))
    normal = _normal(wide, *_moments(wide, dims), module.eps)
    return _scaled(normal, module.weight, module.bias).to(x.dtype)


def _group_norm(module: Any, x: Tensor) -> Tensor:
    wide = _wide(x).unflatten(1, (module.num_groups, -1))
    normal = _normal(wide, *_moments(wide, tuple(range(2, wide.ndim))), module.eps)
    return _scaled(normal.flatten(1, 2), *_by_channel(module, x)).to(x.dtype)


def _batch_norm(module: Any, x: Tensor) -> Tensor:
    module._check_input_dim(x)
    if module.training:
        nn.functional._verify_batch_size(x.size())
    wide, dims = _wide(x), (0, *range(2, x.ndim))
    if module.training or module.running_mean is None:
        mean, variance = _moments(wide, dims)
        if module.training and module.running_mean is not None:
            _remember(module, mean.flatten(), variance.flatten(), x.numel() // x.shape[1])
    else:
        shape = (-1, *[1] * (x.ndim - 2))
        mean, variance = module.running_mean.view(shape), module.running_var.view(shape)
    return _scaled(_normal(wide, mean, variance, module.eps), *_by_channel(module, x)).to(x.dtype)


@torch.no_grad()  # type: ignore[untyped-decorator] # torch is not read by mypy
def _remember(module: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics, with the unbiased variance."""
    module.num_batches_tracked.add_(1)
    share: Any = module.momentum
    if share is None:
        share = 1 / module.num_batches_tracked.to(mean.dtype)
    module.running_mean.add_((mean - module.running_mean) * share)
    module.running_var.add_((variance * (count / (count - 1)) - module.running_var) * share)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _moments(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, (x - mean).square().mean(dims, keepdim=True)


def _normal(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return (x - mean) * torch.rsqrt(variance + eps)


def _by_channel(module: Any, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    shape = (-1, *[1] * (x.ndim - 2))
    weight, bias = (None if p is None else p.view(shape) for p in (module.weight, module.bias))
    return weight, bias


def _scaled(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        normal = normal * weight
    return normal if bias is None else normal + bias


_FORWARDS: dict[Any, Callable[[Any, Tensor], Tensor]] = {
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
}
