"""What a program asks of a DTensor, answered by tensors on the XLA devices.

Under SPMD every tensor is whole for the program, and XLA knows which device holds which part; the
answers are in the words in which that was asked for. "This rank's part" is refused: the one process
has all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate

from xla_nb.spmd import marking
from xla_nb.spmd.layouts import Layout, layout
from xla_nb.spmd.meshes import Mesh, of
from xla_nb.spmd.refusals import NotExpressible


def answer() -> None:
    """Give tensors on the XLA devices the attributes of a DTensor; others have none of them."""
    tensors: Any = torch.Tensor
    tensors.placements = _attribute("placements", placements)
    tensors.device_mesh = _attribute("device_mesh", device_mesh)
    for method in (full_tensor, to_local, redistribute):
        name = method.__name__
        setattr(tensors, name, _attribute(name, partial(partial, method)))


def _attribute(name: str, read: Callable[[Tensor], Any]) -> property:
    def get(tensor: Tensor) -> Any:
        if tensor.device.type != "xla":
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")
        return read(tensor)

    return property(get)


def placements(tensor: Tensor) -> tuple[Placement, ...]:
    """One placement for each axis of `device_mesh(tensor)`. Raises AttributeError without one."""
    return _meant(tensor).placements


def device_mesh(tensor: Tensor) -> Mesh:
    """The mesh, or the part of one, that the tensor was placed over."""
    return _meant(tensor).mesh


def full_tensor(tensor: Tensor, *, grad_placements: object = None) -> Tensor:
    """The whole value as a tensor of its own; gradients flow back."""
    return tensor.clone()


def to_local(tensor: Tensor, *, grad_placements: object = None) -> Tensor:
    """A replicated tensor, which every device has whole. Raises NotExpressible for any other."""
    try:
        held = _meant(tensor).placements
    except AttributeError as unknown:
        raise NotExpressible("to_local()", str(unknown).rstrip("."), _WHOLE) from None
    if any(type(each) is not Replicate for each in held):
        raise NotExpressible(
            "to_local()",
            f"this tensor is split, {list(held)}, and under SPMD one process has all its parts, so "
            "there is no local one",
            _WHOLE,
        )
    return tensor.view_as(tensor)


_WHOLE = (
    "Use the tensor itself or .full_tensor(), which are whole; xla_nb.spmd.show(tensor) says which "
    "device holds what"
)


def redistribute(
    tensor: Tensor,
    device_mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    **_options: object,
) -> Tensor:
    """The same value laid out another way; gradients flow back. Raises NotExpressible."""
    if placements is None:
        raise NotExpressible("redistribute()", "it has no placements", "Give one for each axis")
    mesh = _meant(tensor).mesh if device_mesh is None else of(device_mesh)
    wanted = layout_over(mesh, placements, tensor, "redistribute()")
    return marking.constrain(tensor, mesh, wanted, None)


def layout_over(mesh: Mesh, placements: Sequence[Placement], tensor: Tensor, where: str) -> Layout:
    """The layout of placements, one for each axis of the mesh. Raises NotExpressible."""
    if len(placements) != len(mesh.names):
        raise NotExpressible(
            where,
            f"{list(placements)} does not fit a mesh with the axes "
            f"{', '.join(map(repr, mesh.names))}",
            "Give one placement for each axis",
        )
    return layout(mesh, placements, tensor.ndim, where)


def _meant(tensor: Tensor) -> marking.Meant:
    meant = marking.meant(tensor)
    if meant is not None:
        return meant
    if marking.sharding(tensor) is None:
        raise AttributeError(
            "This tensor has no placements yet: XLA chooses them when it computes the value. Call "
            "torch_xla.sync() before, or place it with distribute_tensor."
        )
    raise AttributeError(
        f"XLA chose how this tensor lies, {marking.described(tensor)}, and nothing was placed like "
        "it. Use xla_nb.spmd.show(tensor)."
    )
