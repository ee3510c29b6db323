"""Reducers by exact type, for built-in objects that pickle refuses or alters.

Each takes the pickling `Live` and the object. Exceptions are here too, re-created without their
`__init__` and with the exceptions they were raised from; so are the functions that re-create the
objects on ranks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import types
import typing
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling import code_facts, rebuild


def _proxy(_: object, proxy: Any) -> Any:
    return types.MappingProxyType, tuple(gc.get_referents(proxy))


def _cached_property(_: object, cached: Any) -> Any:  # it has a lock before Python 3.12
    return rebuild.cached_property, (cached.func, cached.attrname)


def _new_type(_: object, new: Any) -> Any:
    return typing.NewType, (new.__name__, new.__supertype__), {"__module__": new.__module__}


def _parameters(_: object, parameter: Any) -> Any:
    return type(parameter), (parameter.__name__,)


def _alias(_: object, alias: Any) -> Any:
    """Reduce the result of a `type` statement, with its current value."""
    if code_facts.is_found_by_name(alias):
        return NotImplemented
    kind: Any = type(alias)
    new = functools.partial(kind, type_params=alias.__type_params__)
    return new, (alias.__name__, alias.__value__)


def _context_manager(_: object, manager: Any) -> Any:
    """Reduce the result of a function decorated with `contextlib.contextmanager` before it is
    entered: `@torch_xla.compile` decorates with one, which is created again at each call."""
    if not hasattr(manager, "func"):
        return NotImplemented
    return type(manager), (manager.func, manager.args, manager.kwds)


#: What pickle leaves out of an exception; its `__setstate__` sets any attribute.
_LINKS = ("__cause__", "__context__", "__notes__", "__suppress_context__")


def exception(obj: Any) -> Any:
    """Return an exception's reducer value; NotImplemented for other objects."""
    kind = type(obj)
    if not issubclass(kind, BaseException):
        return NotImplemented
    links = {name: link for name in _LINKS if (link := _link(getattr(obj, name, None))) is not None}
    left_out = links if any(links.values()) else {}
    if isinstance(obj, AttributeError | NameError):  # only some Pythons pickle it
        left_out["name"] = obj.name
    reduced: Any = obj.__reduce_ex__(5)
    if isinstance(kind.__init__, types.FunctionType) and kind.__reduce__ is _DEFAULT_REDUCE:
        # Pickle would call it with `args`, but it may take other arguments.
        reduced = new_exception, (kind, obj.args), *reduced[2:]
    if (
        not isinstance(reduced, tuple)
        or reduced[0] not in (kind, new_exception)
        or kind.__setstate__ is not _DEFAULT_SETSTATE
    ):
        return reduced  # it defines its own pickling, maybe as something else
    state, whole = reduced[2] if len(reduced) > 2 else None, object.__getstate__(obj)
    slots = whole[1] if isinstance(whole, tuple) else {}
    return *reduced[:2], {**(state or {}), **slots, **left_out}


_DEFAULT_REDUCE, _DEFAULT_SETSTATE = BaseException.__reduce__, BaseException.__setstate__


def _link(link: Any) -> Any:
    """Return the link; None for an exception that cannot be pickled itself, which is no reason to
    lose this one."""
    if isinstance(link, BaseException):
        try:
            cloudpickle.dumps(link)
        except Exception:
            return None
    return link


# Called by pickles


def new_exception(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


REDUCERS: dict[type, Callable[[Any, Any], Any]] = {
    types.MappingProxyType: _proxy,
    contextlib._GeneratorContextManager: _context_manager,
    functools.cached_property: _cached_property,
    typing.NewType: _new_type,
    getattr(typing, "TypeAliasType", types.NoneType): _alias,  # of Python 3.12
    typing.ParamSpec: _parameters,
    typing.TypeVarTuple: _parameters,
}
