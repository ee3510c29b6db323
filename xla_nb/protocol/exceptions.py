"""Exceptions as values: made again without their `__init__`, with what they were raised from."""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

#: What pickle leaves out of an exception, and notes, which a class's own way may leave out.
_LINKS = ("__cause__", "__context__", "__notes__", "__suppress_context__")
#: Those whose `name` Python before 3.12, or any Python, leaves out.
_NAMED: tuple[Any, ...] = (AttributeError, NameError)


def reduce(obj: Any, reduce_otherwise: Callable[[Any], Any]) -> Any:
    """An exception as a reducer's value; NotImplemented for what pickle does as well.

    `reduce_otherwise` reduces instances of any class.
    """
    kind = type(obj)
    if not issubclass(kind, BaseException):
        return NotImplemented
    reduced = _made_again(obj) if _wants_other_arguments(kind) else reduce_otherwise(obj)
    links = [_link(getattr(obj, name, None)) for name in _LINKS]
    names = [each.name.__get__(obj) if isinstance(obj, each) else None for each in _NAMED]
    if all(link is None or link is False for link in (*links, *names)):
        return reduced
    if reduced is NotImplemented:
        by_copyreg = copyreg.dispatch_table.get(kind)
        reduced = by_copyreg(obj) if by_copyreg else obj.__reduce_ex__(5)
    if isinstance(reduced, str):  # what a module holds
        return reduced
    make, arguments, state, items, pairs, fill = (*reduced, *[None] * 4)[:6]
    return make, arguments, (state, fill, links, names), items, pairs, _fill


def _link(link: Any) -> Any:
    """None for an exception that cannot be pickled itself: that is no reason to lose this one."""
    if isinstance(link, BaseException):
        try:
            cloudpickle.dumps(link)
        except Exception:
            return None
    return link


def _wants_other_arguments(kind: type[BaseException]) -> bool:
    """Whether its `__init__` may take other arguments than `args`: pickle would call it with these,
    and fail where it is opened. False where the class says itself how it is pickled."""
    own = isinstance(kind.__init__, types.FunctionType)
    return own and kind.__reduce__ is BaseException.__reduce__


def _made_again(obj: BaseException) -> tuple[Any, ...]:
    state = object.__getstate__(obj)
    if not isinstance(state, tuple):
        return _new, (type(obj), obj.args), state
    return _new, (type(obj), obj.args), state, None, None, _hold


def _hold(made: BaseException, state: tuple[dict[str, object] | None, dict[str, object]]) -> None:
    """What `BaseException.__setstate__` does, and the slots, which it does not know."""
    content, slots = state
    made.__setstate__(content)
    for name, value in slots.items():
        setattr(made, name, value)


def _new(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    return made


def _fill(
    made: Any, content: tuple[Any, Callable[..., None] | None, list[object], list[object]]
) -> None:
    """What pickle does with a state, then the links, which may lead to this exception again."""
    state, fill, links, names = content
    if fill is not None:
        fill(made, state)
    elif state is not None:
        made.__setstate__(state)
    if isinstance(made, BaseException):  # a class may say that it is pickled as something else
        for name, link in zip(_LINKS, links, strict=True):
            if link is not None:  # the last is also set, with the first
                BaseException.__setattr__(made, name, link)
    for each, missing in zip(_NAMED, names, strict=True):
        if missing is not None and isinstance(made, each):
            each.name.__set__(made, missing)
