"""What a rank waits for in a collective, and how long it has waited in all: for its meter."""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable

from xla_nb.stopwatch import Stopwatch, Wait


class Waits:
    """The collective that this rank waits in, and how long it has waited in all; for any thread."""

    def __init__(self) -> None:
        self._wait: tuple[str, float, Callable[[], Iterable[int]]] | None = None
        self._watch = Stopwatch()
        self._lengths: Counter[int] = Counter()  # seconds by the waits' exponents of 2

    def begin(self) -> None:
        """Begin another program."""
        self._lengths.clear()

    def start(self, operation: str, missing: Callable[[], Iterable[int]]) -> None:
        self._wait = operation, time.monotonic(), missing
        self._watch.start()

    def stop(self) -> None:
        self._wait, since = None, self._watch.since
        self._watch.stop()
        if since is not None:
            lasted = time.monotonic() - since
            self._lengths[math.frexp(lasted)[1]] += lasted  # type: ignore[assignment]

    @property
    def current(self) -> Wait | None:
        current = self._wait
        if current is None:
            return None
        operation, since, missing = current
        return Wait(operation, since, tuple(sorted(missing())))

    @property
    def seconds(self) -> float:
        return self._watch.seconds

    @property
    def usual(self) -> float:
        """Seconds of a wait: half of all waiting of this program, at least, was in waits as long at
        most."""
        lengths = sorted(self._lengths.copy().items())
        waited = list(itertools.accumulate(seconds for _, seconds in lengths))
        middle = bisect.bisect_left(waited, waited[-1] / 2) if waited else 0
        return 2.0 ** lengths[middle][0] if waited else 0.0
