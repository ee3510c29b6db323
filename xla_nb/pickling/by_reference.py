"""Functions, classes and modules that are sent by their names, and which are not.

The notebook may have put functions and classes in the place of a module's own: `F.relu =
traced(F.relu)`. On ranks the module has its own under such a name: what the notebook has put there
is sent as it is.
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

_SET = (
    "`{}` was set in the notebook: ranks get it only through values that refer to it, not in the "
    "module"
)


def reduced(definition: Any, notes: set[str]) -> Any:
    """A function, a cache or a class by its name, as a reducer's value, with what is to be said of
    it; NotImplemented where pickle finds it by that, None where it is to be sent as it is."""
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
    if not is_own(module):  # which ranks' modules are given
        notes.add(note_of(module.__name__, definition.__qualname__))
    return None


def reduced_module(module: types.ModuleType) -> Any:
    """A module whose class is not Python's own, by a name under which this process has it, or as
    what another module has under its name (`torch.ops.aten`); NotImplemented if there is none.

    Plain modules are left to cloudpickle, but for one of whose name there is another.
    """
    if type(module) is types.ModuleType:
        if sys.modules.get(module.__name__, module) is module:
            return NotImplemented
        state = {key: value for key, value in vars(module).items() if key != "__builtins__"}
        return rebuild.new_module, (module.__name__, state)
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


# What the notebook has put into modules


def methods_in(cls: type) -> Iterator[str]:
    """The names of the notebook's methods in a class of a module."""
    return (
        name for name, method in code_facts.functions_in(cls) if code_facts.is_the_notebooks(method)
    )


def names_in(module: types.ModuleType) -> Iterator[str]:
    """The names under which a module has functions and classes of the notebook."""
    content = vars(module)
    for name, value in list(content.items()):
        if type(value) is types.FunctionType:  # a module may have thousands
            is_plain = value.__globals__ is content and not value.__dict__
            if not is_plain and code_facts.is_the_notebooks(value):
                yield name
        elif issubclass(type(value), type) and value.__module__ == "__main__":
            yield name  # `issubclass` asks nothing of a library's stand-ins


def note_of(module: str, name: str) -> str:
    """Of what the notebook has put into a module, or a class of it, and ranks do not have there."""
    return _SET.format(f"{module}.{name}")
