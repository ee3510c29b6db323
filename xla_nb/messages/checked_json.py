"""Rebuild dataclasses from the JSON written from them, checking the declared fields."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
#: Converts a JSON value to the field's type.
_Converter = Callable[[Any], Any]


def made(cls: type[T], fields: Mapping[str, Any]) -> T:
    """Make an instance of a dataclass; lists become tuples, and mappings nested dataclasses.

    Raises ValueError for a field that is missing or unknown, or has the wrong type."""
    converters = _fields(typing.cast(Any, cls))
    if not isinstance(fields, Mapping) or not fields.keys() <= converters.keys():
        raise ValueError(f"not the fields of {cls.__name__}")
    try:
        return cls(**{name: converters[name](fields[name]) for name in fields})
    except TypeError as problem:
        raise ValueError(str(problem)) from problem


@functools.cache
def _fields(cls: type) -> dict[str, _Converter]:
    hints = typing.get_type_hints(cls)
    return {
        field.name: _converter(hints[field.name]) for field in dataclasses.fields(cls) if field.init
    }


@functools.cache
def _converter(kind: Any) -> _Converter:
    """The converter for a type, cached because samples are read a thousand times a second."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        convert = _converter(arguments[0])
        return lambda value: None if value is None else convert(value)
    if origin is tuple:
        convert = _converter(arguments[0])
        return lambda value: tuple(map(convert, value))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return lambda value: made(kind, value)
    return lambda value: value
