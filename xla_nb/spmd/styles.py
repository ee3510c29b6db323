"""Styles: what a torch ParallelStyle asks of a module, found by running it.

A style's own `_apply` runs on the module while torch_xla's versions of `distribute_module` and
`distribute_tensor` only record their arguments, so a user's own style works too. The module is left
as it was; what needs DTensors at run time is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch_xla.distributed.spmd as xs
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.parallel import style as torch_styles

from xla_nb.spmd.meshes import Mesh
from xla_nb.spmd.plans import StyledModule
from xla_nb.spmd.refusals import NotExpressible
from xla_nb.wording import listed

_InputOutput: Any = getattr(torch_styles, "PrepareModuleInputOutput", ())  # not in every release


@dataclass(frozen=True)
class Handover:
    """How a value is laid out when it reaches a module's boundary, and how it should leave it."""

    arriving: tuple[Any, ...]
    wanted: tuple[Any, ...]


@dataclass
class Reading:
    """What a style asks of one module; a None handover leaves the value as it is."""

    parameters: dict[str, tuple[Mesh, tuple[Any, ...]]] = field(default_factory=dict)
    inputs: list[Handover | None] = field(default_factory=list)
    keywords: dict[str, Handover] = field(default_factory=dict)
    outputs: list[Handover | None] = field(default_factory=list)
    all_inputs: bool = False  # `inputs` covers all positional inputs, as in PrepareModuleInput
    all_outputs: bool = False


def read(target: StyledModule, mesh: Mesh) -> Reading:
    """What the style asks of its module, on a mesh of one axis. Raises NotExpressible."""
    style = target.style
    if len(mesh.names) != 1:
        raise NotExpressible(
            target.where,
            f"a style places over one axis, but this mesh has {len(mesh.names)}: "
            f"{', '.join(map(repr, mesh.names))}",
            f"Choose one of them: parallelize(model, mesh[{mesh.names[-1]!r}], plan)",
        )
    reading = Reading()
    if isinstance(style, _InputOutput):
        _read_inputs(style.prepare_module_input, reading)
        _read_outputs(style.prepare_module_output, reading)
    elif isinstance(style, PrepareModuleInput) and _inherits(
        style, PrepareModuleInput, "_apply _prepare_input_fn _prepare_input_kwarg_fn"
    ):
        _read_inputs(style, reading)
    elif isinstance(style, PrepareModuleOutput) and _inherits(
        style, PrepareModuleOutput, "_apply _prepare_out_fn"
    ):
        _read_outputs(style, reading)
    else:
        _Witness(target, mesh, reading).watch()
    _refuse_partial(target, reading)
    return reading


def _inherits(style: object, base: type, methods: str) -> bool:
    """Whether the style overrides none of these methods of its base."""
    return all(getattr(type(style), name) is getattr(base, name) for name in methods.split())


def _read_inputs(style: Any, reading: Reading) -> None:
    if style.input_layouts is not None:
        pairs = zip(style.input_layouts, style.desired_input_layouts, strict=True)
        reading.inputs = [_handover(arriving, wanted) for arriving, wanted in pairs]
        reading.all_inputs = True
    for name, arriving in style.input_kwarg_layouts.items():
        handover = _handover(arriving, style.desired_input_kwarg_layouts.get(name))
        if handover is not None:
            reading.keywords[name] = handover


def _read_outputs(style: Any, reading: Reading) -> None:
    pairs = zip(style.output_layouts, style.desired_output_layouts, strict=True)
    reading.outputs = [_handover(arriving, wanted) for arriving, wanted in pairs]
    reading.all_outputs = True


def _handover(arriving: Any, wanted: Any) -> Handover | None:
    if arriving is None:
        return None
    return Handover((arriving,), (arriving if wanted is None else wanted,))


def _refuse_partial(target: StyledModule, reading: Reading) -> None:
    for handover in [*reading.inputs, *reading.keywords.values(), *reading.outputs]:
        if handover is None:
            continue
        for placement in (*handover.arriving, *handover.wanted):
            if isinstance(placement, Partial):
                raise NotExpressible(
                    target.where,
                    f"XLA cannot express {placement!r} as the layout of an input or output: under "
                    "SPMD every value is whole, and XLA sums partial ones itself",
                    "Use Replicate() or Shard(dim)",
                )


class _Witness:
    """Runs a style on its module and records what it asks for."""

    def __init__(self, target: StyledModule, mesh: Mesh, reading: Reading) -> None:
        self._target, self._mesh, self._reading = target, mesh, reading
        self._placements: dict[int, tuple[Mesh, tuple[Any, ...]]] = {}  # by the tensor's id
        self._alive: list[Any] = []  # so that no id is used twice

    def watch(self) -> None:
        module = self._target.module
        names = _names(module)
        with _restored(module, self._refused), self._intercepted():
            try:
                self._target.style._apply(module, self._mesh)
            except NotExpressible:
                raise
            except NotImplementedError as error:
                raise self._refused(
                    f"{error} This is a {type(module).__name__}",
                    "Name modules inside it, or give its parameters placements: "
                    f'"{self._target.name}.weight": Shard(0)',
                ) from error
            except Exception as error:
                raise self._refused(
                    f"the style failed with {type(error).__name__}: {error}",
                    "Use only distribute_module and distribute_tensor in a style of your own: "
                    "there is no process group and no rank",
                ) from error
        for key, placements in self._placements.items():
            if key not in names:
                raise self._refused(
                    "the style distributes a tensor that is not a parameter or buffer of the "
                    "module",
                    "Distribute the module's own parameters, whole",
                )
            self._reading.parameters[names[key]] = placements

    def distribute_module(
        self,
        module: Any,
        device_mesh: Any = None,
        partition_fn: Callable[[str, Any, Any], object] | None = None,
        input_fn: Any = None,
        output_fn: Any = None,
    ) -> Any:
        if module is not self._target.module:
            raise self._refused(
                "the style distributes a module other than its own",
                "Name that module in the plan",
            )
        if partition_fn is not None:
            for name, submodule in module.named_modules():
                partition_fn(name, submodule, device_mesh)
        if input_fn is not None:
            self._reading.inputs = [self._input(input_fn)]
        if output_fn is not None:
            self._reading.outputs = [self._output(output_fn)]
        return module

    def distribute_tensor(self, tensor: Any, device_mesh: Any, placements: Any = None) -> Any:
        if not isinstance(device_mesh, Mesh) or device_mesh.whole is not self._mesh.whole:
            raise self._refused(
                "the style distributes over a mesh other than its own",
                "Use the mesh that the style is called with",
            )
        complete = tuple(placements or [Replicate()] * len(device_mesh.names))
        self._placements[id(tensor)] = (device_mesh, complete)
        self._alive.append(tensor)
        return tensor

    def from_local(self, tensor: Any, device_mesh: Any, placements: Any, **_: object) -> Any:
        """As partition functions use it: on a parameter that every rank holds whole."""
        if any(not isinstance(each, Replicate) for each in placements):
            raise self._refused(
                f"DTensor.from_local with {list(placements)} joins parts that ranks hold, but "
                "under SPMD one process holds the whole",
                "Use distribute_tensor",
            )
        return self.distribute_tensor(tensor, device_mesh, placements)

    def _input(self, function: Any) -> Handover:
        known: Any = getattr(function, "func", None)
        arguments: Any = getattr(function, "args", ())
        if known in (ColwiseParallel._prepare_input_fn, RowwiseParallel._prepare_input_fn):
            return Handover(arguments[0], arguments[1])
        if known is SequenceParallel._prepare_input_fn:
            return Handover(arguments[0], arguments[0])
        raise self._own_function("input")

    def _output(self, function: Any) -> Handover | None:
        known: Any = getattr(function, "func", None)
        arguments: Any = getattr(function, "args", ())
        if known in (ColwiseParallel._prepare_output_fn, RowwiseParallel._prepare_output_fn):
            return Handover(arguments[0], arguments[0])
        if known is SequenceParallel._prepare_output_fn:
            return self._reading.inputs[0]
        raise self._own_function("output")

    def _own_function(self, what: str) -> NotExpressible:
        return self._refused(
            f"the style's own {what} function needs DTensors at run time, and under SPMD there are "
            "none",
            f"Remove the function and set {what}_layouts, or add PrepareModule"
            f"{what.capitalize()} to the plan",
        )

    def _refused(self, problem: str, fix: str) -> NotExpressible:
        return NotExpressible(self._target.where, problem, fix)

    @contextmanager
    def _intercepted(self) -> Iterator[None]:
        ends = (
            (xs, "xla_distribute_module", self.distribute_module),
            (xs, "xla_distribute_tensor", self.distribute_tensor),
            (DTensor, "from_local", staticmethod(self.from_local)),
        )
        before = [vars(owner)[name] for owner, name, _ in ends]
        try:
            for owner, name, function in ends:
                setattr(owner, name, function)
            yield
        finally:
            for (owner, name, _), function in zip(ends, before, strict=True):
                setattr(owner, name, function)


def _names(module: Any) -> dict[int, str]:
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {id(tensor): name for name, tensor in tensors}


_TABLES = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks")


@contextmanager
def _restored(module: Any, refused: Callable[[str, str], NotExpressible]) -> Iterator[None]:
    """Undo what a style changes in the modules; refuse changes beyond placing."""
    before = [
        (each, {name: dict(getattr(each, name)) for name in _TABLES}) for each in module.modules()
    ]
    problem = None
    try:
        yield
        problem = next(filter(None, (_beyond_placing(each, was) for each, was in before)), None)
    finally:
        for each, tables in before:
            for name, entries in tables.items():
                table = getattr(each, name)
                table.clear()
                table.update(entries)
    if problem:
        raise refused(problem, "Let it only place parameters, with distribute_tensor")


def _same_values(now: Any, was: Any) -> bool:
    """Whether a tensor is the same object as before, or another object with its storage."""
    if now is None or now.shape != was.shape or now.device != was.device:
        return False
    return now is was or was.device.type != "cpu" or now.data_ptr() == was.data_ptr()


def _beyond_placing(module: Any, was: dict[str, dict[Any, Any]]) -> str | None:
    """What a style did to a module besides replacing its parameters by distributed ones."""
    if any(was[name] != dict(getattr(module, name)) for name in _TABLES[2:]):
        return "the style adds hooks or modules, which would need DTensors at run time"
    for name in _TABLES[:2]:
        now = getattr(module, name)
        if now.keys() != was[name].keys():
            changed = listed(sorted(now.keys() ^ was[name].keys()))
            return f"the style adds or removes parameters: {changed}"
        for key, tensor in was[name].items():
            if tensor is not None and not _same_values(now[key], tensor):
                return f"the style replaces {key} by another tensor"
    return None
