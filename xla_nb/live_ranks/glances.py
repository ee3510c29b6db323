"""Compare an object's parts by identity: if all are the same objects, it has not changed.

Only parts for which identity is enough are compared: constants, code, and plain containers of
these. Anything else must be pickled to find out.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Iterable
from typing import Any

from xla_nb.pickling import code_facts, rebuild

_MAX_OBJECTS = 2000  # objects, beyond which a pickle is as fast
_CONSTANT_TYPES = {*code_facts.PLAIN, types.FunctionType, types.ModuleType}
#: Types whose parts are what the garbage collector sees in them; `[].append` has the list.
_CONTAINERS = {
    *(tuple, list, set, frozenset, types.CellType, types.GenericAlias),
    *(property, staticmethod, classmethod, types.BuiltinFunctionType),
}
_FUNCTION_PARTS = *code_facts.ATTRIBUTES, "__code__", "__name__", "__defaults__", "__kwdefaults__"
_END = float("nan")  # end of a container: an object found nowhere else
_UNKNOWN = object()


def glance(obj: Any, whole: bool) -> list[object] | None:
    """Return the objects of which something consists, itself included; None if only a pickle can
    tell. The contents of a class, or of a function without a closure, are included only if it is
    looked at as a `whole`."""
    expanded = set[int]()
    seen, todo = ([obj], _in_whole(obj)) if whole else ([], [obj])
    while todo:
        part = todo.pop()
        kind = type(part)
        seen.append(part)
        if len(seen) > _MAX_OBJECTS or _is_of_no_module(part, kind):
            return None
        if kind is types.FunctionType and part.__closure__:
            parts: Iterable[Any] = _in_function(part)
        elif kind in _CONSTANT_TYPES or issubclass(kind, type):
            continue
        elif kind in (dict, types.MappingProxyType):
            parts = _pairs(part)
        elif kind in _CONTAINERS:
            parts = gc.get_referents(part)
        else:
            return None
        if id(part) not in expanded:  # it may contain itself
            expanded.add(id(part))
            todo += (_END, *reversed([*parts]))
    return seen


def same(before: list[object] | None, now: list[object] | None) -> bool:
    """True if an object consists of the very same objects as before."""
    if before is None or now is None or len(before) != len(now):
        return False
    return all(first is second for first, second in zip(before, now, strict=True))


def _pairs(mapping: Any) -> Iterable[Any]:
    return itertools.chain.from_iterable(mapping.items())


def _in_function(function: types.FunctionType) -> list[Any]:
    attributes = [getattr(function, name) for name in _FUNCTION_PARTS]
    return [*attributes, vars(function), *(function.__closure__ or ())]


def _in_whole(definition: Any) -> list[Any]:
    """Return the contents of a definition, the last first."""
    if isinstance(definition, types.FunctionType):
        return _in_function(definition)[::-1]
    if type(definition) is not type:
        return [_UNKNOWN]  # a metaclass may keep what is not in the class
    content = {
        name: part
        for name, part in vars(definition).items()
        if name != "__slotnames__" and not rebuild.is_made_by_type(definition, part)
    }
    names = definition.__name__, definition.__qualname__
    return [*names, *definition.__bases__, _END, *_pairs(content)][::-1]


def _is_of_no_module(part: Any, kind: type) -> bool:
    """True for a module that cannot be imported, or a function in one: its contents are sent with
    it."""
    if kind is types.ModuleType:
        return sys.modules.get(vars(part).get("__name__")) is not part
    if kind is not types.FunctionType:
        return False
    name = part.__globals__.get("__name__")
    return name != "__main__" and not code_facts.is_modules(part.__globals__, name)
