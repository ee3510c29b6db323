"""Check keys whose hash or comparison is defined in Python.

When a pickle is opened, a key that refers back to its container is hashed before its attributes are
set. This is detected when it is opened: a container that cannot find its keys is refused.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from xla_nb.pickling import code_facts

_PLAIN = {str, int, bytes}
_CONTAINERS = dict, set, frozenset


def says_how_it_is_hashed(kind: type) -> bool:
    """True if a class defines in Python how its instances are hashed or compared."""
    if issubclass(kind, getattr(sys.modules.get("torch"), "Tensor", ())):
        return False  # by `id`
    methods = (code_facts.in_class(kind, name) for name in ("__hash__", "__eq__"))
    hashed, compared = methods
    slot = types.WrapperDescriptorType
    return hashed is not None and not (isinstance(hashed, slot) and isinstance(compared, slot))


def containers(objects: Iterable[object], kinds: Collection[type]) -> list[Any]:
    """Return those objects whose keys or items are of such `kinds`."""
    return [obj for obj in objects if issubclass(type(obj), _CONTAINERS) and _has(obj, kinds)]


def _has(container: Any, kinds: Collection[type]) -> bool:
    classes = set(map(type, _iterate(container)))
    if classes <= _PLAIN:  # the `__dict__` of one of a million instances
        return False
    composed = (key for key in _iterate(container) if issubclass(type(key), tuple | frozenset))
    return any(kind in kinds for kind in classes) or any(_has(key, kinds) for key in composed)


def _iterate(container: Any) -> Iterator[Any]:
    """Iterate with the built-in method, not an override."""
    base: Any = next(kind for kind in (*_CONTAINERS, tuple) if issubclass(type(container), kind))
    items: Iterator[Any] = base.__iter__(container)
    return items


def check(opened: list[Any]) -> None:
    """Look up each key after a pickle has been opened. Raises RuntimeError."""
    for obj in opened:
        base: Any = next(kind for kind in _CONTAINERS if issubclass(type(obj), kind))
        if not all(base.__contains__(obj, key) for key in list(_iterate(obj))):
            raise RuntimeError(
                f"a {type(obj).__name__} cannot be sent: a key that refers back to it was hashed "
                "before its attributes were set. Fill it inside the function"
            )
