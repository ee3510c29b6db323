"""Checkpoints: a placed model's values as a plain CPU state dict, and back into any placement.

The rule: what comes out is what plain torch saves and loads, with nothing of XLA in it; what goes
in lies as the model it goes into, whatever mesh it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch.utils import _pytree as pytree

from xla_nb.spmd import marking


def state_dict(source: Any) -> dict[str, Any]:
    """The state dict of a model, or of an optimizer, whole and on the CPU.

    Tied parameters keep both names and are one tensor, as in torch.
    """
    torch_xla.sync()
    gathered: dict[int, Tensor] = {}

    def gather(value: Tensor) -> Tensor:
        if id(value) not in gathered:
            there = value.detach()
            gathered[id(value)] = there.cpu() if there.device.type == "xla" else there.clone()
        return gathered[id(value)]

    if isinstance(source, torch.nn.Module):
        state = source.state_dict(keep_vars=True)  # the parameters themselves: ties can be seen
        for key, value in state.items():
            state[key] = pytree.tree_map_only(Tensor, gather, value)
        return state  # type: ignore[no-any-return] # torch's own kind of dict, with its metadata
    plain: dict[str, Any] = pytree.tree_map_only(Tensor, gather, source.state_dict())
    return plain


def load_state_dict(target: Any, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Load a plain state dict into a placed model, or an optimizer of one, as it lies.

    Gives back what torch's own load_state_dict gives. Each tensor goes to the devices in the parts
    that they hold, so no device ever holds the whole model.
    """
    if not isinstance(target, torch.nn.Module):
        return _load_optimizer(target, state)
    own = target.state_dict(keep_vars=True)
    moved = {key: _like(value, own.get(key)) for key, value in state.items()}
    if hasattr(state, "_metadata"):
        moved = _with_metadata(moved, state._metadata)
    answer = target.load_state_dict(moved, strict=strict)
    torch_xla.sync()
    return answer


def _like(value: Any, own: Any) -> Any:
    """The value on the devices, laid out as the tensor it will be copied into."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or value.shape != own.shape:
        return value  # torch says what is wrong with it
    sharding = marking.sharding(own)
    if own.device.type != "xla" or sharding is None:
        return value
    there = value.detach().to(device=own.device, dtype=own.dtype)
    if there.device.type == value.device.type:
        there = there.clone()
    marking.mark_like(there, sharding)
    return there


def _with_metadata(state: dict[str, Any], metadata: Any) -> Any:
    from collections import OrderedDict

    kept: Any = OrderedDict(state)
    kept._metadata = metadata
    return kept


def _load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            sharding = marking.sharding(parameter)
            for value in optimizer.state[parameter].values():
                fits = isinstance(value, Tensor) and value.shape == parameter.shape
                if fits and value.device.type == "xla" and sharding is not None:
                    marking.mark_like(value, sharding)
