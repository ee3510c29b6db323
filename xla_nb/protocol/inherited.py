"""Instances of the notebook's classes whose base says itself how they are pickled, as `frozenset`,
`datetime.date` and NumPy's scalars do.

Such a base may make an instance of its own class, or leave out the attributes that a subclass has.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.protocol import parts, remake
from xla_nb.protocol.refusals import Unshippable


def says_itself(kind: type) -> bool:
    """Whether a class of the notebook's says how it is pickled, and not its base."""
    base = _base(kind)
    return kind.__reduce__ is not base.__reduce__ or kind.__reduce_ex__ is not base.__reduce_ex__


def _base(kind: type) -> type:
    """The first one that is a library's."""
    return next(one for one in kind.__mro__ if not parts.is_made_here(one))


def reduced(obj: Any) -> Any:
    """An instance whose base says so, as a reducer's value; NotImplemented where its class says
    more."""
    kind = type(obj)
    if hasattr(kind, "__getnewargs_ex__"):
        return NotImplemented
    base = _base(kind)
    made = obj.__reduce_ex__(5)
    if not isinstance(made, tuple):
        return NotImplemented
    return _with_attributes(base, obj, _of_the_class(base, kind, made))


def _of_the_class(base: type, kind: type, made: tuple[Any, ...]) -> tuple[Any, ...]:
    make, arguments, *rest = made
    if make is kind:
        return remake.new_of_base, (base, kind, *arguments), *rest
    if any(part is kind for part in _led_to(make, arguments)):
        return made
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(base, numpy.generic):
        return remake.new_instance, (base, kind, (make(*arguments),)), *rest
    if base.__module__.startswith("numpy.random."):
        return remake.new_of_base, (base, kind, *arguments), *rest
    if kind.__module__ != "__main__":  # as of a `numpy.dtype`, which a library makes without a name
        return made
    raise Unshippable(
        f"an object that `{base.__module__}.{base.__qualname__}` pickles without its class "
        f"`{kind.__qualname__}`",
        f"Give `{kind.__qualname__}` a `__reduce__`, or create the object inside the function",
    )


def _led_to(make: Any, arguments: tuple[Any, ...]) -> Iterator[object]:
    """Where a reducer's value names the class: as a method's, or as an argument."""
    yield getattr(make, "__self__", None)
    for part in arguments:
        yield part
        if isinstance(part, tuple | list):
            yield from part


def _with_attributes(base: type, obj: object, made: tuple[Any, ...]) -> Any:
    """What an object is reduced to, with the attributes that the base leaves out."""
    state = made[2] if len(made) > 2 else None
    left = _left_out(base, object.__getstate__(obj), state)
    if left is None or len(made) > 5:
        return made
    items, pairs = (*made[3:], None, None)[:2]
    return *made[:2], (state, left), items, pairs, remake.fill_extended


def _left_out(base: type, held: Any, state: Any) -> Any:
    """What an object has of its own, and neither its base's code sets nor the base's state has, as
    `object` gives it: the `__dict__`, and slots."""
    attributes, slots = held if isinstance(held, tuple) else (held, None)
    given = state if isinstance(state, tuple) else (state,)
    sent = {name for part in given if isinstance(part, dict) for name in part}
    known = sent | _set_by(base)
    each = [{n: v for n, v in (one or {}).items() if n not in known} for one in (attributes, slots)]
    return tuple(each) if any(each) else None


@functools.lru_cache(maxsize=1024)
def _set_by(base: type) -> frozenset[str]:
    """The attributes that the code of a library's class sets, which are its own affair."""
    methods = (part for one in base.__mro__ for part in vars(one).values())
    code = (part.__code__ for part in methods if isinstance(part, types.FunctionType))
    steps = (step for each in code for step in dis.get_instructions(each))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")
