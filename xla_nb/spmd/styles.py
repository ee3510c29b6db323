"""Styles: what a torch ParallelStyle asks of a module, read by letting it act.

A style's own `_apply` runs on the module while torch_xla's ends of `distribute_module` and
`distribute_tensor` only write down what they are asked. So the partition function of a user's
subclass counts. The rule: the module is left as it was; what can only be done with DTensors at
run time is refused.
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

_InputOutput: Any = getattr(torch_styles, "PrepareModuleInputOutput", ())  # not in every release


@dataclass(frozen=True)
class Handover:
    """How a value lies as it comes to a module's door, and how it goes on from there."""

    arriving: tuple[Any, ...]
    wanted: tuple[Any, ...]


@dataclass
class Reading:
    """What a style asks of one module. None among the values: as it comes."""

    parameters: dict[str, tuple[Mesh, tuple[Any, ...]]] = field(default_factory=dict)
    inputs: list[Handover | None] = field(default_factory=list)
    keywords: dict[str, Handover] = field(default_factory=dict)
    outputs: list[Handover | None] = field(default_factory=list)
    all_inputs: bool = False  # `inputs` must name each of them, as PrepareModuleInput does
    all_outputs: bool = False


def read(target: StyledModule, mesh: Mesh) -> Reading:
    """What the style asks of its module, on a mesh of one axis."""
    style = target.style
    if len(mesh.names) != 1:
        raise NotExpressible(
            target.where,
            f"a style places over one axis, and this mesh has {len(mesh.names)}: "
            f"{', '.join(map(repr, mesh.names))}",
            f"give one of them, parallelize(model, mesh[{mesh.names[-1]!r}], plan)",
        )
    reading = Reading()
    if isinstance(style, _InputOutput):
        _read_inputs(style.prepare_module_input, reading)
        _read_outputs(style.prepare_module_output, reading)
    elif isinstance(style, PrepareModuleInput) and _kept(
        style, PrepareModuleInput, "_apply _prepare_input_fn _prepare_input_kwarg_fn"
    ):
        _read_inputs(style, reading)
    elif isinstance(style, PrepareModuleOutput) and _kept(
        style, PrepareModuleOutput, "_apply _prepare_out_fn"
    ):
        _read_outputs(style, reading)
    else:
        _Witness(target, mesh, reading).watch()
    _refuse_partial(target, reading)
    return reading


def _kept(style: object, base: type, methods: str) -> bool:
    """Whether the style has these methods of its base and not its own."""
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
                    f"{placement!r} as a layout of what goes in or out is not something XLA can be "
                    "told: under SPMD every value is whole, and XLA sums partial ones itself",
                    "write Replicate() or Shard(dim) for it",
                )


class _Witness:
    """Lets a style act on its module, and writes down what it asks for."""

    def __init__(self, target: StyledModule, mesh: Mesh, reading: Reading) -> None:
        self._target, self._mesh, self._reading = target, mesh, reading
        self._asked: dict[int, tuple[Mesh, tuple[Any, ...]]] = {}
        self._kept: list[Any] = []  # so that no id is used twice

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
                    "name modules inside it, or give its parameters placements: "
                    f'"{self._target.name}.weight": Shard(0)',
                ) from error
            except Exception as error:
                raise self._refused(
                    f"the style fails here with {type(error).__name__}: {error}",
                    "a style of your own may call distribute_module and distribute_tensor; it has "
                    "no process group and no rank to ask for",
                ) from error
        for key, asked in self._asked.items():
            if key not in names:
                raise self._refused(
                    "it distributes a tensor that is no parameter or buffer of the module",
                    "distribute the module's own parameters, whole",
                )
            self._reading.parameters[names[key]] = asked

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
                "it distributes another module than the one it was given for",
                "name that module in the plan",
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
                "it distributes over another mesh than the one it was given",
                "use the mesh that the style is called with",
            )
        asked = tuple(placements or [Replicate()] * len(device_mesh.names))
        self._asked[id(tensor)] = (device_mesh, asked)
        self._kept.append(tensor)
        return tensor

    def from_local(self, tensor: Any, device_mesh: Any, placements: Any, **_: object) -> Any:
        """As a partition function uses it: on a parameter of which every rank has all."""
        if any(not isinstance(each, Replicate) for each in placements):
            raise self._refused(
                f"DTensor.from_local with {list(placements)} makes a whole of parts that ranks "
                "hold, and under SPMD there is one process, which holds the whole",
                "use distribute_tensor",
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
            f"it has an {what} function of its own, which works on DTensors at run time, and "
            "under SPMD there are none",
            f"leave the function out and set {what}_layouts, or add PrepareModule"
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
    """Takes back what a style changes in the modules; changes beyond placing are refused."""
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
        raise refused(problem, "let it only place parameters, with distribute_tensor")


def _same_values(now: Any, was: Any) -> bool:
    """Whether a tensor is the one that it was, or that one's values in another object."""
    if now is None or now.shape != was.shape or now.device != was.device:
        return False
    return now is was or was.device.type != "cpu" or now.data_ptr() == was.data_ptr()


def _beyond_placing(module: Any, was: dict[str, dict[Any, Any]]) -> str | None:
    """What a style did to a module beside putting distributed parameters in place of its own."""
    if any(was[name] != dict(getattr(module, name)) for name in _TABLES[2:]):
        return "it adds hooks or modules, which would work on DTensors at run time"
    for name in _TABLES[:2]:
        now = getattr(module, name)
        if now.keys() != was[name].keys():
            return (
                f"it makes other parameters: {', '.join(map(str, now.keys() ^ was[name].keys()))}"
            )
        for key, tensor in was[name].items():
            if tensor is not None and not _same_values(now[key], tensor):
                return f"it replaces {key} by another tensor"
    return None
