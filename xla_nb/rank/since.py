"""What a program has counted, of a process that runs several one after another."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

from xla_nb.rank.lock import LockWait, SharedLock
from xla_nb.runtimes.gauges import Counts, Gauges, PendingCollective


class GaugesSince:
    """A runtime's gauges, counted from now on. Counters that the user's code has cleared since
    start at 0."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self._counts, self._waited = Counts(0, 0, 0, 0.0, 0, {}), 0.0
        with contextlib.suppress(Exception):  # a backend that refuses: the meter tells it
            self._counts, self._waited = gauges.counts(), gauges.waited() or 0.0

    def counts(self) -> Counts:
        now, before = self._gauges.counts(), self._counts
        if now.compiles < before.compiles or now.hits < before.hits:
            before = self._counts = replace(
                before, hits=0, misses=0, compiles=0, compile_seconds=0.0, steps=0, fallbacks={}
            )
        fallbacks = {n: count - before.fallbacks.get(n, 0) for n, count in now.fallbacks.items()}
        return replace(
            now,
            hits=now.hits - before.hits,
            misses=now.misses - before.misses,
            compiles=now.compiles - before.compiles,
            compile_seconds=now.compile_seconds - before.compile_seconds,
            steps=now.steps - before.steps,
            fallbacks={name: count for name, count in fallbacks.items() if count > 0},
        )

    def waiting(self) -> PendingCollective | None:
        return self._gauges.waiting()

    def waited(self) -> float | None:
        now = self._gauges.waited()
        return None if now is None else now - self._waited

    def executed(self) -> int | None:
        return self._gauges.executed()

    def memory(self) -> tuple[int, int] | None:
        return self._gauges.memory()


class LockSince:
    """The shared lock, of which waits of the calling thread are counted from now on."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock
        self._waited, self._taken = lock.waited(threading.get_ident()), lock.taken

    def waiting(self, thread: int) -> LockWait | None:
        return self._lock.waiting(thread)

    def waited(self, thread: int) -> float:
        return self._lock.waited(thread) - self._waited

    @property
    def taken(self) -> int:
        return self._lock.taken - self._taken
