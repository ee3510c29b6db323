"""Sets and reads a tensor's sharding, the only module that uses torch_xla's private names for it.

Tensors stay ordinary tensors on the XLA device: nn.Parameter and autograd refuse torch_xla's
XLAShardedTensor, so it never leaves this file.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import torch
import torch_xla
import torch_xla.runtime as xr
from torch import Tensor
from torch.distributed.tensor import Placement
from torch.utils.weak import WeakIdKeyDictionary

from xla_nb.spmd.layouts import Layout, placements, spec
from xla_nb.spmd.meshes import Mesh

XLAC: Any = torch_xla._XLAC


def device() -> Any:
    return torch_xla.device()


class Meant(NamedTuple):
    """What a sharding was meant to be when it was given: placements over a mesh or a part of it."""

    sharding: str
    mesh: Mesh
    placements: tuple[Placement, ...]


@functools.cache
def _meant_for() -> Any:
    """What each tensor was placed as, in this process."""
    return WeakIdKeyDictionary()


@functools.cache
def _meant_by() -> dict[str, Meant]:
    """The last one of each sharding, in this process."""
    return {}


def place(tensor: Tensor, mesh: Mesh, layout: Layout) -> None:
    """Lay a tensor out over the devices, in place."""
    mark_like(tensor, _sharding(mesh, layout))
    mean(tensor, mesh, layout)


def mean(tensor: Tensor, mesh: Mesh, layout: Layout) -> None:
    """Remember in which words a tensor was laid out."""
    axes = {mesh.whole.names[axis] for split in layout for axis in split}
    named = mesh if axes <= set(mesh.names) else mesh.whole
    meant = Meant(described(tensor), named, placements(named, layout))
    _meant_for()[tensor] = meant
    _meant_by().pop(meant.sharding, None)  # so that the last is last
    _meant_by()[meant.sharding] = meant


def mesh_meant(axes: int) -> Mesh | None:
    """The mesh with so many axes that was used last."""
    used = (meant.mesh for meant in reversed(_meant_by().values()) if len(meant.placements) == axes)
    return next(used, None)


def meant(tensor: Tensor) -> Meant | None:
    """What the sharding that XLA holds for a tensor was meant to be; None where XLA chose it.

    A tensor that was not placed itself (an alias, a gradient) has it from the last one that was
    placed alike.
    """
    held = described(tensor)
    own: Meant | None = _meant_for().get(tensor)
    return own if own is not None and own.sharding == held else _meant_by().get(held)


def mark_like(tensor: Tensor, sharding: Any) -> None:
    if XLAC._get_xla_sharding_spec(tensor):
        XLAC._xla_clear_sharding(tensor)
    XLAC._xla_mark_sharding(tensor, sharding)


def sharding(tensor: Tensor) -> Any:
    """The sharding that XLA holds for a tensor on the device; None if it was never marked."""
    if tensor.device.type != "xla" or not XLAC._get_xla_sharding_spec(tensor):
        return None
    return XLAC._get_xla_op_sharding(tensor)


def described(tensor: Tensor) -> str:
    """The sharding in XLA's own notation."""
    return str(XLAC._get_xla_sharding_spec(tensor)) if tensor.device.type == "xla" else ""


def constrain(tensor: Tensor, mesh: Mesh, forward: Layout, backward: Layout | None) -> Tensor:
    """The tensor laid out as `forward` from here on, and its gradient as `backward`."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _annotated(tensor, mesh, forward)
    constrained: Tensor = _Constrain.apply(tensor, mesh, forward, backward)
    return constrained


def device_count() -> int:
    return int(xr.global_runtime_device_count())


def tiles(tensor: Tensor) -> tuple[int, ...]:
    """The number of parts along each dimension, maybe followed by replication; () if unsplit."""
    match = re.match(r"\{devices=\[([0-9,]+)\]", described(tensor))
    return tuple(map(int, match[1].split(","))) if match else ()


def regions(tensor: Tensor) -> list[tuple[slice, ...] | None]:
    """The part of the tensor that each device holds; None for all of it."""
    try:
        ((*shards,),) = XLAC._get_local_shard_replica_and_indices([tensor])
    except RuntimeError:  # the tensor is pending
        XLAC._xla_sync_multi([tensor], [], True)
        XLAC._xla_wait_device_ops([])
        ((*shards,),) = XLAC._get_local_shard_replica_and_indices([tensor])
    return [None if indices is Ellipsis else tuple(indices) for _, indices in shards]


def _sharding(mesh: Mesh, layout: Layout) -> Any:
    return mesh.whole.xla.get_op_sharding(spec(layout))


def _annotated(tensor: Tensor, mesh: Mesh, layout: Layout) -> Tensor:
    # A new value in the graph: marking the tensor itself would move the user's.
    annotated = tensor.clone()
    XLAC._xla_annotate_custom_sharding(annotated, _sharding(mesh, layout))
    return annotated


class _Constrain(torch.autograd.Function):  # type: ignore[misc] # torch is not read by mypy
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, mesh: Mesh, forward: Layout, backward: Layout | None
    ) -> Tensor:
        ctx.mesh, ctx.backward_layout = mesh, backward
        return _annotated(tensor, mesh, forward)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.backward_layout is not None:
            gradient = _annotated(gradient, ctx.mesh, ctx.backward_layout)
        return gradient, None, None, None
