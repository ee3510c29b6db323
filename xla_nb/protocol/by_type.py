"""Reducers by exact type, of Python's objects that pickle refuses or makes others of.

Each takes whoever asks, and the object. What makes the objects again on the ranks is beside them.
"""

from __future__ import annotations

import contextvars
import dataclasses
import decimal
import functools
import gc
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.protocol import remake


def _proxy(_: object, proxy: Any) -> Any:
    return types.MappingProxyType, tuple(gc.get_referents(proxy))


def _cached_property(_: object, cached: Any) -> Any:  # with a lock of its own before Python 3.12
    return remake.cached_property, (cached.func, cached.attrname)


def _new_type(_: object, made: Any) -> Any:
    return new_type, (made.__name__, made.__supertype__, made.__module__)


def _parameters(_: object, made: Any) -> Any:
    return type_parameters, (type(made), made.__name__)


def _type_var(_: object, made: Any) -> Any:
    """Without cloudpickle's loss of what Python 3.12 and 3.13 have added."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    names = "bound", "covariant", "contravariant", "infer_variance"
    given = {name: value for name in names if (value := getattr(made, f"__{name}__", None))}
    if getattr(made, "has_default", bool)():
        given["default"] = made.__default__
    return type_variable, (made.__name__, made.__constraints__, given, made.__module__)


def _alias(_: object, made: Any) -> Any:
    """What a `type` statement makes. Its value is computed here, since it may use any name."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    about = made.__name__, made.__module__
    if made.__type_params__:
        return generic_alias, (*about, made.__value__, made.__type_params__)
    return new_alias, about, made.__value__, None, None, fill_alias


def _field_kind(_: object, kind: Any) -> Any:
    return remake.held_by_module, ("dataclasses", kind.name, type(kind).__name__)


def _context(_: object, context: decimal.Context) -> Any:
    return (decimal.getcontext, ()) if context is decimal.getcontext() else NotImplemented


def _context_variable(_: object, variable: contextvars.ContextVar[Any]) -> Any:
    """With its default, and with the value that it has in this thread."""
    default = contextvars.Context().run(_value, variable)
    state = held_by(variable)
    made = variable.name, default
    return new_context_variable, made, state, None, None, fill_context_variable


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


# What a pickle calls


def new_type(name: str, supertype: Any, module: str) -> Any:
    made: Any = typing.NewType(name, supertype)  # type: ignore[misc]  # a type checker's rule
    made.__module__ = module
    return made


def type_parameters(kind: Any, name: str) -> Any:
    return kind(name)


def type_variable(
    name: str, constraints: tuple[Any, ...], given: Mapping[str, Any], module: str
) -> Any:
    made: Any = typing.TypeVar(name, *constraints, **given)  # type: ignore[misc]
    made.__module__ = module
    return made


def new_alias(name: str, module: str) -> Any:
    """An alias that asks for its value only when that is there, since it may name itself."""
    place: dict[str, Any] = {"__name__": module}
    exec(f"type {name} = value", place)
    return place[name]


def fill_alias(alias: Any, value: object) -> None:
    (compute,) = (part for part in gc.get_referents(alias) if isinstance(part, types.FunctionType))
    compute.__globals__["value"] = value


def generic_alias(name: str, module: str, value: object, parameters: tuple[Any, ...]) -> Any:
    """An alias with these very parameters, of the module whose name the caller's globals have."""
    place: dict[str, Any] = {"__name__": module, "given": (name, value, parameters)}
    exec("import typing; made = typing.TypeAliasType(*given[:2], type_params=given[2])", place)
    return place["made"]


def new_context_variable(name: str, default: tuple[Any, ...]) -> Any:
    if default:
        return contextvars.ContextVar(name, default=default[0])
    return contextvars.ContextVar(name)


def fill_context_variable(made: Any, value: tuple[Any, ...] | None) -> None:
    """Let a context variable hold a value here."""
    if value is not None:
        made.set(value[0])


REDUCERS: dict[type, Callable[[Any, Any], Any]] = {
    types.MappingProxyType: _proxy,
    functools.cached_property: _cached_property,
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
