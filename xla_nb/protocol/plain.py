"""Dataclasses from JSON, whose every field has the type that its class declares.

A file or a message may hold anything; what is made of it here can be relied upon.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def made(cls: type[T], fields: Mapping[str, Any]) -> T:
    """An instance of a dataclass; lists become tuples, and mappings its inner dataclasses.

    Raises ValueError for a field that is missing, unknown or of another type."""
    kinds = _types(typing.cast(Any, cls))
    if not isinstance(fields, Mapping) or not fields.keys() <= kinds.keys():
        raise ValueError(f"not the fields of {cls.__name__}")
    try:
        return cls(**{name: _typed(fields[name], kinds[name]) for name in fields})
    except TypeError as problem:
        raise ValueError(str(problem)) from problem


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _typed(value: Any, kind: Any) -> Any:
    """The value as one of this type. Raises ValueError."""
    form, inner = typing.get_origin(kind), typing.get_args(kind)
    if form in (types.UnionType, typing.Union):
        return None if value is None and types.NoneType in inner else _typed(value, inner[0])
    if form is tuple and isinstance(value, list):
        return tuple(_typed(item, inner[0]) for item in value)
    if form is dict and isinstance(value, dict):
        return {_typed(key, inner[0]): _typed(item, inner[1]) for key, item in value.items()}
    if form is typing.Literal and type(value) is str and value in inner:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return made(kind, value)
    if _is_number(value) if kind is float else type(value) is kind:
        return value
    raise ValueError(f"{kind} cannot be {str(value)[:80]!r}")


def _is_number(value: object) -> bool:
    """Of a whole number, JSON does not say that it is a float."""
    try:
        return type(value) in (int, float) and math.isfinite(typing.cast(float, value))
    except OverflowError:
        return False
