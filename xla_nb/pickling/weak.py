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
        return _made, (kind, ref(), ref.__callback__)
    if kind in weakref.ProxyTypes:
        return _made, (weakref.proxy, _behind(ref))
    if kind is weakref.WeakSet:
        return _container, (kind, list(ref), list(ref))
    pairs = list(ref.items())
    at = 0 if kind is weakref.WeakKeyDictionary else 1
    return _container, (kind, dict(pairs), [pair[at] for pair in pairs])


def _behind(proxy: Any) -> object:
    """Return the target of a proxy: any method looked up on a proxy belongs to its target."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


# Called by pickles


def _made(make: Callable[..., Any], target: object, *callback: Callable[[Any], Any] | None) -> Any:
    """Create a reference or proxy, already dead if there is no target."""
    return make(_Gone()) if target is None else make(_noted(target), *callback)


def _container(kind: Callable[[Any], Any], content: Any, targets: list[object]) -> Any:
    for target in targets:
        _noted(target)
    return kind(content)


def _noted(target: object) -> object:
    held, note = weakref.ref(target), _NOTE.format(type(target).__name__)
    notices.append(lambda: note if held() is None else "")
    return target


class _Gone:
    """A target that nothing holds."""
