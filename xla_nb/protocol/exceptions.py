"""Exceptions as values: made again without their `__init__`, with what they were raised from."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

#: What pickle leaves out of an exception; its `__setstate__` sets any attribute.
_LINKS = ("__cause__", "__context__", "__notes__", "__suppress_context__")


def reduce(obj: Any, reduce_otherwise: Callable[[Any], Any]) -> Any:
    """An exception as a reducer's value; NotImplemented for what pickle does as well.

    `reduce_otherwise` reduces instances of any class.
    """
    kind = type(obj)
    if not issubclass(kind, BaseException):
        return NotImplemented
    links = {n: link for n in _LINKS if (link := _link(getattr(obj, n, None))) is not None}
    left_out = links if any(links.values()) else {}
    if isinstance(obj, AttributeError | NameError):  # of some Pythons
        left_out["name"] = obj.name
    made: Any
    if isinstance(kind.__init__, types.FunctionType) and kind.__reduce__ is _REDUCE:
        # It may take other arguments than `args`, with which pickle would call it.
        made = _new, (kind, obj.args), object.__getstate__(obj)
    elif left_out:
        made = obj.__reduce_ex__(5)
    else:
        return reduce_otherwise(obj)
    if not isinstance(made, tuple) or made[0] not in (kind, _new) or kind.__setstate__ is not _SET:
        return made  # it says itself how, maybe as something else
    state = made[2] if len(made) > 2 else None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return *made[:2], {**(attributes or {}), **(slots or {}), **left_out}


_REDUCE, _SET = BaseException.__reduce__, BaseException.__setstate__


def _link(link: Any) -> Any:
    """None for an exception that cannot be pickled itself: that is no reason to lose this one."""
    if isinstance(link, BaseException):
        try:
            cloudpickle.dumps(link)
        except Exception:
            return None
    return link


def _new(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    return made
