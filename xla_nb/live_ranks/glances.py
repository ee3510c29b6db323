"""What a thing consists of, at a glance: the same objects as last time, and it has not changed.

Only what can be told by identity is looked at: constants, code, and plain containers of these. Of
anything else a pickle has to tell.
"""

from __future__ import annotations

import types
from typing import Any

from xla_nb.pickling import code_facts

_MOST = 2000  # objects, beyond which a pickle is as fast
_STEADY = {*code_facts.PLAIN, types.FunctionType, types.ModuleType}
_WRAPPERS = {staticmethod, classmethod}
_ACCESSORS = "fget", "fset", "fdel", "__doc__"
_END = object()  # of a container


class _Unclear(Exception):
    """Only a pickle can tell."""


def glance(obj: object, whole: bool) -> list[object] | None:
    """The objects that something consists of, itself included; None if unclear. Of a definition
    these are what it holds only where it is looked at `whole`."""
    seen: list[object] = []
    try:
        _see(obj, seen, whole)
    except (_Unclear, RecursionError):
        return None
    return seen


def same(before: list[object] | None, now: list[object] | None) -> bool:
    """Whether a thing consists of the very same objects as before."""
    if before is None or now is None or len(before) != len(now):
        return False
    return all(one is other for one, other in zip(before, now, strict=True))


def _see(part: Any, seen: list[object], whole: bool = False) -> None:
    """Note an object and what it holds; of a definition that something holds, itself alone."""
    if len(seen) > _MOST:
        raise _Unclear
    seen.append(part)
    kind = type(part)
    if whole and kind is types.FunctionType:
        _see_function(part, seen)
    elif whole and kind is types.CellType:
        _see(code_facts.content(part), seen)
    elif whole and issubclass(kind, type):
        _see_class(part, seen)
    elif kind not in _STEADY and not issubclass(kind, type):
        _see_inside(part, kind, seen)


def _see_inside(part: Any, kind: type, seen: list[object]) -> None:
    """Note what a container or a wrapper holds."""
    if kind in (tuple, list, set, frozenset):
        for one in part:
            _see(one, seen)
        seen.append(_END)
    elif kind is dict or kind is types.MappingProxyType:
        _see_pairs(part, seen)
    elif kind is property:
        for name in _ACCESSORS:
            _see(getattr(part, name), seen)
    elif kind is types.BuiltinFunctionType:  # `[].append` has the list
        _see(part.__self__, seen)
    elif kind in _WRAPPERS:
        _see(part.__func__, seen)
        _see_pairs(vars(part), seen)
    elif kind is types.GenericAlias:
        seen.append(part.__origin__)
        _see(part.__args__, seen)
    else:
        raise _Unclear


def _see_pairs(mapping: Any, seen: list[object]) -> None:
    for key, value in mapping.items():
        _see(key, seen)
        _see(value, seen)
    seen.append(_END)


def _see_function(function: types.FunctionType, seen: list[object]) -> None:
    seen += function.__code__, *(function.__closure__ or ()), _END  # cells are units of their own
    for name in (*code_facts.ATTRIBUTES, "__name__", "__defaults__", "__kwdefaults__"):
        _see(getattr(function, name), seen)
    _see_pairs(vars(function), seen)


def _see_class(cls: type, seen: list[object]) -> None:
    if type(cls) is not type:  # a metaclass may keep what is not in the class
        raise _Unclear
    seen += cls.__name__, cls.__qualname__, *cls.__bases__, _END
    for name, part in vars(cls).items():
        if name != "__slotnames__" and not code_facts.is_made_by_type(cls, part):
            seen.append(name)
            _see(part, seen)
