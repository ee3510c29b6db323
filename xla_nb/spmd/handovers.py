"""Handovers: hooks that lay out what goes into a module and what comes out, as a style asks.

The rule: a hook adds a constraint to the graph and never a collective; which collectives that
takes is XLA's business. Dimension 0 stays split over the axes that the model's batch is split
over, for a constraint would otherwise gather it.
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
    """How the latest inputs of the model are split on dimension 0, over axes not in the plan.

    Read from the inputs where XLA knows it. What was computed from a batch has no sharding before
    it is computed: then the batch that was last brought to the mesh tells.
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

    def keep(self, asked: Layout, tensor: Tensor) -> Layout:
        """The layout with dimension 0 split as the batch is, if it is of the batch."""
        if not asked or not self.axes or tensor.shape[0] % self.size:
            return asked
        return (tuple(sorted({*asked[0], *self.axes})), *asked[1:])


class Door:
    """The hooks of one module."""

    def __init__(self, reading: Reading, mesh: Mesh, batch: Batch, where: str) -> None:
        self._reading, self._mesh, self._batch, self._where = reading, mesh, batch, where

    def hang(self, module: Any) -> None:
        if self._reading.inputs or self._reading.keywords:
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
        if self._reading.outputs:
            module.register_forward_hook(self._leave)

    def _enter(
        self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        asked: Sequence[Handover | None] = self._reading.inputs
        if self._reading.all_inputs:
            self._same_number("inputs", len(args), len(asked))
        elif not args:
            raise UsageError(
                f"{self._where}: the module is called without positional inputs, and a style lays "
                "out the first of these. What to do: pass it by position, or use "
                "PrepareModuleInput(input_kwarg_layouts=...)."
            )
        else:
            asked = [*asked, *[None] * (len(args) - len(asked))]
        laid = tuple(self._lay(*each, "input") for each in zip(args, asked, strict=True))
        return laid, self._keywords(kwargs) if self._reading.keywords else kwargs

    def _keywords(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        asked = self._reading.keywords
        return {
            name: self._lay(value, asked.get(name), f"input {name}")
            for name, value in kwargs.items()
        }

    def _leave(self, _: object, __: object, output: Any) -> Any:
        outputs = output if isinstance(output, tuple) else (output,)
        asked: Sequence[Handover | None] = self._reading.outputs
        if self._reading.all_outputs:
            self._same_number("outputs", len(outputs), len(asked))
        else:
            asked = [*asked, *[None] * (len(outputs) - len(asked))]
        laid = [self._lay(*each, "output") for each in zip(outputs, asked, strict=True)]
        return tuple(laid) if isinstance(output, tuple) else laid[0]

    def _same_number(self, what: str, given: int, planned: int) -> None:
        if given != planned:
            raise UsageError(
                f"{self._where}: the number of {what} is {given} here, and the style lays out "
                f"{planned}. What to do: give a layout for each, None to leave one as it is."
            )

    def _lay(self, value: Any, handover: Handover | None, what: str) -> Any:
        if handover is None:
            return value
        if not isinstance(value, Tensor):
            raise UsageError(
                f"{self._where}: the {what} to lay out is a {type(value).__name__} and no tensor. "
                "What to do: leave it out of the plan with None."
            )
        if value.device.type != "xla":
            raise UsageError(
                f"{self._where}: the {what} is on the {value.device.type}. What to do: bring the "
                "batch to the devices with xla_nb.spmd.shard_batch(batch, mesh), or .to('xla')."
            )
        forward, backward = (
            self._batch.keep(layout(self._mesh, each, value.ndim, f"{self._where}, {what}"), value)
            for each in (handover.wanted, handover.arriving)
        )
        return marking.constrain(value, self._mesh, forward, backward)
