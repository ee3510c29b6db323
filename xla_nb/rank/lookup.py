"""The object that an expression of names, attributes and keys leads to, found without running
anything: `model.layers[0].weight`, `table["key"]`."""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections.abc import Mapping
from typing import Any, TypeAlias

from xla_nb.rank import static

_KEY = r"""\d+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_FIRST = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(rf"\s*(?:\.\s*([^\W\d]\w*)|\[\s*({_KEY})\s*\])")
#: Such an expression, as a pattern that may stand in others.
EXPRESSION = rf"(?<![\w.\])\"'])[^\W\d]\w*(?:\.[^\W\d]\w*|\[(?:{_KEY})\])*"

Found: TypeAlias = tuple[Any]  # one object, in a tuple since it may be None
#: Parts of a torch module that are attributes of it.
_OF_MODULES = "_parameters", "_buffers", "_modules"


def find(namespace: Mapping[str, object], expression: str) -> Found | None:
    """What it leads to; None if that is not known without running something."""
    first = _FIRST.match(expression)
    if first is None:
        return None
    found = _named(namespace, first[0])
    position = first.end()
    while found is not None and position < len(expression):
        step = _STEP.match(expression, position)
        if step is None:
            return None
        name, key = step.groups()
        found = attribute(found[0], name) if name else item(found[0], ast.literal_eval(key))
        position = step.end()
    return found


def _named(namespace: Mapping[str, object], name: str) -> Found | None:
    if name in namespace:
        return (namespace[name],)
    return (vars(builtins)[name],) if name in vars(builtins) else None


def attribute(value: Any, name: str) -> Found | None:
    """None also for what a property or another descriptor would compute."""
    held = own(value)
    if _is_class(value):
        return _unbound(held[name]) if name in held else None
    kinds = static.mro(type(value))
    of_class = next((one[name] for one in map(static.held_by_class, kinds) if name in one), None)
    if name in held and not _sets(of_class):
        return (held[name],)
    if type(of_class) is types.FunctionType:
        return (types.MethodType(of_class, value),)
    if type(of_class) is classmethod:
        return (types.MethodType(of_class.__func__, type(value)),)
    return None if of_class is None else _unbound(of_class)


def _is_class(value: object) -> bool:
    return issubclass(type(value), type)


def own(value: Any) -> dict[str, Any]:
    """What an object itself holds: a class also what its bases do, a torch module its parameters,
    buffers and modules."""
    held: dict[str, Any] = {}
    if _is_class(value):
        for kind in reversed(static.mro(value)):
            held.update(static.held_by_class(kind))
        return held
    held.update(static.attributes(value))
    if static.is_module(value):
        for kept in _OF_MODULES:
            inside: Any = held.get(kept)
            if issubclass(type(inside), dict):
                held.update((key, one) for key, one in dict.items(inside) if type(key) is str)
    return held


def _sets(found: object) -> bool:
    """Whether this, in a class, comes before what an instance holds, as properties do."""
    kinds = static.mro(type(found))
    return type(found) is not types.MemberDescriptorType and any(
        "__set__" in static.held_by_class(kind) for kind in kinds
    )


def _unbound(found: Any) -> Found | None:
    """What a class gives; None where a descriptor computes it."""
    if type(found) in (staticmethod, classmethod):
        return (found.__func__,)
    computes = any("__get__" in static.held_by_class(kind) for kind in static.mro(type(found)))
    return None if computes and type(found) not in CALLED else (found,)


#: Descriptors that are functions themselves.
CALLED = {
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
}


def item(value: Any, key: Any) -> Found | None:
    """An item of a list, tuple or dict, or a module of a torch container."""
    inside: Any = value
    if static.is_module(value):
        inside, key = static.attributes(value).get("_modules"), str(key)
    kinds = static.mro(type(inside))
    try:
        if list in kinds:
            return (list.__getitem__(inside, key),)
        if tuple in kinds:
            return (tuple.__getitem__(inside, key),)
        return (dict.__getitem__(inside, key),) if dict in kinds else None
    except (LookupError, TypeError):
        return None


def names(value: Any) -> dict[str, str]:
    """The attributes of an object and their kinds, as `dir` finds them where no class says
    otherwise. A module that loads its names late has them in `__all__`."""
    held = own(value)
    listed: Any = held.get("__all__") if types.ModuleType in static.mro(type(value)) else None
    found: dict[str, str] = {}
    if type(listed) in (list, tuple):
        found = dict.fromkeys(filter(_is_text, listed), "instance")
    if not _is_class(value):
        for kind in reversed(static.mro(type(value))):
            found.update((name, kind_of(one)) for name, one in static.held_by_class(kind).items())
    found.update((name, kind_of(one)) for name, one in held.items())
    return {name: kind for name, kind in found.items() if type(name) is str}


def _is_text(value: object) -> bool:
    return type(value) is str


def keys(value: Any) -> list[str]:
    """The keys of a dict that are texts, in order."""
    if dict not in static.mro(type(value)):
        return []
    return [key for key in dict.keys(value) if type(key) is str]


def kind_of(value: object) -> str:
    """`function`, `class`, `module`, `property` or `instance`, as IPython calls them."""
    if _is_class(value):
        return "class"
    if type(value) in CALLED | {types.MethodType, staticmethod, classmethod}:
        return "function"
    if types.ModuleType in static.mro(type(value)):
        return "module"
    is_property = property in static.mro(type(value))
    return "property" if is_property or type(value) in _COMPUTED else "instance"


_COMPUTED = {types.GetSetDescriptorType, types.MemberDescriptorType}
