"""Dataclasses from JSON, whose every field has the type that its class declares.

A file or a message may hold anything; what is made of it here can be relied upon.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_MOST = 2**63


def made(cls: type[T], fields: Mapping[str, Any]) -> T:
    """An instance of a dataclass; lists become tuples, and mappings its inner dataclasses.

    Raises ValueError for a field that is missing, unknown or of another type."""
    takes = _fields(typing.cast(Any, cls))
    if not isinstance(fields, Mapping) or not fields.keys() <= takes.keys():
        raise ValueError(f"not the fields of {cls.__name__}")
    try:
        return cls(**{name: takes[name](fields[name]) for name in fields})
    except TypeError as problem:
        raise ValueError(str(problem)) from problem


#: Gives a value as one of its type, or raises ValueError.
_Taker = Callable[[Any], Any]


@functools.cache
def _fields(cls: type) -> dict[str, _Taker]:
    hints = typing.get_type_hints(cls)
    return {
        field.name: _taker(hints[field.name]) for field in dataclasses.fields(cls) if field.init
    }


@functools.cache
def _taker(kind: Any) -> _Taker:
    """What takes values of a type: made once, since samples are read a thousand times a second."""
    form, inner = typing.get_origin(kind), typing.get_args(kind)
    if form in (types.UnionType, typing.Union):
        only, may_lack = _taker(inner[0]), types.NoneType in inner
        return lambda value: None if value is None and may_lack else only(value)
    if form is tuple:
        item = _taker(inner[0])
        return lambda value: tuple(map(item, _checked(value, list)))
    if form is dict:
        key, each = map(_taker, inner)
        return lambda value: {key(k): each(v) for k, v in _checked(value, dict).items()}
    if form is typing.Literal:
        return lambda value: _one_of(inner, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return lambda value: made(kind, value)
    plainly: dict[Any, _Taker] = {float: _number, int: _whole, str: _text}
    return plainly.get(kind, lambda value: _checked(value, kind))


def _checked(value: Any, kind: type) -> Any:
    """Of a type itself: JSON's true is an int to Python."""
    if type(value) is not kind:
        raise ValueError(f"{kind} cannot be {str(value)[:80]!r}")
    return value


def _one_of(choices: tuple[object, ...], value: Any) -> Any:
    if type(value) is not str or value not in choices:
        raise ValueError(f"not one of {choices}: {str(value)[:80]!r}")
    return value


def _text(value: Any) -> Any:
    """What can be shown: no front end can be sent a lone surrogate."""
    _checked(value, str).encode()
    return value


def _whole(value: Any) -> Any:
    """No longer than what anything counts: JSON's may have thousands of digits."""
    if not -_MOST <= _checked(value, int) <= _MOST:
        raise ValueError(f"no count: {str(value)[:80]!r}")
    return value


def _number(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError(f"no number: {str(value)[:80]!r}")
    return value


def _is_number(value: object) -> bool:
    """Of a whole number, JSON does not say that it is a float."""
    try:
        return type(value) in (int, float) and math.isfinite(typing.cast(float, value))
    except OverflowError:
        return False
