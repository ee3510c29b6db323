"""Functions, classes and modules that are sent by their names, and which are not."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from xla_nb.pickling import code_facts, replacements
from xla_nb.pickling.libraries import torch_values
from xla_nb.pickling.module_objects import is_own


def reduced(definition: Any, notes: set[str]) -> Any:
    """A function or a class by its name, as a reducer's value, with what is to be said of it;
    NotImplemented where pickle finds it by that, None where it is to be sent as it is."""
    if isinstance(definition, types.FunctionType):
        step = torch_values.reduced_step(definition)
        if step is not NotImplemented:
            return step
    return _reduced(definition, code_facts.is_found_by_name(definition), notes)


def reduced_cache(cache: Any, notes: set[str]) -> Any:
    """The same of a cache around a function."""
    return _reduced(cache, code_facts.is_found_by_name(cache), notes)


def reduced_module(module: types.ModuleType) -> Any:
    """A module whose class is not Python's own, by a name under which this process has it, or as
    what another module has under its name (`torch.ops.aten`); NotImplemented if there is none.

    Plain modules are left to cloudpickle, which does so.
    """
    if type(module) is types.ModuleType:
        return NotImplemented
    if (name := _name_of(module)) is not None:
        return importlib.import_module, (name,)
    package, _, last = module.__name__.rpartition(".")
    whole = sys.modules.get(package)
    if isinstance(whole, types.ModuleType) and vars(whole).get(last) is module:
        return getattr, (whole, last)
    return NotImplemented


def _name_of(module: types.ModuleType) -> str | None:
    """The name by which ranks can import it; one that the notebook has made they cannot."""
    if vars(module).get("__spec__") is None and type(module).__module__ == "__main__":
        return "__main__" if module is sys.modules["__main__"] else None
    if sys.modules.get(module.__name__) is module:
        return module.__name__
    return next((name for name, one in list(sys.modules.items()) if one is module), None)


def _reduced(definition: Any, is_found: bool, notes: set[str]) -> Any:
    if not is_found:
        found = replacements.reduced(definition)
        return None if found is NotImplemented else found
    if replacements.is_the_notebooks(definition):
        module = sys.modules[definition.__module__]
        if not is_own(module):  # which ranks' modules are given
            notes.add(replacements.note_of(module.__name__, definition.__qualname__))
        return None
    return NotImplemented
