"""What a rank's samples tell of its last minute: its lane, the time of a step, compilations.

Samples count seconds exactly, so what lies between two of them is known however far apart they
are; within that time it is spread evenly. Seconds are those of the rank's own clock: hosts whose
clocks differ have lanes that are shifted against each other by as much.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from xla_nb.record.sample import DATA, INPUT, Activity, Sample
from xla_nb.run.conclusions import Window
from xla_nb.views.snapshot import Slot

_LANE = 60  # seconds of a lane
_GAP = 20.0  # seconds between two samples, from which on what was between them is not known
#: Kinds of waiting, as they are counted.
_WAITS = ("others", "data", "blocked")
#: What may be counted when it is over, or by looks: it is taken from earlier running.
_LATE = ("compiling", "data", "blocked")
_LEAST = 0.005  # seconds of being busy that a lane has: clocks are read one after the other
_PACE = 10.0  # seconds of steps, or one step, of which their time is told
_LEAST_SPANS = 4  # between marks, however long: one slow step says little of the others
_ALIKE = 0.75  # of the steps, at least, are about as long as half of them are: their time is told
_COMPILING = 0.1  # of a span, from which it says nothing of steps that do not compile
_APART = 0.9  # seconds between two marks that are kept
_LATELY = 2.0  # seconds, in most of which a rank did what it is said to do
_SURE = 2.5  # seconds of steps, from which their time is told: samples are 0.25 s apart


class _Totals(NamedTuple):
    """What a sample has counted so far, in seconds."""

    at: float
    compiling: float
    others: float
    data: float
    blocked: float
    idle: float


class Track:
    """One rank's samples, as they come. Bounded, however long the run is."""

    def __init__(self, started: float | None = None) -> None:
        """started: when nothing was counted yet."""
        nothing = [] if started is None else [_Totals(started, 0, 0, 0, 0, 0)]
        self._recent: deque[_Totals] = deque(nothing)
        #: The operation and the line at which it was last seen to do each of these.
        self._seen: dict[str, tuple[str, str]] = {}
        self._was_idle = False
        self._slots: dict[int, Slot] = {}
        self._newest: Sample | None = None
        self._marks: deque[Sample] = deque()  # the first ones to see a step
        self._sees_others = False
        self._lane: tuple[Slot, ...] | None = ()

    def add(self, sample: Sample) -> None:
        """Take in a newer sample."""
        now = _totals(sample)
        if self._newest is None and self._recent and now.at > self._recent[0].at + _LATELY:
            self._recent.clear()  # it was looked at late: nobody knows when that was counted
        before = self._recent[-1] if self._recent else None
        self._seen[_kind(sample)] = sample.operation, sample.place
        self._sees_others = sample.waited is not None
        was_idle, self._was_idle = self._was_idle, sample.activity == "idle"
        if before is not None and now.at < before.at:  # the clock was set back
            self._slots = {at: slot for at, slot in self._slots.items() if at < int(now.at)}
            self._recent.clear()
        elif before is not None:
            self._fill(*_busy(before, now, was_idle))
            for second in [at for at in self._slots if at < math.ceil(now.at) - _LANE]:
                del self._slots[second]
        self._recent.append(now)
        while len(self._recent) > 2 and self._recent[1].at <= now.at - _LATELY:
            self._recent.popleft()
        self._lane = None
        newest, self._newest = self._newest, sample
        if newest is not None and Window.between(newest, sample).steps:
            self._mark(sample)

    def steady(self, sample: Sample) -> Sample:
        """Its newest sample with what it did in most of the last two seconds, since all that shows
        what it does would flicker else."""
        lasts = sample.at - sample.since >= _LATELY / 2 and sample.activity != "running"
        if lasts or sample.activity == "idle" or sample.operation == INPUT or not self._recent:
            return sample
        span, compiling, *waits, idle = (
            max(0.0, last - first)
            for first, last in zip(self._recent[0], self._recent[-1], strict=True)
        )
        waiting = sum(waits)
        running = span - compiling - waiting - idle
        names: tuple[Activity, ...] = ("running", "compiling", "waiting")
        most = max(zip((running, compiling, waiting), names, strict=True), key=itemgetter(0))[1]
        kind = _WAITS[waits.index(max(waits))] if most == "waiting" else most
        call, place = self._seen.get(kind, (DATA if kind == "data" else "", ""))
        same = sample.activity == most and sample.operation in (call, "")
        missing = sample.missing if same else ()
        return replace(sample, activity=most, operation=call, place=place, missing=missing)

    @property
    def lane(self) -> tuple[Slot, ...]:
        if self._lane is None:
            self._lane = tuple(self._slots.values())
        return self._lane

    def waits(self, newest: int | None = None) -> float | None:
        """Share of all that its lane shows in which it waited for others; None where that cannot be
        seen, or of less than a second. newest: the last second that lanes show."""
        first = -math.inf if newest is None else newest - _LANE
        shown = [slot for slot in self.lane if slot.second > first]
        known = math.fsum(sum(slot.parts) for slot in shown)
        if not self._sees_others or known < 1.0:
            return None
        return min(1.0, math.fsum(slot.others for slot in shown) / known)

    @property
    def pace(self) -> Window | None:
        """The steps of the last minute; None until two were seen, and where the last was long
        ago."""
        if len(self._marks) < 2 or self._newest is None:
            return None
        late = self._newest.at - self._marks[-1].at > _GAP
        return None if late else Window.between(self._marks[0], self._marks[-1])

    @property
    def step(self) -> float | None:
        """Seconds from one of its last steps to the next; None until some of them were seen, and
        where they differ much. A few that compile are left out, and what takes more than twice as
        long as half of them do, as what lies between epochs."""
        if self.pace is None:
            return None
        late = self._marks[-1].at - _PACE
        pairs = list(pairwise(self._marks))
        few = len(pairs) - _LEAST_SPANS
        spans = [
            Window.between(*both) for n, both in enumerate(pairs) if both[1].at > late or n >= few
        ]
        if 2 * sum(span.compiles for span in spans) < sum(span.steps for span in spans):
            spans = [span for span in spans if span.compiling <= _COMPILING * span.seconds]
        each = [span.stepping / span.steps for span in spans for _ in range(span.steps)]
        most = 2 * statistics.median_low(each) if each else 0.0
        like = [span for span in spans if span.stepping <= most * span.steps]
        steps, seconds = sum(span.steps for span in like), sum(span.stepping for span in like)
        known = seconds >= _SURE and steps >= _ALIKE * len(each)
        return seconds / steps if known else None

    # ---------------------------------------------------------- the lane

    def _fill(self, before: _Totals, now: _Totals) -> None:
        span = now.at - before.at
        if not _LEAST < span < _GAP:
            return
        left, late, parts = span, {}, {}
        for name in ("compiling", "others", "data", "blocked"):
            counted = max(0.0, getattr(now, name) - getattr(before, name))
            parts[name] = min(counted, left)
            late[name] = counted - parts[name]
            left -= parts[name]
        whole = Slot(0, running=left, **parts).parts
        for second in range(math.floor(before.at), math.ceil(now.at)):
            inside = min(now.at, second + 1) - max(before.at, second)
            self._put(second, [part * inside / span for part in whole])
        self._put_earlier(math.floor(before.at), [late[name] for name in _LATE])

    def _put(self, second: int, parts: Sequence[float]) -> None:
        before = self._slots.get(second) or Slot(second)
        self._slots[second] = Slot(second, *map(sum, zip(before.parts, parts, strict=True)))

    def _put_earlier(self, second: int, late: list[float]) -> None:
        """What is counted only when it is over had begun before, and calls are counted by what a
        few looks saw: it was taken for running."""
        while sum(late) > 0.0 and (slot := self._slots.get(second)) is not None:
            for n, name in enumerate(_LATE):
                part = min(late[n], slot.running)
                late[n] -= part
                more = {name: getattr(slot, name) + part, "running": slot.running - part}
                slot = replace(slot, **more) if part else slot
            self._slots[second], second = slot, second - 1

    # ---------------------------------------------------------- steps

    def _mark(self, mark: Sample) -> None:
        marks = self._marks
        if len(marks) > 1 and mark.at - marks[-2].at < _APART:
            marks.pop()
        if marks and mark.at <= marks[-1].at:  # the clock was set back
            marks.clear()
        marks.append(mark)
        while len(marks) > 2 and marks[0].at < mark.at - _LANE:
            marks.popleft()


def _kind(sample: Sample) -> str:
    """What it does, by the name of what is counted."""
    if sample.activity == "waiting":
        return "others"
    if sample.activity == "running" and sample.operation:
        return "data" if sample.operation == DATA else "blocked"
    return sample.activity


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
