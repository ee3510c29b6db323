"""Names of live objects of the notebook, read without running user code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType


def _static_attribute(value: object, name: str) -> object:
    """An attribute of the object or its type, read without running user code."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


def names_of(value: object, values: Mapping[str, object]) -> list[str]:
    """The global names of this very object in the notebook."""
    return [
        name for name, other in list(values.items()) if other is value and not name.startswith("_")
    ]


def name_of(value: object, attribute: str = "__name__") -> str:
    """The `__name__` of a function or class; an empty string for other objects."""
    name = _static_attribute(value, attribute)
    return name if isinstance(name, str) else ""


def in_code(name: str, value: object, values: Mapping[str, object]) -> tuple[str, str, object]:
    """The name of a value in code, or ""; and the object whose parts to inspect, after the name
    under which it appears: the instance, for a method that has no name itself."""
    names = [name] if name in values else names_of(value, values)
    if names or "[" in name:  # an item of the arguments
        label = (names or [name])[0]
        return label, label, value
    if not isinstance(value, MethodType | BuiltinMethodType):
        label = name_of(value)
        return label, label or ("partial" if isinstance(value, partial) else "self"), value
    instance = value.__self__
    owner = next(iter(names_of(instance, values)), "")
    return f"{owner or type(instance).__name__}.{value.__name__}", owner or "self", instance


def star_names(module: str) -> set[str] | None:
    """The names that `from module import *` binds; None if the module is not loaded."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return None
    namespace = vars(loaded)
    public = namespace.get("__all__") or [name for name in namespace if not name.startswith("_")]
    return {str(name) for name in public}


def script(values: Mapping[str, object]) -> tuple[str, ...]:
    """A script's file, and the name given to `python -m`; empty for a notebook."""
    file, spec = values.get("__file__"), values.get("__spec__")
    if not isinstance(file, str):
        return ()
    return (file, spec.name) if isinstance(spec, ModuleSpec) else (file,)
