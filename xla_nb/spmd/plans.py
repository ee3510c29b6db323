"""Plans: which modules and parameters each key of a plan matches.

A key matches as in torch's parallelize_module, part by part with wildcards, from the model down.
Unlike there, a key that matches nothing is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import Placement
from torch.distributed.tensor.parallel import ParallelStyle

from xla_nb.errors import UsageError
from xla_nb.wording import listed


@dataclass(frozen=True)
class StyledModule:
    """A module with its style; `name` is "" for the model itself."""

    name: str
    module: Any
    style: Any

    @property
    def where(self) -> str:
        return f"{self.name or 'the model'} ({type(self.style).__name__})"


@dataclass(frozen=True)
class PlacedTensor:
    """A parameter or buffer with its placements."""

    name: str
    tensor: Any
    placements: tuple[Any, ...]

    @property
    def where(self) -> str:
        return f"{self.name} ({', '.join(map(repr, self.placements))})"


def resolve(model: Any, plan: object) -> list[StyledModule | PlacedTensor]:
    """Everything the plan matches, in its order; an empty plan replicates everything."""
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    if not isinstance(plan, Mapping):
        raise UsageError(
            f"A plan must be a dict or a single style, not a {type(plan).__name__}. Map module "
            'names to styles: {"layers.*.in_proj": ColwiseParallel()}.'
        )
    targets: list[StyledModule | PlacedTensor] = []
    for key, value in plan.items():
        if isinstance(value, ParallelStyle):
            targets += _styled(model, key, value)
        else:
            targets += _placed(model, key, _placements(key, value))
    return targets


def matches(model: Any, key: str) -> bool:
    """Whether a key names a module, or a parameter or buffer."""
    parts = _parts(key)
    return any(True for _ in _modules(model, parts)) or any(True for _ in _tensors(model, parts))


def _styled(model: Any, key: str, style: Any) -> list[StyledModule]:
    modules = {id(module): (name, module) for name, module in _modules(model, _parts(key))}
    if not modules:
        if any(_tensors(model, _parts(key))):
            raise UsageError(
                f"The plan gives {key!r} the style {type(style).__name__}, but it is a parameter. "
                f'Give the style to its module, or use a placement: "{key}": Shard(0).'
            )
        raise UsageError(_unmatched(key, [name for name, _ in model.named_modules() if name]))
    return [StyledModule(name, module, style) for name, module in modules.values()]


def _placed(model: Any, key: str, placements: tuple[Any, ...]) -> list[PlacedTensor]:
    tensors = list(_tensors(model, _parts(key)))
    if not tensors:
        modules = list(_modules(model, _parts(key)))
        own = [name for _, module in modules for name, _ in _own(module)]
        if own:
            raise UsageError(
                f"The plan gives placements to {key!r}, but it is a module. Give it a style, or "
                f'name its parameters: "{key}.{own[0]}".'
            )
        raise UsageError(_unmatched(key, [name for name, _ in _all_tensors(model)]))
    return [PlacedTensor(name, tensor, placements) for name, tensor in tensors]


def _placements(key: str, value: object) -> tuple[Any, ...]:
    placements = value if isinstance(value, list | tuple) else (value,)
    if not placements or not all(isinstance(each, Placement) for each in placements):
        raise UsageError(
            f"The plan maps {key!r} to {value!r}, which is neither a ParallelStyle nor a "
            "placement. Use a style such as ColwiseParallel(), or for a parameter Shard(0) or a "
            "list with one placement for each axis of the mesh."
        )
    return tuple(placements)


# --- matching ---------------------------------------------------------------------------------


def _parts(key: object) -> list[str]:
    if not isinstance(key, str):
        raise UsageError(f"A plan's keys must be module names, not {key!r}.")
    return key.split(".") if key else []


def _modules(module: Any, parts: list[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not parts:
        yield prefix, module
        return
    for name, child in module._modules.items():
        if child is not None and fnmatchcase(name, parts[0]):
            yield from _modules(child, parts[1:], _joined(prefix, name))


def _tensors(model: Any, parts: list[str]) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in _modules(model, parts[:-1]):
        for name, tensor in _own(module):
            if parts and fnmatchcase(name, parts[-1]):
                yield _joined(prefix, name), tensor


def _own(module: Any) -> Iterator[tuple[str, Tensor]]:
    """A module's own parameters and buffers."""
    for table in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in table.items() if tensor is not None)


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _unmatched(key: str, names: list[str]) -> str:
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.4)
    hint = f"Did you mean {listed(close, 'or')}?" if close else f"Names: {listed(names, most=8)}."
    return f"The plan's key {key!r} matches nothing in the model. {hint}"
