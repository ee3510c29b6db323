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
from xla_nb.spmd.meshes import Mesh, as_mesh
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
    mesh = as_mesh(mesh)
    if not isinstance(model, nn.Module):
        raise UsageError(f"parallelize takes an nn.Module, not a {type(model).__name__}.")
    layouts: dict[int, tuple[Layout, str]] = {}  # by the tensor's id
    readings: list[tuple[Target, Reading]] = []
    custom_targets: list[Target] = []
    for target in resolve(model, plan):
        if isinstance(target.tensor_or_module, Tensor):
            _add(layouts, mesh, target.tensor_or_module, target.value, target.where)
            continue
        reading = read(target, mesh.names)
        if reading is None:
            custom_targets.append(target)
            continue
        readings.append((target, reading))
        tensors = dict(target.tensor_or_module.named_parameters())
        for name, placement in reading.parameters.items():
            where = f"{target.name}.{name}".lstrip(".") + f" ({type(target.value).__name__})"
            _add(layouts, mesh, tensors[name], (placement,), where)
    _place(model, mesh, layouts)
    make_splittable()
    if readings:  # only these need the batch; without a hook, torch.compile sees a plain model
        hook = partial(_record_batch, mesh.whole)
        model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    for target, reading in readings:
        _Hooks(reading, mesh, target.where).register(target.tensor_or_module)
    for target in custom_targets:
        target.value._apply(target.tensor_or_module, mesh)
    return model


def _add(
    layouts: dict[int, tuple[Layout, str]],
    mesh: Mesh,
    tensor: Tensor,
    placements: Sequence[Any],
    where: str,
) -> None:
    new = layout(mesh, placements, tensor.ndim, where)
    old, origin = layouts.setdefault(id(tensor), (new, where))
    if old != new:
        raise UsageError(
            f"{origin} and {where} are the same tensor, but the plan places it in two ways. Make "
            "them agree, or remove one from the plan."
        )


# --- parameters and buffers -------------------------------------------------------------------


def _place(model: nn.Module, mesh: Mesh, layouts: dict[int, tuple[Layout, str]]) -> None:
    """Move every tensor of the model to the devices, one at a time, and lay it out."""
    moved_by_id: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in moved_by_id:
                    new_layout, _ = layouts.get(id(tensor), (None, ""))
                    moved_by_id[id(tensor)] = moved = _move(tensor)
                    moved_by_id[id(moved)] = moved
                    _lay_out(moved, mesh, new_layout)
                if moved_by_id[id(tensor)] is not tensor:
                    setattr(module, name, moved_by_id[id(tensor)])


def _lay_out(tensor: Tensor, mesh: Mesh, new_layout: Layout | None) -> None:
    if sharding.sharding(tensor) is None:
        sharding.place(tensor, mesh, ((),) * tensor.ndim if new_layout is None else new_layout)
    elif new_layout is not None:  # an earlier plan still holds for the axes outside this mesh
        plan_axes = {mesh.axis(name) for name in mesh.names}
        old_layout = sharding.layout_of(tensor, mesh.whole)
        merged = tuple(
            tuple(sorted({*new, *(axis for axis in old if axis not in plan_axes)}))
            for old, new in zip(old_layout, new_layout, strict=True)
        )
        if merged != old_layout:
            sharding.place(tensor, mesh, merged)


def _move(tensor: Tensor) -> Tensor:
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


def _record_batch(whole: Mesh, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a model's forward: record how its inputs are split on dimension 0. A pending value
    computed from a batch has no sharding yet; then the last record stays."""
    for value in () if sharding.is_transformed() else pytree.tree_leaves((args, kwargs)):
        if isinstance(value, Tensor) and value.ndim and sharding.sharding(value) is not None:
            whole.batch = (value.shape[0], sharding.layout_of(value, whole)[0])
            return


def _with_batch(layout: Layout, tensor: Tensor, mesh: Mesh) -> Layout:
    """The layout with dimension 0 also split over the batch's axes outside the plan, if the tensor
    contains the batch; otherwise the batch would be gathered."""
    size, split = mesh.whole.batch
    plan_axes = {mesh.axis(name) for name in mesh.names}
    axes = [axis for axis in split if axis not in plan_axes]
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
            module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        if self._reading.outputs:
            module.register_forward_hook(self._after_forward)

    def _before_forward(
        self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        handovers = self._reading.keywords
        return self._constrain_all(args, self._reading.inputs, "input"), {
            name: self._constrain(value, handovers.get(name), f"input {name}")
            for name, value in kwargs.items()
        }

    def _after_forward(self, _: object, __: object, output: Any) -> Any:
        is_single = not isinstance(output, tuple)
        outputs = self._constrain_all(
            (output,) if is_single else output, self._reading.outputs, "output"
        )
        return outputs[0] if is_single else outputs

    def _constrain_all(
        self, values: tuple[Any, ...], handovers: list[Handover], role: str
    ) -> tuple[Any, ...]:
        if len(values) < len(handovers):
            raise UsageError(
                f"{self._where}: the number of {role}s is {len(values)}, but the style lays out "
                f"{len(handovers)}. Pass inputs by position, or use "
                "PrepareModuleInput(input_kwarg_layouts=...)."
            )
        return tuple(self._constrain(*pair, role) for pair in zip_longest(values, handovers))

    def _constrain(self, value: Any, handover: Handover, role: str) -> Any:
        if handover is None or sharding.is_transformed():
            return value
        if not isinstance(value, Tensor) or value.device.type != "xla":
            kind = f"on {value.device}" if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"{self._where}: the {role} to lay out must be a tensor on the XLA devices, not "
                f"{kind}. Move it there with xla_nb.spmd.shard_batch(batch, mesh) or .to('xla'), "
                "or use None for it in the plan."
            )
        where = f"{self._where}, {role}"
        forward, backward = (
            _with_batch(layout(self._mesh, [placement], value.ndim, where), value, self._mesh)
            for placement in reversed(handover)
        )
        return sharding.Constrain.apply(value, self._mesh, forward, backward)
