"""Functions and classes that are sent by their names, and which are not."""

from __future__ import annotations

import types
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.protocol import optimizers, parts, replaced


def reduced(definition: Any, notes: set[str]) -> Any:
    """A function or a class by its name, as a reducer's value, with what is to be said of it;
    NotImplemented where pickle finds it by that, None where it is to be sent as it is."""
    if isinstance(definition, types.FunctionType):
        step = optimizers.reduced_step(definition)
        if step is not NotImplemented:
            return step
    return _reduced(definition, parts.is_found_by_name(definition), notes)


def reduced_cache(cache: Any, notes: set[str]) -> Any:
    """The same of a cache around a function."""
    return _reduced(cache, cloudpickle._lookup_module_and_qualname(cache) is not None, notes)


def _reduced(definition: Any, is_found: bool, notes: set[str]) -> Any:
    if not is_found:
        found = replaced.reduced(definition)
        return None if found is NotImplemented else found
    if replaced.is_the_notebooks(definition):
        notes.add(replaced.note_of_one_in_place(definition))
        return None
    notes.update(replaced.notes(definition))
    return NotImplemented
