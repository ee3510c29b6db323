"""What a rank's samples tell of its last minute: its lane, the time of a step, compilations.

Samples count seconds exactly, so what lies between two of them is known however far apart they
are; within that time it is spread evenly. Seconds are those of the rank's own clock: hosts whose
clocks differ have lanes that are shifted against each other by as much.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from xla_nb.record.sample import Sample
from xla_nb.views.snapshot import Slot

_LANE = 60  # seconds of a lane
_GAP = 20.0  # seconds between two samples, from which on what was between them is not known
_LEAST = 0.005  # seconds of being busy that a lane has: clocks are read one after the other
_PACE = 20.0  # seconds of steps that are looked at, or more:
_STEPS = 10  # until there are so many, if the lane has them
_APART = 0.9  # seconds between two marks that are kept
_SURE = 2.5  # seconds of steps, from which their time is told: samples are 0.25 s apart
_PLACES = 20  # samples taken while compiling, whose lines are kept


@dataclass(frozen=True)
class Pace:
    """A rank's last steps: of how many, in how many seconds.

    step       seconds a step, without compiling, waiting for other ranks and being idle
    halves     the same of their first and their second half
    data       seconds a step of waiting for data
    compiles   graphs compiled in `compiling_steps`, the steps of the last minute; `place` is the
               line that was seen to compile most often, if one was
    fallbacks  calls a step of the operators that fell back to the CPU
    """

    steps: int
    seconds: float
    step: float
    halves: tuple[float, float]
    data: float = 0.0
    compiles: int = 0
    compiling_steps: int = 0
    place: str = ""
    fallbacks: Mapping[str, float] | None = None


class _Totals(NamedTuple):
    """What a sample has counted so far, in seconds."""

    at: float
    compiling: float
    others: float
    data: float
    blocked: float
    idle: float


class _Mark(NamedTuple):
    """A sample that was the first to see a step."""

    totals: _Totals
    steps: int
    compiles: int
    fallbacks: Mapping[str, int]


class Track:
    """One rank's samples, as they come. Bounded, however long the run is."""

    def __init__(self) -> None:
        self._before: _Totals | None = None
        self._was_idle = False
        self._slots: dict[int, Slot] = {}
        self._counter = _Counter()
        self._marks: deque[_Mark] = deque()
        self._places: deque[str] = deque(maxlen=_PLACES)
        self._sees_others = False
        self._lane: tuple[Slot, ...] | None = ()
        self._pace: Pace | None = None

    def add(self, sample: Sample) -> None:
        """Take in a newer sample."""
        now, before = _totals(sample), self._before
        self._before = now
        self._sees_others = sample.waited is not None
        if sample.activity == "compiling" and sample.place:
            self._places.append(sample.place)
        was_idle, self._was_idle = self._was_idle, sample.activity == "idle"
        if before is not None and now.at < before.at:  # the clock was set back
            self._slots = {at: slot for at, slot in self._slots.items() if at < int(now.at)}
        elif before is not None:
            self._fill(*_busy(before, now, was_idle))
            for second in [at for at in self._slots if at <= now.at - _LANE - 1]:
                del self._slots[second]
        self._lane = None
        if self._counter.has_stepped(sample):
            self._mark(_Mark(now, self._counter.steps, sample.compiles, sample.fallbacks))

    @property
    def lane(self) -> tuple[Slot, ...]:
        if self._lane is None:
            self._lane = tuple(self._slots.values())
        return self._lane

    @property
    def waits(self) -> float | None:
        """Share of the last seconds, without those of compiling, in which it waited for others;
        None where that cannot be seen."""
        return share(self.lane, "others") if self._sees_others else None

    @property
    def pace(self) -> Pace | None:
        """The last steps; None until two were seen."""
        if self._pace is None and len(self._marks) > 1:
            self._pace = _pace(list(self._marks), self._places)
        return self._pace

    @property
    def step(self) -> float | None:
        """Seconds of its last steps each; None until some seconds of them were seen."""
        return None if self.pace is None or self.pace.seconds < _SURE else self.pace.step

    # ---------------------------------------------------------- the lane

    def _fill(self, before: _Totals, now: _Totals) -> None:
        span = now.at - before.at
        if not _LEAST < span < _GAP:
            return
        left, late, parts = span, {}, {}
        for name in ("compiling", "others", "data", "blocked"):
            counted = max(0.0, getattr(now, name) - getattr(before, name))
            parts[name] = min(counted, left)
            late[name] = max(0.0, counted - span)
            left -= parts[name]
        whole = Slot(0, running=left, **parts).parts
        for second in range(math.floor(before.at), math.ceil(now.at)):
            inside = min(now.at, second + 1) - max(before.at, second)
            self._put(second, [part * inside / span for part in whole])
        self._put_earlier(math.floor(before.at), late["compiling"], late["data"])

    def _put(self, second: int, parts: Sequence[float]) -> None:
        before = self._slots.get(second) or Slot(second)
        self._slots[second] = Slot(second, *map(sum, zip(before.parts, parts, strict=True)))

    def _put_earlier(self, last: int, compiling: float, data: float) -> None:
        """What is counted only when it is over had begun before: it was taken for running."""
        second = last
        while compiling + data > 0.0 and (slot := self._slots.get(second)) is not None:
            first = min(compiling, slot.running)
            then = min(data, slot.running - first)
            if first + then > 0.0:
                self._slots[second] = replace(
                    slot,
                    compiling=slot.compiling + first,
                    data=slot.data + then,
                    running=slot.running - first - then,
                )
            compiling, data, second = compiling - first, data - then, second - 1

    # ---------------------------------------------------------- steps

    def _mark(self, mark: _Mark) -> None:
        marks = self._marks
        if len(marks) > 1 and mark.totals.at - marks[-2].totals.at < _APART:
            marks.pop()
        if marks and mark.totals.at <= marks[-1].totals.at:  # the clock was set back
            marks.clear()
        marks.append(mark)
        while len(marks) > 2 and marks[1].totals.at < mark.totals.at - _LANE:
            marks.popleft()
        self._pace = None


class _Counter:
    """Steps of a rank: step markers, or else items of its loops under `xla_nb.progress` in which it
    executed a graph. Nobody counts what JAX executes: there every item is one."""

    def __init__(self) -> None:
        self.steps = 0
        self._before: tuple[bool, int] | None = None
        self._graphs = 0

    def has_stepped(self, sample: Sample) -> bool:
        """Count the steps of a sample. False for the first one: a step may have begun long ago."""
        marks = sample.steps > 0
        done = sample.steps if marks else sample.items
        before, self._before = self._before, (marks, done)
        if before is None or (before[0] != marks and before[1]):
            self._graphs = sample.graphs
            return False
        new = max(0, done - before[1])
        if new == 0:
            return False
        executed = sample.graphs > self._graphs or "jax" in sample.clients
        self._graphs = sample.graphs
        if not (marks or executed):
            return False
        self.steps += new
        return True


def _totals(sample: Sample) -> _Totals:
    return _Totals(
        sample.at,
        sample.compile_seconds + sample.compiling,
        (sample.waited or 0.0) + sample.lock_waited,
        sample.data_waited,
        sample.blocked,
        sample.idle,
    )


def _busy(before: _Totals, now: _Totals, was_idle: bool) -> tuple[_Totals, _Totals]:
    """The part of the time between two samples in which the rank was not idle: it has begun to be
    so, or has ceased."""
    idle = min(max(0.0, now.idle - before.idle), now.at - before.at)
    if was_idle:
        return before._replace(at=before.at + idle), now
    return before, now._replace(at=now.at - idle)


def _pace(marks: Sequence[_Mark], places: Iterable[str]) -> Pace:
    end = marks[-1]
    first = 0
    for index, mark in enumerate(marks[:-1]):
        late = mark.totals.at < end.totals.at - _PACE
        if late and end.steps - marks[index + 1].steps >= _STEPS:
            first = index + 1
    begin, middle = marks[first], marks[(first + len(marks) - 1) // 2]
    steps = end.steps - begin.steps
    halves = _step(begin, middle), _step(middle, end)
    return Pace(
        steps=steps,
        seconds=_seconds(begin.totals, end.totals),
        step=_step(begin, end) or 0.0,
        halves=(halves[0] or halves[1] or 0.0, halves[1] or 0.0),
        data=max(0.0, end.totals.data - begin.totals.data) / steps,
        compiles=end.compiles - marks[0].compiles,
        compiling_steps=end.steps - marks[0].steps,
        place=next((place for place, _ in Counter(places).most_common(1)), ""),
        fallbacks={
            name: (count - begin.fallbacks.get(name, 0)) / steps
            for name, count in end.fallbacks.items()
        },
    )


def _step(begin: _Mark, end: _Mark) -> float | None:
    """Seconds a step of its own; None where there is no step between them."""
    steps = end.steps - begin.steps
    if steps <= 0:
        return None
    one, two = begin.totals, end.totals
    busy = _seconds(one, two) - max(0.0, two.compiling - one.compiling)
    return max(0.0, busy - max(0.0, two.others - one.others)) / steps


def _seconds(one: _Totals, two: _Totals) -> float:
    """Those in which it was not idle."""
    return two.at - one.at - max(0.0, two.idle - one.idle)


def share(lane: Sequence[Slot], what: str, seconds: float = _PACE) -> float | None:
    """The share of the last seconds of a lane that went into `others` or `data`, without those of
    compiling; None if less than a second of them is known."""
    recent = [slot for slot in lane if slot.second > lane[-1].second - seconds]
    known = math.fsum(one.running + one.others + one.data + one.blocked for one in recent)
    if known < 1.0:
        return None
    return min(1.0, math.fsum(getattr(slot, what) for slot in recent) / known)
