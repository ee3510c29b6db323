"""Where the parts of a tensor are, read from its sharding on the devices and never from a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from xla_nb.errors import UsageError
from xla_nb.spmd import marking
from xla_nb.spmd.layouts import Layout
from xla_nb.spmd.meshes import Mesh, of
from xla_nb.spmd.picture import Drawing, Part, Picture
from xla_nb.spmd.placed import Placed


def placements(model: Any, mesh: Any = None) -> dict[str, Placed]:
    """Where each parameter and buffer is; with a mesh, over which of its axes it is split."""
    whole = None if mesh is None else of(mesh).whole
    return {name: placement_of(tensor, whole) for name, tensor in _tensors(model)}


def show(model: Any) -> Picture:
    """A picture of which device holds which part of a model or a tensor.

    Return it from the cell's function; the notebook displays it.
    """
    names: dict[int, list[str]] = {}
    tensors = list(_tensors(model))
    for name, tensor in tensors:
        names.setdefault(id(tensor), []).append(name)
    distinct = {id(tensor): tensor for _, tensor in tensors}
    return Picture(
        tuple(_drawing(" = ".join(names[key]), tensor) for key, tensor in distinct.items())
    )


def placement_of(tensor: Tensor, mesh: Mesh | None = None) -> Placed:
    """Where one tensor is."""
    regions = _regions(tensor)
    shard = tuple(
        max(each[dim].stop - each[dim].start for each in regions) for dim in range(tensor.ndim)
    )
    axes = None
    if mesh is not None:
        split = layout_of(tensor, mesh)
        axes = tuple(tuple(mesh.names[axis] for axis in each) for each in split)
    tiles = _tiles(tensor)
    return Placed(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shard=shard,
        splits=tiles,
        copies=max(1, len(regions) // math.prod(tiles)),
        axes=axes,
        bytes_per_device=math.prod(shard) * tensor.element_size(),
    )


def layout_of(tensor: Tensor, mesh: Mesh) -> Layout:
    """Which axes of the whole mesh split each dimension."""
    regions = _regions(tensor)
    devices = mesh.mesh.numpy()
    base = (0,) * devices.ndim
    split: list[list[int]] = [[] for _ in range(tensor.ndim)]
    for axis, size in enumerate(devices.shape):
        far = (*base[:axis], size - 1, *base[axis + 1 :])
        here, there = regions[int(devices[base])], regions[int(devices[far])]
        for dim in range(tensor.ndim):
            if here[dim] != there[dim]:
                split[dim].append(axis)
    return tuple(map(tuple, split))


def _tiles(tensor: Tensor) -> tuple[int, ...]:
    """The number of parts along each dimension, empty ones at the end included."""
    tiles = marking.tiles(tensor)
    return tiles[: tensor.ndim] if tiles else (1,) * tensor.ndim


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
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
    whole = tuple(slice(0, size, 1) for size in tensor.shape)
    if marking.sharding(tensor) is None:
        return [whole] * marking.device_count()
    return [whole if part is None else part for part in marking.regions(tensor)]


def _drawing(name: str, tensor: Tensor) -> Drawing:
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for device, region in enumerate(_regions(tensor)):
        holders.setdefault(tuple((each.start, each.stop) for each in region), []).append(device)
    placement = placement_of(tensor)
    return Drawing(
        name=name,
        shape=placement.shape,
        dtype=placement.dtype,
        bytes_per_device=placement.bytes_per_device,
        parts=tuple(Part(tuple(devices), region) for region, devices in holders.items()),
    )
