"""Properties, static and class methods of classes that extend Python's own."""

from __future__ import annotations

import functools
from typing import Any

from xla_nb.protocol import parts, remake

KINDS = property, staticmethod, classmethod, functools.cached_property
#: What each keeps of what it was made of, beside attributes.
_PARTS = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}


def reduced(obj: Any) -> Any:
    """Such a descriptor as a reducer's value; NotImplemented where its class says it itself."""
    kind = type(obj)
    base: Any = next(one for one in KINDS if issubclass(kind, one))
    if not parts.is_plain(kind):
        return NotImplemented
    state = object.__getstate__(obj)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    attributes = dict(attributes or {})
    if base is functools.cached_property:
        arguments = (attributes.pop("func"),)
        attributes.pop("lock", None)  # before Python 3.12
    else:
        arguments = tuple(vars(base)[name].__get__(obj) for name in _PARTS[base])
    content = base, arguments, (attributes, slots)
    return remake.new_instance, (base, kind, ()), content, None, None, remake.fill_descriptor
