"""The collective that a rank waits in, and its total waiting time, for the rank's meter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from xla_nb.stopwatch import Stopwatch, Wait


class Waits:
    """The collective that this rank waits in, and its total waiting time; usable in any thread."""

    def __init__(self) -> None:
        self._wait: tuple[str, float, Callable[[], Iterable[int]]] | None = None
        self._watch = Stopwatch()

    def start(self, operation: str, missing: Callable[[], Iterable[int]]) -> None:
        self._wait = operation, time.monotonic(), missing
        self._watch.start()

    def stop(self) -> None:
        self._wait = None
        self._watch.stop()

    @property
    def current(self) -> Wait | None:
        wait = self._wait
        if wait is None:
            return None
        operation, start, missing = wait
        return Wait(operation, start, tuple(sorted(missing())))

    @property
    def seconds(self) -> float:
        return self._watch.seconds
