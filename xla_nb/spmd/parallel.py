"""`parallelize`: place a model over a mesh by a plan.

The plan is checked before the first parameter moves, so a refused plan leaves the model alone.
Parameters stay the same objects, and tied ones stay tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from xla_nb.errors import UsageError
from xla_nb.spmd import sharding
from xla_nb.spmd.meshes import Mesh, of
from xla_nb.spmd.norms import make_splittable
from xla_nb.spmd.plans import Handover, Reading, Target, read, resolve
from xla_nb.spmd.sharding import Layout, layout


def parallelize(model: Any, mesh: Any, plan: Any) -> Any:
    """Place a model over the devices by a plan for torch's parallelize_module.

    `mesh` is a mesh or a part of one; over its other axes everything is replicated. A plan maps
    module names, with wildcards, to styles, or parameter names to placements; anything it does not
    name is replicated. Changes the model in place, moves it to the XLA device and returns it.
    Raises UsageError for a wrong plan, or if XLA cannot express a style.
    """
    mesh = of(mesh)
    if not isinstance(model, nn.Module):
        raise UsageError(f"parallelize takes an nn.Module, not a {type(model).__name__}.")
    planned: dict[int, tuple[Layout, str]] = {}  # by the tensor's id
    hooked: list[tuple[Target, Reading]] = []
    own: list[Target] = []
    for target in resolve(model, plan):
        if isinstance(target.tensor_or_module, Tensor):
            _add(planned, mesh, target.tensor_or_module, target.value, target.where)
            continue
        reading = read(target, mesh.names)
        if reading is None:
            own.append(target)
            continue
        hooked.append((target, reading))
        tensors = dict(target.tensor_or_module.named_parameters())
        for name, placement in reading.parameters.items():
            where = f"{target.name}.{name}".lstrip(".") + f" ({type(target.value).__name__})"
            _add(planned, mesh, tensors[name], (placement,), where)
    _place(model, mesh, planned)
    make_splittable()
    note = partial(_note_batch, mesh.whole)
    model.register_forward_pre_hook(note, prepend=True, with_kwargs=True)
    for target, reading in hooked:
        _Hooks(reading, mesh, target.where).register(target.tensor_or_module)
    for target in own:
        target.value._apply(target.tensor_or_module, mesh)
    return model


def _add(
    planned: dict[int, tuple[Layout, str]],
    mesh: Mesh,
    tensor: Tensor,
    placements: Sequence[Any],
    where: str,
) -> None:
    new = layout(mesh, placements, tensor.ndim, where)
    first, other = planned.setdefault(id(tensor), (new, where))
    if first != new:
        raise UsageError(
            f"{other} and {where} are the same tensor, but the plan places it in two ways. Make "
            "them agree, or remove one from the plan."
        )


# --- parameters and buffers -------------------------------------------------------------------


def _place(model: nn.Module, mesh: Mesh, planned: dict[int, tuple[Layout, str]]) -> None:
    """Move every tensor of the model to the devices, one at a time, and lay it out."""
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in placed:
                    wanted, _ = planned.get(id(tensor), (None, ""))
                    placed[id(tensor)] = moved = _moved(tensor)
                    placed[id(moved)] = moved
                    _lay_out(moved, mesh, wanted)
                if placed[id(tensor)] is not tensor:
                    setattr(module, name, placed[id(tensor)])


def _lay_out(tensor: Tensor, mesh: Mesh, wanted: Layout | None) -> None:
    if sharding.sharding(tensor) is None:
        sharding.place(tensor, mesh, ((),) * tensor.ndim if wanted is None else wanted)
    elif wanted is not None:  # an earlier plan still holds for the axes outside this mesh
        planned = {mesh.axis(name) for name in mesh.names}
        before = sharding.layout_of(tensor, mesh.whole)
        both = tuple(
            tuple(sorted({*new, *(axis for axis in old if axis not in planned)}))
            for old, new in zip(before, wanted, strict=True)
        )
        if both != before:
            sharding.place(tensor, mesh, both)


def _moved(tensor: Tensor) -> Tensor:
    """Move the tensor to the XLA device, as the same object if torch can keep it."""
    if tensor.device.type == "xla":
        return tensor
    moved = tensor.detach().to(sharding.device())
    if not isinstance(tensor, nn.Parameter):
        return moved
    parameter = nn.Parameter(moved, requires_grad=tensor.requires_grad)
    if tensor.grad is not None:
        parameter.grad = tensor.grad.to(sharding.device())
    try:
        torch.utils.swap_tensors(tensor, parameter)  # an existing optimizer keeps its parameters
    except RuntimeError:  # something holds a weak reference to it
        return parameter
    return tensor


# --- inputs and outputs -----------------------------------------------------------------------


def _note_batch(whole: Mesh, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a model's forward: record how its inputs are split on dimension 0. A pending value
    computed from a batch has no sharding yet; then the last record stays."""
    for value in pytree.tree_leaves((args, kwargs)):
        if isinstance(value, Tensor) and value.ndim and sharding.sharding(value) is not None:
            whole.batch = (value.shape[0], sharding.layout_of(value, whole)[0])
            return


def _with_batch(layout: Layout, tensor: Tensor, mesh: Mesh) -> Layout:
    """The layout with dimension 0 also split over the batch's axes outside the plan, if the tensor
    contains the batch; otherwise the batch would be gathered."""
    size, split = mesh.whole.batch
    planned = {mesh.axis(name) for name in mesh.names}
    axes = [axis for axis in split if axis not in planned]
    if not layout or not axes or tensor.shape[0] % size:
        return layout
    return (tuple(sorted({*layout[0], *axes})), *layout[1:])


class _Hooks:
    """The hooks of one module: they add sharding constraints for its inputs and outputs to the
    graph, and XLA chooses the collectives."""

    def __init__(self, reading: Reading, mesh: Mesh, where: str) -> None:
        self._reading, self._mesh, self._where = reading, mesh, where

    def register(self, module: Any) -> None:
        if self._reading.inputs or self._reading.keywords:
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
        if self._reading.outputs:
            module.register_forward_hook(self._leave)

    def _enter(
        self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        handovers = self._reading.keywords
        return self._all(args, self._reading.inputs, "input"), {
            name: self._lay(value, handovers.get(name), f"input {name}")
            for name, value in kwargs.items()
        }

    def _leave(self, _: object, __: object, output: Any) -> Any:
        is_one = not isinstance(output, tuple)
        laid = self._all((output,) if is_one else output, self._reading.outputs, "output")
        return laid[0] if is_one else laid

    def _all(
        self, values: tuple[Any, ...], handovers: list[Handover], what: str
    ) -> tuple[Any, ...]:
        if len(values) < len(handovers):
            raise UsageError(
                f"{self._where}: the number of {what}s is {len(values)}, but the style lays out "
                f"{len(handovers)}. Pass inputs by position, or use "
                "PrepareModuleInput(input_kwarg_layouts=...)."
            )
        return tuple(self._lay(*each, what) for each in zip_longest(values, handovers))

    def _lay(self, value: Any, handover: Handover, what: str) -> Any:
        if handover is None:
            return value
        if not isinstance(value, Tensor) or value.device.type != "xla":
            held = f"on {value.device}" if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"{self._where}: the {what} to lay out must be a tensor on the XLA devices, not "
                f"{held}. Move it there with xla_nb.spmd.shard_batch(batch, mesh) or .to('xla'), "
                "or use None for it in the plan."
            )
        where = f"{self._where}, {what}"
        forward, backward = (
            _with_batch(layout(self._mesh, [each], value.ndim, where), value, self._mesh)
            for each in reversed(handover)
        )
        return sharding.Constrain.apply(value, self._mesh, forward, backward)
