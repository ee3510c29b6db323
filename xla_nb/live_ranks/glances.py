"""What a thing consists of, at a glance: the same objects as last time, and it has not changed.

Only what can be told by identity is looked at: constants, code, and plain containers of these. Of
anything else a pickle has to tell.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

from xla_nb.pickling import code_facts, rebuild

_MOST = 2000  # objects, beyond which a pickle is as fast
_STEADY = {*code_facts.PLAIN, types.FunctionType, types.ModuleType}
_WRAPPERS = {staticmethod, classmethod}
_ACCESSORS = "fget", "fset", "fdel", "__doc__"
_END = object()  # of a container


class _Unclear(Exception):
    """Only a pickle can tell."""


def glance(obj: Any, whole: bool) -> list[object] | None:
    """The objects that something consists of, itself included; None if unclear. Of a definition
    these are what it holds only where it is looked at `whole`."""
    look = _Look()
    try:
        look.see_whole(obj) if whole else look.see(obj)
    except (_Unclear, RecursionError):
        return None
    return look.seen


def same(before: list[object] | None, now: list[object] | None) -> bool:
    """Whether a thing consists of the very same objects as before."""
    if before is None or now is None or len(before) != len(now):
        return False
    return all(one is other for one, other in zip(before, now, strict=True))


class _Look:
    """Notes objects and what they hold; of a class, and a function without a closure, that
    something holds itself alone."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self._closures: set[int] = set()

    def see(self, part: Any) -> None:
        if len(self.seen) > _MOST:
            raise _Unclear
        self.seen.append(part)
        kind = type(part)
        if _is_of_no_module(part, kind):
            raise _Unclear
        if kind is types.FunctionType and part.__closure__:
            self._see_closure(part)
        elif kind not in _STEADY and not issubclass(kind, type):
            self._see_inside(part, kind)

    def _see_inside(self, part: Any, kind: type) -> None:
        """Note what a container or a wrapper holds."""
        if kind in (tuple, list, set, frozenset):
            self._see_all(part)
        elif kind is dict or kind is types.MappingProxyType:
            self._see_pairs(part)
        elif kind is property:
            self._see_all(getattr(part, name) for name in _ACCESSORS)
        elif kind is types.BuiltinFunctionType:  # `[].append` has the list
            self.see(part.__self__)
        elif kind in _WRAPPERS:
            self.see(part.__func__)
            self._see_pairs(vars(part))
        elif kind is types.GenericAlias:
            self.seen.append(part.__origin__)
            self.see(part.__args__)
        else:
            raise _Unclear

    def _see_all(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.see(part)
        self.seen.append(_END)

    def _see_pairs(self, mapping: Any) -> None:
        for key, value in mapping.items():
            self.see(key)
            self.see(value)
        self.seen.append(_END)

    def _see_closure(self, function: types.FunctionType) -> None:
        if id(function) not in self._closures:  # it may be in one of its own variables
            self._closures.add(id(function))
            self._see_function(function)
            self.seen += function.__closure__ or ()
            self._see_all(map(rebuild.content, function.__closure__ or ()))

    def _see_function(self, function: types.FunctionType) -> None:
        self.seen.append(function.__code__)
        self._see_all(getattr(function, name) for name in _OF_FUNCTIONS)
        self._see_pairs(vars(function))

    def see_whole(self, definition: Any) -> None:
        if isinstance(definition, types.FunctionType):
            self.seen.append(definition)
            self._see_function(definition)
        elif type(definition) is type:
            self._see_class(definition)
        else:
            raise _Unclear  # a metaclass may keep what is not in the class

    def _see_class(self, cls: type) -> None:
        self.seen += cls, cls.__name__, cls.__qualname__, *cls.__bases__, _END
        for name, part in vars(cls).items():
            if name != "__slotnames__" and not code_facts.is_made_by_type(cls, part):
                self.seen.append(name)
                self.see(part)


def _is_of_no_module(part: Any, kind: type) -> bool:
    """Whether it is a module that nobody can import, or a function in one: what that holds is sent
    with it."""
    if kind is types.ModuleType:
        return sys.modules.get(vars(part).get("__name__")) is not part
    if kind is not types.FunctionType:
        return False
    name = part.__globals__.get("__name__")
    return name != "__main__" and not code_facts.is_modules(part.__globals__, name)


_OF_FUNCTIONS = *code_facts.ATTRIBUTES, "__name__", "__defaults__", "__kwdefaults__"
