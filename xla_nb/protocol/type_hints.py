"""What `typing` makes of names: type variables, new types, and aliases."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.protocol import remake


def _new_type(made: Any) -> Any:
    return remake.new_type, (made.__name__, made.__supertype__, made.__module__)


def _parameters(made: Any) -> Any:
    return remake.type_parameters, (type(made), made.__name__)


def _type_var(made: Any) -> Any:
    """Without cloudpickle's loss of what Python 3.12 and 3.13 have added."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    names = "bound", "covariant", "contravariant", "infer_variance"
    given = {name: value for name in names if (value := getattr(made, f"__{name}__", None))}
    if getattr(made, "has_default", bool)():
        given["default"] = made.__default__
    return remake.type_variable, (made.__name__, made.__constraints__, given, made.__module__)


def _alias(made: Any) -> Any:
    """What a `type` statement makes. Its value is computed here, since it may use any name."""
    if cloudpickle._lookup_module_and_qualname(made, made.__name__) is not None:
        return NotImplemented
    about = made.__name__, made.__module__
    if made.__type_params__:
        return remake.generic_alias, (*about, made.__value__, made.__type_params__)
    return remake.new_alias, about, made.__value__, None, None, remake.fill_alias


#: What gives one of a type as a reducer's value.
REDUCERS: dict[type, Callable[[Any], Any]] = {
    typing.NewType: _new_type,
    getattr(typing, "TypeAliasType", types.NoneType): _alias,  # of Python 3.12
    typing.TypeVar: _type_var,
    typing.ParamSpec: _parameters,
    typing.TypeVarTuple: _parameters,
}
