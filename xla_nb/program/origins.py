"""The statement that created a live object of the notebook, where it must be executed again.

An object's own code takes precedence over the newest text that binds its name. No user code may
run, and where the origin is uncertain there is none: a wrong one would change results silently.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FunctionType, MethodType

from xla_nb.program.cells import DEFINITION, FUNCTION, Cells, Statement, span
from xla_nb.program.names import names_in

# --- names of an object -----------------------------------------------------------------------


def module_of(value: object) -> str:
    """The object's `__module__`, or an empty string."""
    source = vars(value) if isinstance(value, type) else None
    found = source.get("__module__") if source is not None else _static(value, "__module__")
    return found if isinstance(found, str) else ""


def _static(value: object, name: str) -> object:
    """An attribute of the object or its type, read without running user code."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


def own_name(value: object) -> tuple[str, str]:
    """The object's `__module__` and `__qualname__`; empty strings if it lacks one."""
    module, attribute = _static(value, "__module__"), _static(value, "__qualname__")
    named = isinstance(module, str) and isinstance(attribute, str)
    return (str(module), str(attribute)) if named else ("", "")


def names_of(value: object, values: Mapping[str, object]) -> list[str]:
    """The global names of this very object in the notebook."""
    return [
        name for name, other in list(values.items()) if other is value and not name.startswith("_")
    ]


def name_of(value: object) -> str:
    """The `__name__` of a function or class; an empty string for other objects."""
    name = _static(value, "__name__")
    return name if isinstance(name, str) else ""


def in_code(name: str, value: object, values: Mapping[str, object]) -> tuple[str, str, object]:
    """How code calls a value, "" if by no name; and whose parts are to be looked at, under which
    name: the instance's, of a method that has no name itself."""
    own = [name] if name in values else names_of(value, values)
    if own or "[" in name:  # of the arguments
        shown = (own or [name])[0]
        return shown, shown, value
    if not isinstance(value, MethodType | BuiltinMethodType):
        shown = name_of(value)
        return shown, shown or ("partial" if isinstance(value, partial) else "self"), value
    held = value.__self__
    owner = next(iter(names_of(held, values)), "")
    return f"{owner or type(held).__name__}.{value.__name__}", owner or "self", held


def unwrapped(value: object) -> Iterator[object]:
    """The object and what it wraps, as functools.wraps records it."""
    for _ in range(100):
        yield value
        value = _static(value, "__wrapped__") if not isinstance(value, type) else None
        if value is None:
            return


def star_names(module: str) -> set[str] | None:
    """The names that `from module import *` binds; None if the module is not loaded."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return None
    content = vars(loaded)
    public = content.get("__all__") or [name for name in content if not name.startswith("_")]
    return {str(name) for name in public}


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, object]:
    """What an import binds, by name, as far as that is loaded already."""
    found: dict[str, object] = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = sys.modules.get(node.module or "") if node.level == 0 else None
            if module is not None and alias.name in vars(module):
                found[alias.asname or alias.name] = vars(module)[alias.name]
        elif alias.name in sys.modules:
            name = alias.asname or alias.name.partition(".")[0]
            found[name] = sys.modules[alias.name if alias.asname else name]
    return found


def script(values: Mapping[str, object]) -> tuple[str, ...]:
    """A script's file, and the name that `python -m` was given; a notebook has neither."""
    file, spec = values.get("__file__"), values.get("__spec__")
    if not isinstance(file, str):
        return ()
    return (file, spec.name) if isinstance(spec, ModuleSpec) else (file,)


# --- the statement ----------------------------------------------------------------------------


def definition(name: str, value: object, cells: Cells, mains: set[str]) -> Statement | None:
    """The statement that created this object, or None if that is uncertain."""
    if isinstance(value, type):
        if module_of(value) not in mains or "<locals>" in value.__qualname__:
            return None
        found = _class_statement(value, cells)
    else:
        found = _function_statement(value, cells) or _decorated(name, value, cells)
    if found is None or name in names_in([found.node]).now:  # class Net(Net): ...
        return None
    return found


def _function_statement(value: object, cells: Cells) -> Statement | None:
    for depth, function in enumerate(unwrapped(value)):
        if isinstance(function, FunctionType) and "." not in function.__code__.co_qualname:
            found = cells.holding(function.__code__)
            node = found.node if found else None
            own = isinstance(node, FUNCTION) and node.name == function.__code__.co_qualname
            # `f = wrap(f)` leaves a wrapper that the undecorated def alone would not create.
            if own and (depth == 0 or node.decorator_list):  # type: ignore[union-attr]
                return found
    return None


def _class_statement(cls: type, cells: Cells) -> Statement | None:
    own = _own_code(cls)
    for code in own:
        found = cells.holding(code)
        if found and isinstance(found.node, ast.ClassDef) and found.node.name == cls.__name__:
            return found
    if own:
        return None
    line = vars(cls).get("__firstlineno__")  # Python 3.13 and later
    for found in reversed(list(cells.statements())):
        named = isinstance(found.node, ast.ClassDef) and found.node.name == cls.__name__
        if named and line in (None, span(found.node)[0]):
            return found
    return None


def _decorated(name: str, value: object, cells: Cells) -> Statement | None:
    """The definition of an object whose decorator no longer exposes the function."""
    newest = cells.newest(name)
    if newest is None or not isinstance(newest.node, DEFINITION):
        return None
    exact = isinstance(value, FunctionType) and "<locals>" not in value.__qualname__
    return newest if newest.node.decorator_list and not exact else None


def _own_code(cls: type) -> list[CodeType]:
    """The code of the methods written in the class itself."""
    return [
        function.__code__
        for name, value in vars(cls).items()
        for function in method_functions(value)
        if function.__qualname__ == f"{cls.__qualname__}.{name}" and is_from(cls, function)
    ]


def method_functions(value: object) -> Iterator[FunctionType]:
    """The plain functions in a class attribute, such as a method or a property."""
    parts = [value.fget, value.fset] if isinstance(value, property) else [value]
    for part in parts:
        inner = part.__func__ if isinstance(part, staticmethod | classmethod) else part
        yield from [f for f in unwrapped(inner) if isinstance(f, FunctionType)][-1:]


def is_from(cls: type, function: FunctionType) -> bool:
    """Whether the function was written in the class's module, not generated by a library."""
    made = function.__code__.co_filename.startswith("<string>")  # as dataclasses do
    return not made and function.__module__ == cls.__module__
