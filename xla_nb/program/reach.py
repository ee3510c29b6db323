"""Which global names the notebook's objects use when they are called, found without calling any."""

from __future__ import annotations

import dis
import functools
import gc
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType

from xla_nb.protocol import parts

_MOST = 10_000  # objects to look at
_READING = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ENDS = (*parts.PLAIN, ModuleType, FrameType)  # nothing is called through these


def names_used_by(namespace: Mapping[str, object], names: Iterable[str]) -> set[str]:
    """The names that the notebook's functions and classes use, through each other, of what is found
    under `names` and in what that holds."""
    return set().union(*map(parts.names_in, _codes(namespace, names)))


def globals_of_functions(
    namespace: Mapping[str, object], names: Iterable[str]
) -> tuple[set[str], set[str]]:
    """The global names that these functions read, and those that they bind: no attributes."""
    codes = list(_codes(namespace, names))
    every = [i for code in codes for i in _instructions(code)]
    read = {str(i.argval) for i in every if i.opname in _READING}
    return read, {str(i.argval) for i in every if i.opname == "STORE_GLOBAL"}


def _codes(namespace: Mapping[str, object], names: Iterable[str]) -> Iterator[CodeType]:
    """The code of the notebook's functions to which these names lead."""
    used: set[str] = set()
    seen: set[int] = set()
    todo = [namespace[name] for name in names if name in namespace]
    while todo and len(seen) < _MOST:
        value = todo.pop()
        if id(value) in seen or isinstance(value, _ENDS) or _is_ours(value):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and value.__module__ == "__main__":
            yield value.__code__
            fresh = parts.names_in(value.__code__) - used
            used |= fresh
            todo += [namespace[name] for name in fresh if name in namespace]
        todo += itertools.islice(_held_by(value), _MOST)  # of a list with millions, no more


def _is_ours(value: object) -> bool:
    """Whether it is a Run or such: through what that holds, nobody calls the notebook's code."""
    return type(value).__module__.partition(".")[0] == __package__.partition(".")[0]


def _held_by(value: object) -> Iterator[object]:
    """What may be called through an object."""
    match value:
        case FunctionType():
            yield from map(parts.content, value.__closure__ or ())
            yield from vars(value).values()
            yield from value.__defaults__ or ()
        case MethodType() | staticmethod() | classmethod():
            yield from (value.__func__, getattr(value, "__self__", None))
        case functools.partial():
            yield from (value.func, *value.args, *value.keywords.values())
        case property():
            yield from (value.fget, value.fset, value.fdel)
        case functools.cached_property():
            yield value.func
        case dict() if type(value) is dict:
            yield from value.values()
        case list() | tuple() if type(value) in (list, tuple):
            yield from value
        case type():
            yield type(value)
            for cls in value.__mro__:
                if cls.__module__ == "__main__":
                    yield from vars(cls).values()
        case _:
            yield from _held_by_instance(value)


def _held_by_instance(value: object) -> Iterator[object]:
    """What any other object refers to: what the garbage collector sees runs nobody's code."""
    for one in gc.get_referents(value):
        if not (isinstance(one, type) and one.__module__ != "__main__"):
            yield one


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for one in _inner(code):
        yield from _instructions(one)


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))
