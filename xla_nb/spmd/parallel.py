"""`parallelize`: a model placed over a mesh by a plan.

The whole plan is checked before the first parameter moves, so a refused plan leaves the model
alone. Parameters stay the same objects, and tied ones stay tied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xla_nb.errors import UsageError
from xla_nb.spmd import marking, shards
from xla_nb.spmd.handovers import Batch, Hooks
from xla_nb.spmd.layouts import Layout, layout
from xla_nb.spmd.meshes import Mesh, of
from xla_nb.spmd.norms import make_splittable
from xla_nb.spmd.plans import PlacedTensor, StyledModule, resolve
from xla_nb.spmd.styles import Reading, read
from xla_nb.wording import several


def parallelize(model: Any, mesh: Any, plan: Any) -> Any:
    """Place a model over the devices by the plan that parallelize_module would take on CUDA.

    `mesh` is a mesh or a part of one; over its other axes everything is replicated. A plan maps
    module names, with wildcards, to styles, or parameter names to placements; anything it does not
    name is replicated. Changes the model in place, moves it to the XLA device and returns it.
    Raises UsageError, or NotExpressible where XLA cannot do what a style asks.
    """
    mesh = of(mesh)
    _refuse_unmade(model)
    layouts = _Layouts(mesh)
    styled: list[tuple[StyledModule, Reading]] = []
    for target in resolve(model, plan):
        if isinstance(target, PlacedTensor):
            layouts.add_placements(target)
        else:
            reading = read(target, mesh)
            layouts.add_reading(target, reading)
            styled.append((target, reading))
    _place(model, mesh, layouts)
    make_splittable(model)
    batch = Batch(mesh)
    batch.watch(model)
    for target, reading in styled:
        Hooks(reading, mesh, batch, target.where).register(target.module)
    return model


def _refuse_unmade(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"parallelize takes an nn.Module, not a {type(model).__name__}.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise UsageError(f"{name} has no shape yet. Run one batch through the model first.")
        if tensor.is_meta:
            raise UsageError(
                f"{name} is on the meta device and has no values. Call "
                "model.to_empty(device='cpu'), then initialize or load them."
            )


class _Layouts:
    """The layout of each tensor in the plan; two layouts for one tensor are an error."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._layouts: dict[int, tuple[Mesh, Layout, str]] = {}

    def add_placements(self, target: PlacedTensor) -> None:
        names, placements = self._mesh.names, target.placements
        if len(placements) != len(names):
            raise UsageError(
                f"{target.where}: {several(len(placements), 'placement')} for a mesh with "
                f"the axes {', '.join(map(repr, names))}. Give one placement for each axis, or use "
                f"a part of the mesh, mesh[{names[-1]!r}]."
            )
        self._add(target.tensor, self._mesh, placements, target.name, target.where)

    def add_reading(self, target: StyledModule, reading: Reading) -> None:
        tensors = dict(target.module.named_parameters(remove_duplicate=False))
        tensors.update(target.module.named_buffers(remove_duplicate=False))
        for inner, (mesh, placements) in reading.parameters.items():
            name = f"{target.name}.{inner}" if target.name else inner
            where = f"{name} ({type(target.style).__name__})"
            self._add(tensors[inner], mesh, placements, name, where)

    def _add(
        self, tensor: Tensor, mesh: Mesh, placements: tuple[Any, ...], name: str, where: str
    ) -> None:
        new = layout(mesh, placements, tensor.ndim, where)
        _, first, other = self._layouts.setdefault(id(tensor), (mesh, new, where))
        if first != new:
            raise UsageError(
                f"{other} and {where} are the same tensor, but the plan places it in two ways: "
                f"{_words(first, self._mesh)} and {_words(new, self._mesh)}. Make them agree, or "
                "remove one of them from the plan."
            )

    def of(self, tensor: Tensor) -> tuple[Mesh, Layout] | None:
        entry = self._layouts.get(id(tensor))
        return entry and entry[:2]


def _words(layout: Layout, mesh: Mesh) -> str:
    split = [
        f"Shard({dim}) over {' and '.join(repr(mesh.whole.names[axis]) for axis in axes)}"
        for dim, axes in enumerate(layout)
        if axes
    ]
    return ", ".join(split) or "Replicate"


def _place(model: nn.Module, mesh: Mesh, layouts: _Layouts) -> None:
    """Move every tensor of the model to the devices, one at a time, and lay it out."""
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in placed:
                    planned = layouts.of(tensor)
                    placed[id(tensor)] = moved = _moved(tensor)
                    placed[id(moved)] = moved
                    _lay_out(moved, mesh, planned)
                if placed[id(tensor)] is not tensor:
                    setattr(module, name, placed[id(tensor)])


def _lay_out(tensor: Tensor, mesh: Mesh, planned: tuple[Mesh, Layout] | None) -> None:
    is_placed = marking.sharding(tensor) is not None
    if planned is None:
        if not is_placed:
            marking.place(tensor, mesh, ((),) * tensor.ndim)
        return
    part, wanted = planned
    if is_placed:  # by an earlier plan, which still holds for the axes outside this one
        before = shards.layout_of(tensor, mesh.whole)
        if before == (wanted := _merged(before, wanted, part)):
            return
    marking.place(tensor, mesh, wanted)


def _merged(before: Layout, wanted: Layout, mesh: Mesh) -> Layout:
    planned = {mesh.axis(name) for name in mesh.names}
    return tuple(
        tuple(sorted({*new, *(axis for axis in old if axis not in planned)}))
        for old, new in zip(before, wanted, strict=True)
    )


def _moved(tensor: Tensor) -> Tensor:
    """The tensor on the XLA device: the same object where torch can keep it."""
    if tensor.device.type == "xla":
        return tensor
    moved = tensor.detach().to(marking.device())
    if not isinstance(tensor, nn.Parameter):
        return moved
    parameter = nn.Parameter(moved, requires_grad=tensor.requires_grad)
    if tensor.grad is not None:
        parameter.grad = tensor.grad.to(marking.device())
    try:
        torch.utils.swap_tensors(tensor, parameter)  # an existing optimizer keeps its parameters
    except RuntimeError:  # something holds a weak reference to it
        return parameter
    return tensor
