"""What `name?` tells of an object as a rank has it, without running anything of the user's but its
`__repr__`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.protocol import hostile
from xla_nb.protocol.inspection import About
from xla_nb.rank import lookup, short_repr, static
from xla_nb.rank.deadline import Deadline

_SECONDS = 2.0  # for all of it
_DOC, _SOURCE = 20_000, 100_000  # characters
_FUNCTIONS = (types.FunctionType, types.MethodType)
_SIZED = (list, tuple, dict, set, frozenset, str, bytes, bytearray, range)


def about(
    namespace: Mapping[str, object],
    expression: str,
    *,
    source: bool = False,
    seconds: float = _SECONDS,
) -> About:
    """Of the object that an expression leads to (`model.layers[0]`).

    source: also its source (`name??`), if a file or a cell has it"""
    found = lookup.find(namespace, expression.strip())
    if found is None:
        return About(expression, False)
    deadline = Deadline(seconds)
    try:
        return _about(expression, found[0], source, deadline)
    except hostile.TooLong:
        return About(expression, True, hostile.name_of(type(found[0])))


def _about(expression: str, value: Any, source: bool, deadline: Deadline) -> About:
    defined = _definition(value)
    started = lookup.own(value).get("__init__") if _is_class(value) else None
    if type(started) is types.FunctionType:
        started = types.MethodType(started, value)  # which has no `self` in its signature
    return About(
        expression,
        True,
        hostile.name_of(type(value)),
        short_repr.short_repr(value, deadline),
        _length(value),
        *_place(defined, deadline),
        _signature(value, deadline),
        _doc(value),
        _source(defined, deadline) if source else "",
        _signature(started, deadline),
        _doc(started) if type(started) is types.MethodType else "",
    )


def _is_class(value: object) -> bool:
    return issubclass(type(value), type)


def _definition(value: Any) -> Any:
    """The function, class or module whose source shows what a value is; an instance's class."""
    if type(value) is types.MethodType:
        return value.__func__
    is_one = type(value) in (types.FunctionType, types.ModuleType) or _is_class(value)
    return value if is_one else type(value)


def _length(value: Any) -> str:
    own = next((kind for kind in _SIZED if type(value) is kind), None)
    return str(own.__len__(value)) if own is not None else ""


def _place(defined: Any, deadline: Deadline) -> tuple[str, int]:
    if type(defined) is types.FunctionType:
        return defined.__code__.co_filename, defined.__code__.co_firstlineno
    if type(defined) is types.ModuleType:
        file = static.attributes(defined).get("__file__")
        return (file, 0) if type(file) is str else ("", 0)
    methods = (static.held_by_class(defined)[name] for name in static.held_by_class(defined))
    codes = [one.__code__ for one in methods if type(one) is types.FunctionType]
    own = [code for code in codes if code.co_qualname.startswith(f"{hostile.name_of(defined)}.")]
    if not own:
        return "", 0
    file = own[0].co_filename
    line = _read(lambda: inspect.getsourcelines(defined)[1], deadline) if _is_usual(defined) else 0
    return file, line or 0


def _is_usual(defined: Any) -> bool:
    """Whether `inspect` looks at it without code of a metaclass."""
    return type(defined) in (types.FunctionType, types.ModuleType, type)


def _source(defined: Any, deadline: Deadline) -> str:
    text = _read(lambda: inspect.getsource(defined), deadline) if _is_usual(defined) else ""
    return (text or "")[:_SOURCE]


def _signature(value: Any, deadline: Deadline) -> str:
    """`(x, scale=2.0)`; "" for what is not a function."""
    if type(value) not in (*_FUNCTIONS, *lookup.CALLED):
        return ""
    return _read(lambda: str(inspect.signature(value)), deadline) or ""


def _read(look: Callable[[], Any], deadline: Deadline) -> Any:
    """What `look` returns, which may run a `__repr__` of a default or read files; None if not."""
    try:
        return deadline.within(lambda: short_repr.unread(look))
    except hostile.TooLong:
        raise
    except Exception:
        return None


def _doc(value: Any) -> str:
    """A function's own docstring; of others that of their class or the first base that has one."""
    if type(value) in _FUNCTIONS or type(value) in lookup.CALLED:
        texts = [getattr(value, "__doc__", None)]
    elif type(value) is types.ModuleType:
        texts = [static.attributes(value).get("__doc__")]
    else:
        kinds = static.mro(value if _is_class(value) else type(value))
        texts = [static.held_by_class(kind).get("__doc__") for kind in kinds if kind is not object]
    text = next((text for text in texts if type(text) is str), "")
    return inspect.cleandoc(text)[:_DOC]
