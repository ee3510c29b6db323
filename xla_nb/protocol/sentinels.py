"""Objects of the notebook whose `__reduce__` looks them up: by name, in their class, in a registry.

Sentinels, singletons and flyweights do. Where a pickle is opened, what they look into is not there
yet, and has to get this very object: it is sent as it is, by its attributes.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from xla_nb.protocol import parts, remake

_PLAIN = {*parts.PLAIN}
_MADE_BY_CALL = frozenset({"__new__", "__init__"})


class Lookups:
    """What is read where objects are made, found by code alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[object, frozenset[int]]] = {}

    def needs_itself(self, obj: object, reduced: Any) -> bool:
        """Whether an object, as `__reduce__` gives it, is made by finding the object."""
        if isinstance(reduced, str):
            return True
        make, arguments = reduced[:2]
        classes = [one for one in arguments if isinstance(one, type)]
        if make is getattr:
            return _is_at(obj, *arguments)
        start: list[object] = [make, *classes]
        called = frozenset[str]()
        if isinstance(make, type):
            start, called = [make], _MADE_BY_CALL
        elif make is copyreg.__newobj__:  # type: ignore[attr-defined]
            start, called = [*classes], frozenset({"__new__"})
        elif not isinstance(make, types.FunctionType | types.MethodType):
            return False
        key = tuple(id(part) for one in start for part in _with_owner(one))
        if key not in self._known:
            self._known[key] = start, frozenset(_read_by(start, called))
        return id(obj) in self._known[key][1]


def reduced(obj: Any) -> Any:
    """An object as a reducer's value, whatever its class says; NotImplemented where its base has no
    way to make another."""
    kind = type(obj)
    base = parts.making(kind)
    if base is not object and not hasattr(base, "__getnewargs__"):
        return NotImplemented
    state = obj.__getstate__()
    fill = None if hasattr(kind, "__setstate__") else remake.fill_instance
    arguments = base, kind, parts.new_arguments(base, obj)
    return remake.new_instance, arguments, state, None, None, state and fill


def _is_at(obj: object, holder: object, name: str, *_: object) -> bool:
    """Whether `getattr` finds the object."""
    owners = holder.__mro__ if isinstance(holder, type) else [holder]
    return any(vars(one).get(name) is obj for one in owners if hasattr(one, "__dict__"))


def _with_owner(make: Any) -> tuple[object, ...]:
    """What tells a method from others: `C.get` is another object each time."""
    return (make.__func__, make.__self__) if isinstance(make, types.MethodType) else (make,)


def _read_by(start: Iterable[object], called: frozenset[str]) -> set[int]:
    """The objects, by id, that code may get at by the names that it has: globals, variables of
    closures, attributes of classes, and what plain containers under these names hold. `called` are
    the methods that it calls anyway."""
    found, names = _reached(start, called)
    if "__new__" not in names:  # else it makes instances without calling their class
        found, _ = _reached(start, called | _MADE_BY_CALL)
    return found


def _reached(start: Iterable[object], called: frozenset[str]) -> tuple[set[int], set[str]]:
    names: set[str] = set(called)
    while True:
        seen: dict[int, object] = {}
        before = len(names)
        todo = list(start)
        while todo:
            part = todo.pop()
            if type(part) not in _PLAIN and id(part) not in seen:
                seen[id(part)] = part
                todo += _parts(part, names)
        if len(names) == before:
            return set(seen), names


def _parts(part: Any, names: set[str]) -> Iterator[object]:
    match part:
        case types.FunctionType():
            names |= (fresh := _names(part.__code__))
            held = [part.__globals__[name] for name in fresh if name in part.__globals__]
            held += map(parts.content, part.__closure__ or ())
            yield from held
            yield from (one for each in held for one in _attributes(each))
        case types.MethodType():
            yield from (part.__func__, part.__self__)
        case staticmethod() | classmethod():
            yield part.__func__
        case property():
            yield part.fget
        case functools.partial():
            yield from (part.func, *part.args, *part.keywords.values())
        case type() if parts.is_made_here(part):
            for one in part.__mro__:
                yield from (value for name, value in vars(one).items() if name in names)
            if "__init__" in names:
                yield vars(type(part)).get("__call__")
        case dict() | weakref.WeakValueDictionary():
            yield from list(part.values())
        case list() | tuple() | set() | frozenset():
            yield from part


def _attributes(obj: object) -> Iterator[object]:
    """Of an object of the notebook's that code names, such as a registry: its class, and what it
    holds."""
    if not isinstance(obj, type) and parts.is_made_here(type(obj)):
        yield type(obj)
        with contextlib.suppress(AttributeError):
            yield from object.__getattribute__(obj, "__dict__").values()


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> frozenset[str]:
    """The names that code has, and texts that may be names."""
    texts = (one for one in code.co_consts if isinstance(one, str))
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(code.co_names).union(texts, *inner)
