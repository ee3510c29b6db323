"""What a thing consists of, at a glance: the same objects as last time, and it has not changed.

Only what can be told by identity is looked at: constants, code, and plain containers of these. Of
anything else a pickle has to tell.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from xla_nb.pickling import code_facts, rebuild

_MOST = 2000  # objects, beyond which a pickle is as fast
_STEADY = {*code_facts.PLAIN, types.FunctionType, types.ModuleType}
_ACCESSORS = "fget", "fset", "fdel", "__doc__"
_OF_FUNCTIONS = *code_facts.ATTRIBUTES, "__code__", "__name__", "__defaults__", "__kwdefaults__"
_END = float("nan")  # of a container: an object that nobody else has
_UNCLEAR = object()


def glance(obj: Any, whole: bool) -> list[object] | None:
    """The objects that something consists of, itself included; None if only a pickle can tell. Of a
    class, and a function without a closure, these are what it holds only where it is looked at
    `whole`."""
    inside = set[int]()
    seen, todo = ([obj], _in_whole(obj)) if whole else ([], [obj])
    while todo:
        part = todo.pop()
        kind = type(part)
        seen.append(part)
        if len(seen) > _MOST or _is_of_no_module(part, kind):
            return None
        if kind is types.FunctionType and part.__closure__:
            held: Iterable[Any] = _in_function(part)
        elif kind in _STEADY or issubclass(kind, type):
            continue
        elif kind in _PARTS:
            held = _PARTS[kind](part)
        else:
            return None
        if id(part) not in inside:  # it may lead to itself
            inside.add(id(part))
            todo += (_END, *reversed([*held]))
    return seen


def same(before: list[object] | None, now: list[object] | None) -> bool:
    """Whether a thing consists of the very same objects as before."""
    if before is None or now is None or len(before) != len(now):
        return False
    return all(one is other for one, other in zip(before, now, strict=True))


def _pairs(mapping: Any) -> Iterable[Any]:
    return itertools.chain.from_iterable(mapping.items())


#: What is in such a one.
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((tuple, list, set, frozenset), iter),
    **dict.fromkeys((dict, types.MappingProxyType), _pairs),
    **dict.fromkeys((staticmethod, classmethod), lambda made: (made.__func__, vars(made))),
    property: lambda made: [getattr(made, name) for name in _ACCESSORS],
    types.BuiltinFunctionType: lambda method: [method.__self__],  # `[].append` has the list
    types.GenericAlias: lambda alias: [alias.__origin__, alias.__args__],
    types.CellType: lambda cell: [rebuild.content(cell)],
}


def _in_function(function: types.FunctionType) -> list[Any]:
    own = [getattr(function, name) for name in _OF_FUNCTIONS]
    return [*own, vars(function), *(function.__closure__ or ())]


def _in_whole(definition: Any) -> list[Any]:
    """What a definition holds, the last first."""
    if isinstance(definition, types.FunctionType):
        return _in_function(definition)[::-1]
    if type(definition) is not type:
        return [_UNCLEAR]  # a metaclass may keep what is not in the class
    own = {
        name: part
        for name, part in vars(definition).items()
        if name != "__slotnames__" and not code_facts.is_made_by_type(definition, part)
    }
    names = definition.__name__, definition.__qualname__
    return [*names, *definition.__bases__, _END, *_pairs(own)][::-1]


def _is_of_no_module(part: Any, kind: type) -> bool:
    """Whether it is a module that nobody can import, or a function in one: what that holds is sent
    with it."""
    if kind is types.ModuleType:
        return sys.modules.get(vars(part).get("__name__")) is not part
    if kind is not types.FunctionType:
        return False
    name = part.__globals__.get("__name__")
    return name != "__main__" and not code_facts.is_modules(part.__globals__, name)
