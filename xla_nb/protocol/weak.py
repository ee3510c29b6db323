"""Weak references of the notebook's: what they refer to is sent, and lives if something holds it.

Whether something does is known by pickling again, without what weak references refer to.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from xla_nb.protocol import parts, remake

_NOTE = "a weak reference is sent without the `{}` that it refers to: it is dead on ranks"


class WeakReferences:
    """Reduces them, and collects what they refer to.

    targets   the objects, by id, but for those that ranks have anyway
    """

    def __init__(self) -> None:
        self.targets: dict[int, object] = {}
        self._cut = False

    def reduce(self, ref: Any) -> Any:
        kind = type(ref)
        if kind is weakref.ref:
            return remake.weak, (self._target(ref()), ref.__callback__)
        if kind is weakref.WeakMethod:
            method = ref()
            function = None if method is None else method.__func__
            target = None if method is None else self._target(method.__self__)
            return remake.weak_method, (target, function, _callback(ref))
        if kind in weakref.ProxyTypes:
            return remake.weak_proxy, (self._target(_behind(ref)),)
        if kind is weakref.WeakSet:
            return kind, ([one for one in list(ref) if self._target(one) is not None],)
        at = 0 if kind is weakref.WeakKeyDictionary else 1
        pairs = list(ref.items())
        for pair in pairs:
            self._target(pair[at])
        if self._cut:  # never opened; what the mapping itself holds counts
            return tuple, ([pair[1 - at] for pair in pairs],)
        return kind, (dict(pairs),)

    @contextmanager
    def without_targets(self) -> Iterator[None]:
        """Pickle what they refer to only where something else holds it."""
        self._cut = True
        try:
            yield
        finally:
            self._cut = False

    def _target(self, target: object) -> object:
        if target is None or parts.is_of_a_module(target):
            return target
        self.targets[id(target)] = target
        return None if self._cut else target

    def notes(self, pickled: Container[int], named: Mapping[str, object]) -> set[str]:
        """What to say of objects that are referred to, and are neither in a pickle without these
        references nor bound to their name when it is made."""
        bound = {id(definition) for definition in named.values()}
        lost = [it for one, it in self.targets.items() if one not in pickled and one not in bound]
        return {_NOTE.format(type(it).__name__) for it in lost}


def _callback(ref: weakref.WeakMethod[Any]) -> Any:
    """What the user gave: the reference's own is a function of Python's, which calls that."""
    own: Any = ref.__callback__
    if own is None:  # the object is gone
        return None
    closure = dict(zip(own.__code__.co_freevars, own.__closure__, strict=True))
    return closure["callback"].cell_contents


def _behind(proxy: Any) -> object:
    """What a proxy refers to: any method that it is asked for is that object's."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None
