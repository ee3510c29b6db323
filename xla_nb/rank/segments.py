"""Shared memory by name: a process deletes the segments that it makes, not those it attaches to.

multiprocessing deletes both at a process's end, since a process and those that it starts count as
one. Jobs and ranks are not the notebook's descendants: they would delete the notebook's segments,
and a rank those of another one.
"""

from __future__ import annotations

import threading
from multiprocessing import resource_tracker, shared_memory
from typing import Any

_init: Any = shared_memory.SharedMemory.__init__
_here = threading.local()


class _Tracker:
    """What `shared_memory` calls: passes on what is said of segments made here."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def register(self, name: str, kind: str) -> None:
        if not _here.attaching:
            self._made.add(name)
            resource_tracker.register(name, kind)

    def unregister(self, name: str, kind: str) -> None:
        if name in self._made:
            self._made.discard(name)
            resource_tracker.unregister(name, kind)


def leave_to_their_makers() -> None:
    """Let this process, and those it forks, attach to segments so."""
    module: Any = shared_memory
    module.resource_tracker = _Tracker()
    module.SharedMemory.__init__ = _attach


def _attach(
    self: Any, name: str | None = None, create: bool = False, size: int = 0, **options: Any
) -> None:
    _here.attaching = not create
    _init(self, name, create, size, **options)
