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

from xla_nb.errors import UsageError
from xla_nb.spmd import marking


def state_dict(source: Any) -> dict[str, Any]:
    """The state dict of a model or an optimizer, whole and on the CPU.

    Tied parameters keep both names and share one tensor, as in torch.
    """
    torch_xla.sync()
    gathered: dict[int, Tensor] = {}

    def gather(value: Tensor) -> Tensor:
        if id(value) not in gathered:
            tensor = value.detach()
            gathered[id(value)] = tensor.cpu() if tensor.device.type == "xla" else tensor.clone()
        return gathered[id(value)]

    if isinstance(source, torch.nn.Module):
        state = source.state_dict(keep_vars=True)  # the parameters themselves, to see ties
        for key, value in state.items():
            state[key] = pytree.tree_map_only(Tensor, gather, value)
        return state  # type: ignore[no-any-return] # torch's own kind of dict, with its metadata
    plain: dict[str, Any] = pytree.tree_map_only(Tensor, gather, source.state_dict())
    return plain


def load_state_dict(target: Any, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Load a plain state dict into a placed model, or into its optimizer, keeping the layout.

    Returns what torch's own load_state_dict returns. Each device receives only the parts it holds,
    so no device ever holds the whole model. `strict` is for models; an optimizer always loads its
    whole state, and strict=False raises UsageError.
    """
    if not isinstance(target, torch.nn.Module):
        if not strict:
            raise UsageError(
                "load_state_dict(strict=False) works for models only: "
                f"{type(target).__name__} loads its whole state. Remove strict=False."
            )
        return _load_optimizer(target, state)
    own = target.state_dict(keep_vars=True)
    moved = {key: _like(value, own.get(key)) for key, value in state.items()}
    if hasattr(state, "_metadata"):
        moved = _with_metadata(moved, state._metadata)
    result = target.load_state_dict(moved, strict=strict)
    torch_xla.sync()
    return result


def _like(value: Any, own: Any) -> Any:
    """The value on the devices, laid out like the tensor it will be copied into."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or value.shape != own.shape:
        return value  # torch reports the mismatch
    sharding = marking.sharding(own)
    if own.device.type != "xla" or sharding is None:
        return value
    moved = value.detach().to(device=own.device, dtype=own.dtype)
    if moved.device.type == value.device.type:
        moved = moved.clone()
    marking.mark_like(moved, sharding)
    return moved


def _with_metadata(state: dict[str, Any], metadata: Any) -> Any:
    ordered: Any = OrderedDict(state)
    ordered._metadata = metadata
    return ordered


def _load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            sharding = marking.sharding(parameter)
            for value in optimizer.state[parameter].values():
                fits = isinstance(value, Tensor) and value.shape == parameter.shape
                if fits and value.device.type == "xla" and sharding is not None:
                    marking.mark_like(value, sharding)
