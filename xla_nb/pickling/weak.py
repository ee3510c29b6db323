"""Weak references: their targets are sent, and live on ranks if something there holds them.

Whether something does is known once the parcel is opened.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from xla_nb.pickling.rebuild import notices

_NOTE = "a weak reference is sent without its `{}`, so it is dead on ranks"


def reduced(ref: Any) -> Any:
    """Return the reducer value."""
    kind = type(ref)
    if kind is weakref.ref:
        return _new_reference, (kind, ref(), ref.__callback__)
    if kind in weakref.ProxyTypes:
        return _new_reference, (weakref.proxy, _behind(ref))
    if kind is weakref.WeakSet:
        return _new_container, (kind, list(ref), list(ref))
    pairs = list(ref.items())
    index = 0 if kind is weakref.WeakKeyDictionary else 1
    return _new_container, (kind, dict(pairs), [pair[index] for pair in pairs])


def _behind(proxy: Any) -> object:
    """Return the target of a proxy: any method looked up on a proxy belongs to its target."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


# Called by pickles


def _new_reference(
    make: Callable[..., Any], target: object, *callback: Callable[[Any], Any] | None
) -> Any:
    """Create a reference or proxy, already dead if there is no target."""
    return make(_Gone()) if target is None else make(_note_if_dead(target), *callback)


def _new_container(kind: Callable[[Any], Any], content: Any, targets: list[object]) -> Any:
    for target in targets:
        _note_if_dead(target)
    return kind(content)


def _note_if_dead(target: object) -> object:
    ref, note = weakref.ref(target), _NOTE.format(type(target).__name__)
    notices.append(lambda: note if ref() is None else "")
    return target


class _Gone:
    """A target that nothing holds."""
