"""Processes that notebook code forks itself (`multiprocessing.Process`), in which it may launch.

Ranks of such a process can share a lock or an event with the notebook only if its semaphores have
names from before the fork: afterwards two processes use them, and nobody can tell how.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.in_place import InPlace, Place
from xla_nb.protocol import parts, shared

_MAIN = "__main__"
_MANY = 1000  # a longer list is data
_MOST = 100_000  # objects that are looked at


@functools.cache
def _forks() -> InPlace:
    """Those of this process."""
    return InPlace([Place("multiprocessing.context", "ForkProcess._Popen", _fork)])


def turn_on() -> None:
    _forks().turn_on()


def turn_off() -> None:
    _forks().turn_off()


def _fork(process_obj):  # type: ignore[no-untyped-def]
    from multiprocessing.popen_fork import Popen

    from xla_nb.dropin.forks import before

    before(process_obj)
    return Popen(process_obj)


def before(process: Any) -> None:
    """Give names to the primitives that a process of the notebook's own code is about to have.

    It keeps them until it has ended: one that is given away is the process's alone, and a name ends
    with its primitive in the notebook."""
    # Whatever an object does that is looked at, or where no semaphores are left, the process is
    # started: its ranks will have their own, and a note says so.
    with contextlib.suppress(Exception):
        if _is_own(process._target) or _is_own(type(process)):
            process._xla_nb_primitives = found = list(_primitives((type(process), vars(process))))
            shared.give_names(found)


def _is_own(made: Any) -> bool:
    while isinstance(made, functools.partial):
        made = made.func
    return getattr(made, "__module__", None) == _MAIN


def _primitives(obj: Any) -> Iterator[Any]:
    """Those in reach of an object: in what it holds, and in what the notebook's functions use."""
    seen: dict[int, Any] = {}  # with the objects, whose ids are theirs as long as they live
    left = [obj]
    while left and len(seen) < _MOST:
        one = left.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if shared.made_by(one):
            yield one
        else:
            left += _parts(one)


def _parts(obj: Any) -> list[Any]:
    match obj:
        case tuple() | list() | set() | frozenset():
            return list(obj) if len(obj) <= _MANY else []
        case dict():
            return list(obj.values()) if len(obj) <= _MANY else []
        case functools.partial():
            return [obj.func, obj.args, obj.keywords]
        case types.MethodType():
            return [obj.__self__, obj.__func__]
        case types.FunctionType():
            return _used(obj) if _is_own(obj) else []
        case type():
            return list(vars(obj).values()) if _is_own(obj) else []
    if _is_own(type(obj)):
        return [type(obj), getattr(obj, "__dict__", None)]
    return []


def _used(function: types.FunctionType) -> list[Any]:
    """What a function has in its closure, its defaults and the global names of its code."""
    names = parts.names_in(function.__code__) & function.__globals__.keys()
    used = [function.__globals__[name] for name in names]
    used += map(parts.content, function.__closure__ or ())
    return [*used, function.__defaults__, function.__kwdefaults__]
