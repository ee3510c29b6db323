"""parallelize: a model placed over a mesh by a plan.

The rule: the whole plan is read, and refused if anything in it is wrong, before the first
parameter moves. Parameters stay the objects that they are, tied ones tied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xla_nb.errors import UsageError
from xla_nb.spmd import marking, shards
from xla_nb.spmd.handovers import Batch, Door
from xla_nb.spmd.layouts import Layout, layout
from xla_nb.spmd.meshes import Mesh, of
from xla_nb.spmd.norms import make_splittable
from xla_nb.spmd.plans import PlacedTensor, StyledModule, resolve
from xla_nb.spmd.styles import Reading, read
from xla_nb.wording import several


def parallelize(model: Any, mesh: Any, plan: Any) -> Any:
    """Place a model over the devices, by the plan that parallelize_module would take on CUDA.

    `mesh` is a mesh or a part of one; over its other axes everything is replicated. A plan maps
    names of modules, with wildcards, to styles, or names of parameters to placements. What it does
    not name is replicated. Gives the model back, changed in place, on the XLA device.
    """
    mesh = of(mesh)
    _refuse_unmade(model)
    layouts = _Layouts(mesh)
    styled: list[tuple[StyledModule, Reading]] = []
    for target in resolve(model, plan):
        if isinstance(target, PlacedTensor):
            layouts.ask_placements(target)
        else:
            reading = read(target, mesh)
            layouts.ask_reading(target, reading)
            styled.append((target, reading))
    _place(model, mesh, layouts)
    make_splittable(model)
    batch = Batch(mesh)
    batch.watch(model)
    for target, reading in styled:
        Door(reading, mesh, batch, target.where).hang(target.module)
    return model


def _refuse_unmade(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"A {type(model).__name__} is no model: parallelize takes an nn.Module.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise UsageError(f"{name} has no shape yet. Run one batch through the model first.")
        if tensor.is_meta:
            raise UsageError(
                f"{name} is on the meta device and has no values. Make them first: "
                "model.to_empty(device='cpu'), then initialise or load them."
            )


class _Layouts:
    """The layout that the plan asks of each tensor; asking two of one is an error."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._asked: dict[int, tuple[Mesh, Layout, str]] = {}

    def ask_placements(self, target: PlacedTensor) -> None:
        names, given = self._mesh.names, target.placements
        if len(given) != len(names):
            raise UsageError(
                f"{target.where}: {several(len(given), 'placement')} for a mesh with "
                f"the axes {', '.join(map(repr, names))}. What to do: give a list with one for "
                f"each, or a part of the mesh, mesh[{names[-1]!r}]."
            )
        self._ask(target.tensor, self._mesh, given, target.name, target.where)

    def ask_reading(self, target: StyledModule, reading: Reading) -> None:
        tensors = dict(target.module.named_parameters(remove_duplicate=False))
        tensors.update(target.module.named_buffers(remove_duplicate=False))
        for inner, (mesh, placements) in reading.parameters.items():
            name = f"{target.name}.{inner}" if target.name else inner
            where = f"{name} ({type(target.style).__name__})"
            self._ask(tensors[inner], mesh, placements, name, where)

    def _ask(
        self, tensor: Tensor, mesh: Mesh, placements: tuple[Any, ...], name: str, where: str
    ) -> None:
        asked = layout(mesh, placements, tensor.ndim, where)
        _, before, other = self._asked.setdefault(id(tensor), (mesh, asked, where))
        if before != asked:
            raise UsageError(
                f"{other} and {where} are the same tensor, and the plan places it in two ways: "
                f"{_words(before, self._mesh)} and {_words(asked, self._mesh)}. What to do: make "
                "the two agree, or take one of them out of the plan."
            )

    def of(self, tensor: Tensor) -> tuple[Mesh, Layout] | None:
        asked = self._asked.get(id(tensor))
        return asked and asked[:2]


def _words(asked: Layout, mesh: Mesh) -> str:
    split = [
        f"Shard({dim}) over {' and '.join(repr(mesh.whole.names[axis]) for axis in axes)}"
        for dim, axes in enumerate(asked)
        if axes
    ]
    return ", ".join(split) or "Replicate"


def _place(model: nn.Module, mesh: Mesh, layouts: _Layouts) -> None:
    """Move every tensor of the model to the devices, one at a time, each laid out at once."""
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in placed:
                    asked = layouts.of(tensor)
                    placed[id(tensor)] = here = _moved(tensor)
                    placed[id(here)] = here
                    _lay_out(here, mesh, asked)
                if placed[id(tensor)] is not tensor:
                    setattr(module, name, placed[id(tensor)])


def _lay_out(tensor: Tensor, mesh: Mesh, asked: tuple[Mesh, Layout] | None) -> None:
    known = marking.sharding(tensor) is not None
    if asked is None:
        if not known:
            marking.place(tensor, mesh, ((),) * tensor.ndim)
        return
    part, wanted = asked
    if known:  # placed before: over the axes that are not asked for now it stays as it is
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
    there = tensor.detach().to(marking.device())
    if not isinstance(tensor, nn.Parameter):
        return there
    parameter = nn.Parameter(there, requires_grad=tensor.requires_grad)
    if tensor.grad is not None:
        parameter.grad = tensor.grad.to(marking.device())
    try:
        torch.utils.swap_tensors(tensor, parameter)  # an optimizer made before keeps its own
    except RuntimeError:  # something holds a weak reference to it
        return parameter
    return tensor
