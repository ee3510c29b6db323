"""Instances of notebook classes whose base defines its own pickling, such as `frozenset`,
`datetime.date` and NumPy scalars.

Such a base may create an instance of its own class, or lose attributes that a subclass has: these
instances are refused.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from xla_nb.pickling import code_facts, rebuild
from xla_nb.pickling.refusals import Unshippable


def says_itself(kind: type) -> bool:
    """True if a notebook class defines its own pickling, rather than its base."""
    base = _base(kind)
    return kind.__reduce__ is not base.__reduce__ or kind.__reduce_ex__ is not base.__reduce_ex__


def _base(kind: type) -> type:
    """Return the first base that is a library's."""
    return next(base for base in kind.__mro__ if not code_facts.is_made_here(base))


def reduced(obj: Any) -> Any:
    """Return the reducer value of an instance whose base defines its pickling."""
    kind = type(obj)
    base, value = _base(kind), obj.__reduce_ex__(5)
    # Other classes were created by libraries without a name, like that of a `numpy.dtype`.
    if not isinstance(value, tuple) or kind.__module__ != "__main__":
        return value
    make, arguments, *rest = value
    whole: Any = object.__getstate__(obj)
    state = rest[0] if rest else None
    names = {
        name for part in (whole if isinstance(whole, tuple) else [whole]) for name in part or ()
    }
    parts = [*arguments, *(state if isinstance(state, tuple) else [state])]
    sent_names = {name for part in parts if isinstance(part, dict) for name in part}
    inner = (part for item in arguments if isinstance(item, tuple | list) for part in item)
    if all(part is not kind for part in (make, getattr(make, "__self__", 0), *arguments, *inner)):
        lost = f"class `{kind.__qualname__}`"
    elif missing := sorted(names - sent_names - _named_by(base)):
        lost = f"attribute `{missing[0]}`"
    else:
        makes = any("__new__" in vars(cls) or "__init__" in vars(cls) for cls in base.__mro__[:-1])
        if make is kind and makes and not hasattr(kind, "__getnewargs_ex__"):
            return rebuild.new_of_base, (base, kind, *arguments), *rest
        return value
    raise Unshippable(
        f"an object that `{base.__module__}.{base.__qualname__}` pickles without its {lost}",
        f"Give `{kind.__qualname__}` a `__reduce__`, or create the object inside the function",
    )


@functools.lru_cache(maxsize=1024)
def _named_by(base: type) -> frozenset[str]:
    """Return the attributes that the code of a library's class names; pickling them is its own
    concern."""
    methods = (
        getattr(part, "__func__", part) for cls in base.__mro__ for part in vars(cls).values()
    )
    code = (part.__code__ for part in methods if isinstance(part, types.FunctionType))
    return frozenset[str]().union(*map(code_facts.names_in, code))
