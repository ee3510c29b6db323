"""Hooks that lay out a module's inputs and outputs as its style says.

A hook adds a sharding constraint to the graph; XLA chooses the collectives it takes. Dimension 0
stays split over the batch's axes, because a constraint without them would gather the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from xla_nb.errors import UsageError
from xla_nb.spmd import marking, shards
from xla_nb.spmd.layouts import Layout, layout
from xla_nb.spmd.meshes import Mesh
from xla_nb.spmd.styles import Handover, Reading


class Batch:
    """How the model's latest inputs are split on dimension 0, over axes outside the plan.

    Read from the inputs' sharding. A pending value computed from a batch has no sharding yet; then
    the last batch that was moved to the mesh decides.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._planned = {mesh.axis(name) for name in mesh.names}
        self.axes: tuple[int, ...] = ()
        self.size = 1

    def watch(self, model: Any) -> None:
        model.register_forward_pre_hook(self._look, prepend=True, with_kwargs=True)

    def _look(self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.size, self.axes = 1, ()
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value.ndim:
                split = self._split(value)
                self.axes = tuple(axis for axis in split if axis not in self._planned)
                self.size = value.shape[0]
                if self.axes:
                    return

    def _split(self, value: Tensor) -> tuple[int, ...]:
        """The axes that split dimension 0 of an input."""
        if marking.sharding(value) is not None:
            return shards.layout_of(value, self._mesh.whole)[0]
        size, axes = self._mesh.whole.batch
        return axes if size == value.shape[0] else ()

    def keep(self, layout: Layout, tensor: Tensor) -> Layout:
        """The layout with dimension 0 split as the batch is, if the tensor holds the batch."""
        if not layout or not self.axes or tensor.shape[0] % self.size:
            return layout
        return (tuple(sorted({*layout[0], *self.axes})), *layout[1:])


class Hooks:
    """The hooks of one module."""

    def __init__(self, reading: Reading, mesh: Mesh, batch: Batch, where: str) -> None:
        self._reading, self._mesh, self._batch, self._where = reading, mesh, batch, where

    def register(self, module: Any) -> None:
        if self._reading.inputs or self._reading.keywords:
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
        if self._reading.outputs:
            module.register_forward_hook(self._leave)

    def _enter(
        self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        handovers: Sequence[Handover | None] = self._reading.inputs
        if self._reading.all_inputs:
            self._check_number("inputs", len(args), len(handovers))
        elif not args:
            raise UsageError(
                f"{self._where}: the style lays out the first positional input, but the module was "
                "called without any. Pass it by position, or use "
                "PrepareModuleInput(input_kwarg_layouts=...)."
            )
        else:
            handovers = [*handovers, *[None] * (len(args) - len(handovers))]
        laid = tuple(self._lay(*each, "input") for each in zip(args, handovers, strict=True))
        return laid, self._keywords(kwargs) if self._reading.keywords else kwargs

    def _keywords(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        handovers = self._reading.keywords
        return {
            name: self._lay(value, handovers.get(name), f"input {name}")
            for name, value in kwargs.items()
        }

    def _leave(self, _: object, __: object, output: Any) -> Any:
        outputs = output if isinstance(output, tuple) else (output,)
        handovers: Sequence[Handover | None] = self._reading.outputs
        if self._reading.all_outputs:
            self._check_number("outputs", len(outputs), len(handovers))
        else:
            handovers = [*handovers, *[None] * (len(outputs) - len(handovers))]
        laid = [self._lay(*each, "output") for each in zip(outputs, handovers, strict=True)]
        return tuple(laid) if isinstance(output, tuple) else laid[0]

    def _check_number(self, kind: str, actual: int, planned: int) -> None:
        if actual != planned:
            raise UsageError(
                f"{self._where}: the number of {kind} is {actual}, but the style lays out "
                f"{planned}. Give one layout for each, None to leave one as it is."
            )

    def _lay(self, value: Any, handover: Handover | None, what: str) -> Any:
        if handover is None:
            return value
        if not isinstance(value, Tensor):
            raise UsageError(
                f"{self._where}: the {what} to lay out is a {type(value).__name__}, not a tensor. "
                "Use None for it in the plan."
            )
        if value.device.type != "xla":
            raise UsageError(
                f"{self._where}: the {what} is on device {value.device.type}, not on the XLA "
                "devices. Move it there with xla_nb.spmd.shard_batch(batch, mesh) or .to('xla')."
            )
        forward, backward = (
            self._batch.keep(layout(self._mesh, each, value.ndim, f"{self._where}, {what}"), value)
            for each in (handover.wanted, handover.arriving)
        )
        return marking.constrain(value, self._mesh, forward, backward)
