"""Checkpoints: a placed model's values as a plain CPU state dict, and back onto any mesh.

Plain torch can save and load the state dicts, which hold nothing of XLA; loading lays values out as
the target model is, whatever mesh they came from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch.utils import _pytree as pytree

from xla_nb.spmd import sharding


def state_dict(source: Any) -> dict[str, Any]:
    """The state dict of a model or an optimizer, whole and on the CPU.

    Tied parameters keep both names and share one tensor, as in torch.
    """
    torch_xla.sync()
    gathered: dict[int, Tensor] = {}

    def gather(value: Tensor) -> Tensor:
        if id(value) not in gathered:
            gathered[id(value)] = value.detach().to("cpu", copy=True)
        return gathered[id(value)]

    is_model = isinstance(source, torch.nn.Module)
    # A model's parameters themselves, to see ties.
    state = source.state_dict(keep_vars=True) if is_model else source.state_dict()
    for key, value in state.items():  # torch's own kind of dict, with its metadata
        state[key] = pytree.tree_map_only(Tensor, gather, value)
    plain: dict[str, Any] = state
    return plain


def load_state_dict(target: Any, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Load a plain state dict into a placed model, or into its optimizer, keeping the layout.

    Returns what torch's own load_state_dict returns. Each device receives only the parts it holds,
    so no device ever holds the whole model. `strict` is for models.
    """
    if not isinstance(target, torch.nn.Module):
        return _load_optimizer(target, state)
    own = target.state_dict(keep_vars=True)
    moved: Any = OrderedDict((key, _like(value, own.get(key))) for key, value in state.items())
    moved._metadata = getattr(state, "_metadata", None)
    result = target.load_state_dict(moved, strict=strict)
    torch_xla.sync()
    return result


def _like(value: Any, own: Any) -> Any:
    """The value on the devices, laid out like the tensor it will be copied into."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or value.shape != own.shape:
        return value  # torch reports the mismatch
    held = sharding.sharding(own)
    if held is None:
        return value
    moved = value.detach().to(device=own.device, dtype=own.dtype, copy=True)
    sharding.mark_like(moved, held)
    return moved


def _load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(state)
    for parameter, values in optimizer.state.items():
        held = sharding.sharding(parameter)
        for value in values.values():
            fits = isinstance(value, Tensor) and value.shape == parameter.shape
            if fits and value.device.type == "xla" and held is not None:
                sharding.mark_like(value, held)
