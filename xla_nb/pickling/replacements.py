"""Functions and classes of the notebook in the place of a module's own: `F.relu = traced(F.relu)`.

Pickle finds functions and classes by their names. On ranks the module has its own under such a
name: what the notebook has put there is sent as it is.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.pickling import rebuild

_SET = (
    "`{}` was set in the notebook: ranks have it only where a value refers to it, not in the module"
)


def is_the_notebooks(definition: Any) -> bool:
    """Whether a function or a class, under whatever name, is of the notebook's code: also a
    function that a library's decorator has made of the notebook's."""
    main = vars(sys.modules["__main__"])
    if not isinstance(definition, type):
        return any(
            getattr(one, "__globals__", None) is main for one in rebuild.unwrapped(definition)
        )
    if definition.__module__ == "__main__":
        return True
    found = [part for _, part in functions_in(definition)]
    bodies = {
        one.__code__.co_qualname.rpartition(".")[0] for one in found if one.__globals__ is main
    }
    if definition.__qualname__ not in bodies:  # the notebook has set methods in a library's
        return False
    module = sys.modules.get(definition.__module__)
    return not any(one.__globals__ is getattr(module, "__dict__", None) for one in found)


def functions_in(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """What a class's own body or somebody else has put into it, each under its name."""
    for name, part in list(vars(cls).items()):
        kind, function = type(part), part
        if kind is property:
            function = part.fget
        elif kind is staticmethod or kind is classmethod:
            function = part.__func__
        if type(function) is types.FunctionType:
            yield name, function


def methods_in(cls: type) -> Iterator[str]:
    """The names of the notebook's methods in a class of a module."""
    return (name for name, method in functions_in(cls) if is_the_notebooks(method))


def names_in(module: types.ModuleType) -> Iterator[str]:
    """The names under which a module has functions and classes of the notebook."""
    content = vars(module)
    for name, value in list(content.items()):
        if type(value) is types.FunctionType:  # a module may have thousands
            is_plain = value.__globals__ is content and not value.__dict__
            if not is_plain and is_the_notebooks(value):
                yield name
        elif issubclass(type(value), type) and value.__module__ == "__main__":
            yield name  # `issubclass` asks nothing of a library's stand-ins


def reduced(obj: Any) -> Any:
    """A class or a built-in function whose name in its module has something of the notebook's now,
    by that name; NotImplemented for all others."""
    module, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if isinstance(obj, types.BuiltinFunctionType) and isinstance(obj.__self__, types.ModuleType):
        module = obj.__self__.__name__
    elif not isinstance(obj, type):
        return NotImplemented
    found: Any = sys.modules.get(module or "")
    if not isinstance(path, str) or found is None or found is sys.modules["__main__"]:
        return NotImplemented
    for part in path.split("."):
        found = getattr(found, part, None)  # nor has any `<locals>`
    if found is None or found is obj or not is_the_notebooks(found) or is_the_notebooks(obj):
        return NotImplemented
    return rebuild.held_by_module, (module, path, type(obj).__name__)


def note_of(module: str, name: str) -> str:
    """Of what the notebook has put into a module, or a class of it, and ranks do not have there."""
    return _SET.format(f"{module}.{name}")
