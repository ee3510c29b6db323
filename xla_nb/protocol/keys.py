"""Keys of containers that say themselves how they are hashed.

An object that is a key of what it leads to is hashed, where a pickle is opened, before it has its
attributes: it would not be found any more. Such containers are filled again when all is there.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from xla_nb.protocol import parts, remake
from xla_nb.protocol.remake import Call


class Keys:
    """Of one pickle: the classes of such keys that it has met (`kinds`), and the containers that
    have some."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self._seen: dict[int, object] = {}
        self._found: list[Any] = []

    def note(self, kind: type) -> None:
        """An instance of this class is about to be pickled."""
        if isinstance(kind.__hash__, types.FunctionType):
            self.kinds.add(kind)

    def look(self, obj: object) -> None:
        """Something is about to be pickled, which may be a container with such keys. Needless
        while there are no `kinds`."""
        if isinstance(obj, (dict, set)) and id(obj) not in self._seen:
            self._seen[id(obj)] = obj
            kind: Any = dict if isinstance(obj, dict) else set
            if self._has(kind.__iter__(obj)) and parts.container(type(obj)) is not None:
                self._found.append(obj)

    def calls(self) -> Iterator[tuple[str, Call]]:
        """What fills the containers again, each with a name for it."""
        for obj in self._found:
            base: Any = parts.container(type(obj))
            content = *parts.held_by_container(base, obj), remake.fill_instance, None
            yield type(obj).__name__, Call(remake.refill_container, (obj, base, content))

    def _has(self, keys: Iterable[object]) -> bool:
        return any(
            type(key) in self.kinds or (isinstance(key, tuple) and self._has(tuple.__iter__(key)))
            for key in keys
        )
