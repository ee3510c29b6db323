"""What belongs to the rank that calls: a process may have several, each in a thread of its own."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class OfRank(Generic[T]):
    """One thing for each rank of this process, while its function runs."""

    def __init__(self) -> None:
        self._by_thread: dict[int, T] = {}

    def begin(self, thing: T) -> T:
        """The calling thread's rank has it, until `end`."""
        self._by_thread[threading.get_ident()] = thing
        return thing

    def end(self) -> T | None:
        """What it had."""
        return self._by_thread.pop(threading.get_ident(), None)

    def of(self, thread: int) -> T | None:
        """That of the rank that a thread runs."""
        return self._by_thread.get(thread)

    def here(self) -> T | None:
        """The calling rank's; in a thread that the user started, the process's first one."""
        own = self.of(threading.get_ident())
        return own if own is not None else next(iter(self._by_thread.values()), None)
