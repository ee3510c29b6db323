"""A rank's meter: a thread that samples what the rank is doing, and says so on request.

The rule: it disturbs nothing. It reads counters that torch_xla and the kernel keep anyway, takes
the interpreter for microseconds a few times a second, and lets no error out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from xla_nb.program import tracebacks
from xla_nb.rank.reporting import Book, Progress
from xla_nb.record import sample
from xla_nb.record.sample import Activity, Loop, Sample
from xla_nb.runtimes.gauges import Counts, Gauges, PendingCollective

#: Seconds between two looks at whether somebody asks for stacks, and two samples.
TICK = 0.25
_SMOOTH = 0.3  # weight of the newest rate in a loop's rate
_LONGEST = 300  # characters of an operation that a sample carries
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Compiling:
    """Whether a graph is being compiled: one was looked up in vain and is not compiled yet.

    torch_xla has no counter for that. Some graphs are compiled without a look-up, and a
    compilation may fail; so what counts is the distance of the two counters to the least so far,
    and to the last one at which a graph was found: who looks it up is compiling nothing. (That
    something was executed says little: it may be the step before, while this one is compiled.)
    """

    def __init__(self) -> None:
        self._least = self._hits = self._misses = 0

    def now(self, seen: Counts) -> bool:
        distance = seen.misses - seen.compiles
        found_since = seen.hits != self._hits and seen.misses == self._misses
        self._least = distance if found_since else min(self._least, distance)
        self._hits, self._misses = seen.hits, seen.misses
        return distance > self._least


class Rates:
    """Items a second of each loop, smoothed: the first item's time often is a compilation's."""

    def __init__(self) -> None:
        self._seen: dict[Progress[Any], tuple[float, int, float | None]] = {}

    def look(self, loops: list[Progress[Any]], now: float) -> tuple[Loop, ...]:
        known = self._seen
        self._seen = {loop: self._rate(loop, known.get(loop), now) for loop in loops}
        return tuple(
            Loop(
                label=loop.label,
                done=loop.done,
                total=loop.total,
                rate=self._seen[loop][2],
            )
            for loop in loops
        )

    @staticmethod
    def _rate(
        loop: Progress[Any], before: tuple[float, int, float | None] | None, now: float
    ) -> tuple[float, int, float | None]:
        if before is None or loop.done < before[1]:
            return now, loop.done, None
        since, done, rate = before
        if loop.finished or loop.done == done or now <= since:
            return before  # a loop slower than the samples keeps its rate between two items
        newest = (loop.done - done) / (now - since)
        return now, loop.done, newest if rate is None else rate + _SMOOTH * (newest - rate)


class Meter:
    """The meter of the thread that makes it, the one that runs the user's function."""

    def __init__(
        self,
        book: Book,
        path: Path,
        labels: Container[str],
        gauges: Gauges,
        asked: Path,
        answer: Callable[[str, str], None],
        every: int,
    ) -> None:
        """Samples go to `path`, one in `every` ticks; whenever `asked` is touched, `answer` gets
        the notebook's line and the stack of the rank's thread."""
        self._book, self._path, self._labels = book, path, labels
        self._gauges, self._asked, self._answer = gauges, asked, answer
        self._every = every
        self._entry = threading.get_ident()
        self._has_memory = True
        self._compiling = Compiling()
        self._rates = Rates()
        self._activity: tuple[Activity, float] = ("running", time.time())
        self._written = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xla_nb-meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._watch(file)
            finally:
                os.close(file)
        except Exception as problem:  # a full disk, a backend that refuses: never the user's fault
            print(f"xla_nb: this rank's figures cannot be told: {problem}", file=sys.stderr)

    def _watch(self, file: int) -> None:
        answered = 0
        tick = 0
        while not self._stop.wait(TICK if tick else 0):
            asked = _touched(self._asked)
            if asked != answered:
                answered = asked
                self._answer(*tracebacks.locate(self._entry, self._labels))
            if tick % self._every == 0:
                self._sample(file)
            tick += 1
        self._sample(file)

    def _sample(self, file: int) -> None:
        self._book.settle()
        self._put(file, sample.encode(self._look()))

    def _put(self, file: int, line: bytes) -> None:
        """Over the last sample, in one write; spaces cover what was longer."""
        os.pwrite(file, line.ljust(self._written), 0)
        self._written = max(self._written, len(line))

    def _look(self) -> Sample:
        now = time.time()
        seen = self._gauges.counts()
        waiting = self._gauges.waiting()
        compiling = self._compiling.now(seen)
        used, limit = self._device_memory()
        return Sample(
            at=now,
            activity=self._doing(waiting, compiling, now),
            since=self._activity[1],
            place=tracebacks.innermost(self._entry, self._labels),
            operation=waiting.operation[:_LONGEST] if waiting else "",
            missing=waiting.missing if waiting else (),
            rss=_resident(),
            cpu=time.process_time(),
            device_used=used,
            device_limit=limit,
            compiles=seen.compiles,
            compile_seconds=seen.compile_seconds,
            steps=seen.steps,
            fallbacks=seen.fallbacks,
            clients=seen.clients,
            loops=self._rates.look(self._book.loops, now),
        )

    def _doing(self, waiting: PendingCollective | None, compiling: bool, now: float) -> Activity:
        activity: Activity = "waiting" if waiting else "compiling" if compiling else "running"
        since = now - (time.monotonic() - waiting.since) if waiting else now
        if activity != self._activity[0] or waiting:
            self._activity = activity, since
        return activity

    def _device_memory(self) -> tuple[int | None, int | None]:
        """Bytes used and there at all; asked once where the backend does not know."""
        found = self._gauges.memory() if self._has_memory else None
        self._has_memory = found is not None
        return (None, None) if found is None else found


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _touched(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
