"""Resolve plans: the modules that each key matches, and the layouts that torch's styles require.

A key matches as in torch's parallelize_module, part by part with wildcards, from the model down.
Unlike there, a key that matches nothing is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.parallel import style as torch_styles

from xla_nb.errors import UsageError
from xla_nb.spmd.sharding import check_placement, named_tensors
from xla_nb.wording import listed


@dataclass(frozen=True)
class Target:
    """A module with a style, or a parameter or buffer with its placements."""

    name: str  # "" for the model itself
    tensor_or_module: Any
    value: Any

    @property
    def where(self) -> str:
        description = (
            type(self.value).__name__
            if isinstance(self.value, ParallelStyle)
            else ", ".join(map(repr, self.value))
        )
        return f"{self.name or 'the model'} ({description})"


def resolve(model: Any, plan: object) -> list[Target]:
    """All matches of the plan, in its order; an empty plan replicates everything."""
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    if not isinstance(plan, Mapping):
        raise UsageError(
            f"A plan must be a dict or a single style, not a {type(plan).__name__}. Map module "
            'names to styles: {"layers.*.in_proj": ColwiseParallel()}.'
        )
    return [target for key, value in plan.items() for target in _find_targets(model, key, value)]


def _find_targets(model: Any, key: Any, value: Any) -> list[Target]:
    is_style = isinstance(value, ParallelStyle)
    placements = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not is_style and not (placements and all(isinstance(p, Placement) for p in placements)):
        raise UsageError(
            f"The plan maps {key!r} to {value!r}, which is neither a ParallelStyle nor a "
            "placement. Use a style such as ColwiseParallel(), or for a parameter Shard(0) or a "
            "list with one placement per mesh axis."
        )
    candidates = _modules(model) if is_style else dict(named_tensors(model))
    names = _match_names(candidates, key)
    if not names:
        kind = "module" if is_style else "parameter or buffer"
        matches = difflib.get_close_matches(str(key), candidates, n=3, cutoff=0.4)
        listing = listed(filter(None, candidates), most=8)
        hint = f"Did you mean {listed(matches, 'or')}?" if matches else f"Names: {listing}."
        raise UsageError(f"The plan's key {key!r} matches no {kind} in the model. {hint}")
    unique_names = {id(candidates[name]) if is_style else name: name for name in names}
    return [
        Target(name, candidates[name], value if is_style else placements)
        for name in unique_names.values()
    ]


def _match_names(names: Iterable[str], key: object) -> list[str]:
    parts = key.split(".") if isinstance(key, str) else []
    paths = ((name, name.split(".")) for name in names)
    return [
        name
        for name, path in paths
        if len(path) == len(parts) and all(map(fnmatchcase, path, parts))
    ]


def _modules(model: Any) -> dict[str, Any]:
    return dict(model.named_modules(remove_duplicate=False))


# --- styles -----------------------------------------------------------------------------------


#: A value's layouts before and after a module's boundary; None leaves the value as it is.
Handover = tuple[Placement, Placement] | None


@dataclass
class Reading:
    """The layouts that a style requires of one module; other inputs and outputs do not change."""

    parameters: dict[str, Placement] = field(default_factory=dict)
    inputs: list[Handover] = field(default_factory=list)
    keywords: dict[str, Handover] = field(default_factory=dict)
    outputs: list[Handover] = field(default_factory=list)


def read(target: Target, axes: tuple[str, ...]) -> Reading | None:
    """Read the layouts that one of torch's styles requires, on a mesh with these axes; None for a
    user-defined style, whose `_apply` must be run. Raises UsageError."""
    style, module = target.value, target.tensor_or_module
    if len(axes) != 1:
        raise UsageError(
            f"{target.where}: a style uses one mesh axis, but this mesh has {len(axes)}: "
            f"{', '.join(map(repr, axes))}. Choose one of them: "
            f"parallelize(model, mesh[{axes[-1]!r}], plan)."
        )
    reading = Reading()
    if isinstance(style, PrepareModuleInputOutput):
        _read_inputs(style.prepare_module_input, reading)
        _read_outputs(style.prepare_module_output, reading)
    elif isinstance(style, PrepareModuleInput):
        _read_inputs(style, reading)
    elif isinstance(style, PrepareModuleOutput):
        _read_outputs(style, reading)
    elif isinstance(style, SequenceParallel):
        reading.parameters = {name: Replicate() for name, _ in module.named_parameters()}
        (split,) = style.sequence_sharding
        reading.inputs = reading.outputs = [(split, split)]
    elif isinstance(style, ColwiseParallel | RowwiseParallel):
        _read_layer(style, module, target, reading)
    else:
        return None
    if type(style).__module__ != torch_styles.__name__:
        raise UsageError(
            f"{target.where}: its changes to torch's style would have no effect, because SPMD has "
            "no DTensors. Derive it from ParallelStyle, or give the module's parameters "
            f'placements: "{target.name}.weight": Shard(0).'
        )
    for handover in [*reading.inputs, *reading.keywords.values(), *reading.outputs]:
        for placement in handover or ():
            check_placement(placement, target.where)
    return reading


def _read_layer(style: Any, module: Any, target: Target, reading: Reading) -> None:
    """Follow the `_partition_` functions and `_apply` of ColwiseParallel and RowwiseParallel."""
    is_linear, by_column = isinstance(module, nn.Linear), isinstance(style, ColwiseParallel)
    if not is_linear and not isinstance(module, nn.Embedding):
        raise UsageError(
            f"{target.where}: this style is for nn.Linear and nn.Embedding, but the module is a "
            f"{type(module).__name__}. Name modules inside it, or give its parameters placements: "
            f'"{target.name}.weight": Shard(0).'
        )
    split = Shard(0 if by_column == is_linear else 1)
    reading.parameters = {name: split for name, _ in module.named_parameters()}
    if not by_column and "bias" in reading.parameters:
        reading.parameters["bias"] = Replicate()
    desired = Shard(-1) if is_linear and not by_column else Replicate()
    reading.inputs = [(style.input_layouts[0], desired)]
    reading.outputs = [(style.output_layouts[0], style.output_layouts[0])]


def _read_inputs(style: Any, reading: Reading) -> None:
    if style.input_layouts is not None:
        pairs = zip(style.input_layouts, style.desired_input_layouts, strict=True)
        reading.inputs = [_handover(*pair) for pair in pairs]
    for name, arriving in style.input_kwarg_layouts.items():
        reading.keywords[name] = _handover(arriving, style.desired_input_kwarg_layouts.get(name))


def _read_outputs(style: Any, reading: Reading) -> None:
    pairs = zip(style.output_layouts, style.desired_output_layouts, strict=True)
    reading.outputs = [_handover(*pair) for pair in pairs]


def _handover(arriving: Any, desired: Any) -> Handover:
    return None if arriving is None else (arriving, arriving if desired is None else desired)
