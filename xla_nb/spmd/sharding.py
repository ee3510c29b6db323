"""Lay tensors out over the devices by placements, and read their shardings back from XLA.

The only module that uses torch_xla's private names for this. Tensors stay ordinary tensors on the
XLA device: nn.Parameter and autograd refuse torch_xla's XLAShardedTensor, so none is made here, and
of a user's the tensor that it wraps counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Replicate, Shard

from xla_nb.errors import UsageError
from xla_nb.spmd.meshes import Mesh
from xla_nb.spmd.placed import Picture, Placed
from xla_nb.wording import several

XLAC: Any = torch_xla._XLAC

#: For each dimension of a tensor, the axes of the whole mesh that split it, outermost first.
Layout = tuple[tuple[int, ...], ...]

#: By sharding, in XLA's own notation: the mesh, or part of one, and the placement for each of its
#: axes that last produced it.
_last_placements: dict[str, tuple[Mesh, tuple[Placement, ...]]] = {}


def device() -> Any:
    return torch_xla.device()


def unwrap(tensor: Tensor) -> Tensor:
    """The plain tensor in a result of torch_xla's `mark_sharding`; other tensors as they are."""
    return xs.xla_sharding.unwrap_sharded_tensor(tensor)


def is_transformed() -> bool:
    """Whether torch.func or torch.export now computes with stand-ins for tensors, which have no
    sharding: XLA chooses one for each value."""
    is_exported = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    return is_exported or torch._C._functorch.maybe_current_level() is not None


# --- placements and layouts -------------------------------------------------------------------


def layout(mesh: Mesh, placements: Sequence[Placement], ndim: int, where: str) -> Layout:
    """The layout of placements, one per axis of the mesh. Raises UsageError."""
    if len(placements) != len(mesh.names):
        raise UsageError(
            f"{where}: {several(len(placements), 'placement')} for a mesh with the axes "
            f"{', '.join(map(repr, mesh.names))}. Give one placement for each axis, or use a part "
            f"of the mesh, mesh[{mesh.names[-1]!r}]."
        )
    splits: list[list[int]] = [[] for _ in range(ndim)]
    for name, placement in zip(mesh.names, placements, strict=True):
        check_placement(placement, where)
        if type(placement) is Shard:
            if not -ndim <= placement.dim < ndim:
                raise UsageError(
                    f"{where}: the tensor has {several(ndim, 'dimension')}, but {placement!r} on "
                    f"axis {name!r} needs dimension {placement.dim}."
                )
            splits[placement.dim].append(mesh.axis(name))
    return tuple(tuple(sorted(axes)) for axes in splits)


def check_placement(placement: object, where: str) -> None:
    """Raise UsageError unless XLA can express the placement."""
    if type(placement) not in (Shard, Replicate):
        raise UsageError(
            f"{where}: XLA cannot express {placement!r}. Use Replicate() or Shard(dim): under SPMD "
            "every value is whole, and XLA sums partial ones itself."
        )


def place(tensor: Tensor, mesh: Mesh, layout: Layout) -> None:
    """Lay a tensor out over the devices, in place."""
    tensor = unwrap(tensor)
    if XLAC._get_xla_sharding_spec(tensor):
        XLAC._xla_clear_sharding(tensor)
    XLAC._xla_mark_sharding(tensor, _op_sharding(mesh, layout))
    axes = {mesh.whole.names[axis] for split in layout for axis in split}
    marked_mesh = mesh if axes <= set(mesh.names) else mesh.whole
    marked_placements: list[Placement] = [Replicate()] * len(marked_mesh.names)
    for dim, split in enumerate(layout):
        for axis in split:
            marked_placements[marked_mesh.names.index(mesh.whole.names[axis])] = Shard(dim)
    _last_placements[_sharding_spec(tensor)] = marked_mesh, tuple(marked_placements)


def last_placements(tensor: Tensor) -> tuple[Mesh, tuple[Placement, ...]]:
    """The mesh and the placements with which the tensor's sharding was last set.

    Raises AttributeError if XLA has not chosen a sharding yet, or chose one that was never set.
    """
    spec = _sharding_spec(tensor)
    if spec not in _last_placements:
        raise AttributeError(
            f"This tensor has no placements {'of yours' if spec else 'yet'}: XLA chooses "
            "them when it computes the value. Call torch_xla.sync() first, place it with "
            "distribute_tensor, or use xla_nb.spmd.show(tensor)."
        )
    return _last_placements[spec]


def sharding(tensor: Tensor) -> Any:
    """XLA's sharding of a tensor on the device; None if it was never marked."""
    return XLAC._get_xla_op_sharding(unwrap(tensor)) if _sharding_spec(tensor) else None


def _sharding_spec(tensor: Tensor) -> str:
    """The sharding in XLA's own notation; empty if there is none."""
    is_on_device = tensor.device.type == "xla"
    return str(XLAC._get_xla_sharding_spec(unwrap(tensor))) if is_on_device else ""


def _op_sharding(mesh: Mesh, layout: Layout) -> Any:
    spec = tuple(axes[0] if len(axes) == 1 else axes or None for axes in layout)
    return mesh.whole.xla.get_op_sharding(spec)


# --- constraints in the graph -----------------------------------------------------------------


def _annotate(tensor: Tensor, mesh: Mesh, layout: Layout) -> Tensor:
    # A new value in the graph: marking the tensor itself would move the user's tensor.
    copy = unwrap(tensor).clone()
    XLAC._xla_annotate_custom_sharding(copy, _op_sharding(mesh, layout))
    return copy


class Constrain(torch.autograd.Function):  # type: ignore[misc] # torch is not read by mypy
    """Lay the tensor out as `forward` from here on, and its gradient as `backward`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mesh: Mesh, forward: Layout, backward: Layout) -> Tensor:
        ctx.mesh, ctx.backward_layout = mesh, backward
        return _annotate(tensor, mesh, forward)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _annotate(gradient, ctx.mesh, ctx.backward_layout), None, None, None


# --- reading shardings ------------------------------------------------------------------------


def placements(model: Any) -> dict[str, Placed]:
    """Return the placement of each parameter and buffer."""
    return {name: placement_of(tensor) for name, tensor in named_tensors(model)}


def show(model: Any) -> Picture:
    """Return a picture of which device holds which part of a model or a tensor.

    Return it from the cell's function, and the notebook displays it.
    """
    entries: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in named_tensors(model):
        entries.setdefault(id(tensor), (tensor, []))[1].append(name)
    return Picture({" = ".join(names): placement_of(tensor) for tensor, names in entries.values()})


def placement_of(tensor: Tensor) -> Placed:
    """The placement of one tensor."""
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for number, region in enumerate(_regions(tensor)):
        holders.setdefault(tuple((span.start, span.stop) for span in region), []).append(number)
    return Placed(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.element_size(),
        parts=tuple((tuple(devices), region) for region, devices in holders.items()),
    )


def layout_of(tensor: Tensor, mesh: Mesh) -> Layout:
    """The axes of the whole mesh that split each dimension: parts differ along them."""
    regions = _regions(tensor)
    devices = mesh.mesh.numpy()
    first_region = regions[int(devices.flat[0])]
    splits: list[list[int]] = [[] for _ in range(tensor.ndim)]
    for axis in range(devices.ndim):
        index = [0] * devices.ndim
        index[axis] = -1
        last_region = regions[int(devices[tuple(index)])]
        for dim in range(tensor.ndim):
            if first_region[dim] != last_region[dim]:
                splits[dim].append(axis)
    return tuple(map(tuple, splits))


def named_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(model, Tensor):
        yield "tensor", model
    elif isinstance(model, nn.Module):
        yield from model.named_parameters(remove_duplicate=False)
        yield from model.named_buffers(remove_duplicate=False)
    else:
        raise UsageError(
            f"Expected a model or a tensor, not a {type(model).__name__}. Pass an nn.Module."
        )


def _regions(tensor: Tensor) -> list[tuple[slice, ...]]:
    """The part that each device holds, in device order."""
    if tensor.device.type != "xla":
        raise UsageError(
            f"The tensor is on device {tensor.device.type}, not on the XLA devices. Place the "
            "model with xla_nb.spmd.parallelize first."
        )
    tensor = unwrap(tensor)
    whole = tuple(slice(0, size, 1) for size in tensor.shape)
    if sharding(tensor) is None:
        return [whole] * int(xr.global_runtime_device_count())
    try:
        ((*shards,),) = XLAC._get_local_shard_replica_and_indices([tensor])
    except RuntimeError:  # the tensor is pending
        XLAC._xla_sync_multi([tensor], [], True)
        XLAC._xla_wait_device_ops([])
        ((*shards,),) = XLAC._get_local_shard_replica_and_indices([tensor])
    return [whole if indices is Ellipsis else tuple(indices) for _, indices in shards]
