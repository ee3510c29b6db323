"""Reducers by exact type, of Python's objects that pickle refuses or makes others of.

Each takes whoever asks, and the object.
"""

from __future__ import annotations

import contextvars
import dataclasses
import decimal
import struct
import types
import typing
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.protocol import remake


def _new_type(_: object, made: Any) -> Any:
    return remake.new_type, (made.__name__, made.__supertype__, made.__module__)


def _parameters(_: object, made: Any) -> Any:
    return remake.type_parameters, (type(made), made.__name__)


def _type_var(_: object, made: Any) -> Any:
    """Without cloudpickle's loss of what Python 3.12 and 3.13 have added."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    names = "bound", "covariant", "contravariant", "infer_variance"
    given = {name: value for name in names if (value := getattr(made, f"__{name}__", None))}
    if getattr(made, "has_default", bool)():
        given["default"] = made.__default__
    return remake.type_variable, (made.__name__, made.__constraints__, given, made.__module__)


def _alias(_: object, made: Any) -> Any:
    """What a `type` statement makes. Its value is computed here, since it may use any name."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    about = made.__name__, made.__module__
    if made.__type_params__:
        return remake.generic_alias, (*about, made.__value__, made.__type_params__)
    return remake.new_alias, about, made.__value__, None, None, remake.fill_alias


def _field_kind(_: object, kind: Any) -> Any:
    return remake.held_by_module, ("dataclasses", kind.name, type(kind).__name__)


def _context(_: object, context: decimal.Context) -> Any:
    return (decimal.getcontext, ()) if context is decimal.getcontext() else NotImplemented


def _context_variable(_: object, variable: contextvars.ContextVar[Any]) -> Any:
    """With its default, and with the value that it has in this thread."""
    default = contextvars.Context().run(_value, variable)
    state = held_by(variable)
    made = variable.name, default
    return remake.new_context_variable, made, state, None, None, remake.fill_context_variable


def held_by(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...] | None:
    """The value that was set in this thread, in a tuple."""
    return _value(variable) if variable in contextvars.copy_context() else None


def _value(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (variable.get(),)
    except LookupError:
        return ()


def _struct(_: object, made: struct.Struct) -> Any:
    return struct.Struct, (made.format,)


REDUCERS: dict[type, Callable[[Any, Any], Any]] = {
    contextvars.ContextVar: _context_variable,
    decimal.Context: _context,
    struct.Struct: _struct,
    typing.NewType: _new_type,
    getattr(typing, "TypeAliasType", types.NoneType): _alias,  # of Python 3.12
    typing.TypeVar: _type_var,
    typing.ParamSpec: _parameters,
    typing.TypeVarTuple: _parameters,
    dataclasses._FIELD_BASE: _field_kind,  # type: ignore[attr-defined]
}
