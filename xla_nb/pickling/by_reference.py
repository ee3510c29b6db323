"""Decide which functions, classes and modules are sent by name.

The notebook may have replaced functions and classes of a module: `F.relu = traced(F.relu)`. On
ranks the module keeps its own under such a name, and the notebook's replacement is sent as it is.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.pickling import code_facts, rebuild, refusals
from xla_nb.pickling.libraries import torch_values
from xla_nb.pickling.module_objects import is_own

_SET_NOTE = (
    "`{}` was set in the notebook: ranks get it only through values that refer to it, not in the "
    "module"
)


def reduced(definition: Any, notes: set[str]) -> Any:
    """Return the reducer value of a function, cache or class by name, adding notes for the user;
    NotImplemented if pickle finds it by its name, None if it must be sent as it is."""
    if isinstance(definition, types.FunctionType):
        for reduce in torch_values.reduced_step, refusals.reduce_tee:
            if (instead := reduce(definition)) is not NotImplemented:
                return instead
    if not code_facts.is_found_by_name(definition):
        place = code_facts.place_of(definition)
        return (rebuild.held_by_module, (*place, type(definition).__name__)) if place[1] else None
    if not code_facts.is_the_notebooks(definition):
        return NotImplemented
    module = sys.modules[definition.__module__]
    if not is_own(module):  # own modules are set on ranks
        notes.add(note_of(module.__name__, definition.__qualname__))
    return None


def reduced_module(module: types.ModuleType) -> Any:
    """Return the reducer value of a module of a custom class: a name under which this process has
    it, or an attribute of another module (`torch.ops.aten`); NotImplemented if there is none.

    Plain modules are left to cloudpickle, except one whose name belongs to another module.
    """
    if type(module) is types.ModuleType:
        if sys.modules.get(module.__name__, module) is module:
            return NotImplemented
        state = {key: value for key, value in vars(module).items() if key != "__builtins__"}
        return rebuild.new_module, (module.__name__, state)
    if (name := _name_of(module)) is not None:
        return importlib.import_module, (name,)
    package, _, last = module.__name__.rpartition(".")
    parent = sys.modules.get(package)
    if isinstance(parent, types.ModuleType) and vars(parent).get(last) is module:
        return getattr, (parent, last)
    return NotImplemented


def _name_of(module: types.ModuleType) -> str | None:
    """Return the name by which ranks can import a module; they cannot import one that the notebook
    created."""
    if vars(module).get("__spec__") is None and type(module).__module__ == "__main__":
        return "__main__" if module is sys.modules["__main__"] else None
    if sys.modules.get(module.__name__) is module:
        return module.__name__
    return next((name for name, other in list(sys.modules.items()) if other is module), None)


# Replacements by the notebook


def methods_in(cls: type) -> Iterator[str]:
    """Yield the names of the notebook's methods in a module's class."""
    return (
        name for name, method in code_facts.functions_in(cls) if code_facts.is_the_notebooks(method)
    )


def names_in(module: types.ModuleType) -> Iterator[str]:
    """Yield the names under which a module holds functions and classes of the notebook."""
    content = vars(module)
    for name, value in list(content.items()):
        if type(value) is types.FunctionType:  # a module may have thousands
            is_plain = value.__globals__ is content and not value.__dict__
            if not is_plain and code_facts.is_the_notebooks(value):
                yield name
        elif issubclass(type(value), type) and value.__module__ == "__main__":
            yield name  # `issubclass` does not touch libraries' stand-ins


def note_of(module: str, name: str) -> str:
    """Return the note for what the notebook set in a module, or in a class of it, and ranks do not
    have there."""
    return _SET_NOTE.format(f"{module}.{name}")
