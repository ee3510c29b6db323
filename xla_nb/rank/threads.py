"""Per-rank state. A process may run several ranks, one per thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class OfRank(Generic[T]):
    """An object for each rank of this process while its function runs."""

    def __init__(self) -> None:
        self._by_thread: dict[int, T] = {}

    def begin(self, value: T) -> T:
        """Set the object of the calling thread's rank, until `end`."""
        self._by_thread[threading.get_ident()] = value
        return value

    def end(self) -> T | None:
        """Remove and return the object of the calling thread's rank."""
        return self._by_thread.pop(threading.get_ident(), None)

    def of(self, thread: int) -> T | None:
        """The object of the rank that a thread runs."""
        return self._by_thread.get(thread)

    def here(self) -> T | None:
        """The calling rank's object; in a thread started by user code, the process's first one."""
        current = self.of(threading.get_ident())
        return current if current is not None else next(iter(self._by_thread.values()), None)
