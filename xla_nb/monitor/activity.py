"""The activity of each rank of a run, from its samples: how long it has made no progress, how it
spent the seconds of its last minute (its lane) and of the whole run, how long a step takes.

Progress is anything that a rank writes, reports, counts or passes through: output, figures, loops,
steps, graphs, collectives, the `lock`, a phase. Signs of life alone (memory, CPU time, its line)
are not progress.

Samples count waiting and compiling exactly, so this time is known however far apart two samples
are, and is spread evenly over the interval. The rest is running, unless the rank was silent: it may
have been stopped. Seconds are on the rank's own clock: hosts whose clocks differ have lanes shifted
against each other by that difference.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from xla_nb.monitor.state import Phase, RankState
from xla_nb.record.sample import DATA, INPUT, LOCK, Activity, Sample, silence

#: Seconds without a sample after which Python is taken to be blocked.
_UNHEARD_AFTER = 10.0
_START_TOLERANCE = 0.5  # seconds by which the start of the same wait may differ between samples
_BUSY = 0.2  # share of a CPU from which a rank counts as computing: others may load the machine
LANE = 60  # seconds of a lane
_MAX_GAP = 20.0  # seconds between two samples from which all time between them is unknown
_MIN_SPAN = 0.005  # shortest busy time in a lane, in seconds: clocks are read one after the other
_PACE, _PACE_STEPS = 20.0, 10  # seconds and steps that `pace` looks back, if there were so many
_MARK_DISTANCE = 0.9  # seconds between two kept marks
_RECENT = 2.0  # seconds, in most of which a rank did what is shown
_MIN_STEPS_TIME = 2.5  # seconds of steps from which their time is shown: samples are 0.25 s apart
_PAUSE = 3.0  # times as long per step as usual: a pause, before a loop or for a validation
_MAX_ERROR = 0.15  # standard error of a step's time from which it is unknown: steps come in bursts


#: Ways in which a rank spends a second, in words, in the order of a slot's parts.
KINDS = ("compiling", "running", "waiting for others", "waiting for data", "in a blocking call")


@dataclass(frozen=True)
class Slot:
    """One second of a rank's lane, or `wide` seconds: when it began, in whole seconds since the
    epoch, and how many seconds of it were spent on each kind. These add up to its width, except in
    the first and the newest slot, for time in which a live rank was idle, and for unknown time."""

    second: int
    compiling: float = 0.0
    running: float = 0.0
    others: float = 0.0  # waiting for other ranks, or for the `lock`
    data: float = 0.0  # waiting for a loader's next batch
    blocked: float = 0.0  # in a call that only waits, such as time.sleep
    wide: int = field(default=1, kw_only=True)

    @property
    def parts(self) -> tuple[float, ...]:
        """All kinds, in the order of KINDS."""
        return self.compiling, self.running, self.others, self.data, self.blocked

    def plus(self, parts: Iterable[float]) -> Slot:
        sums = map(sum, zip(self.parts, parts, strict=True))
        return Slot(self.second, *sums, wide=self.wide)


def joined(slots: Iterable[Slot], wide: int) -> tuple[Slot, ...]:
    """The same time in slots of `wide` seconds, a multiple of theirs."""
    merged: dict[int, Slot] = {}
    for slot in slots:
        at = slot.second // wide * wide
        merged[at] = (merged.get(at) or Slot(at, wide=wide)).plus(slot.parts)
    return tuple(merged.values())


@dataclass(frozen=True)
class Window:
    """Counts of a rank between two samples: `seconds` in which it was not idle, and how many of
    these it was `compiling`, `waited` for others (None if not visible), was `locked` (waiting for
    the `lock`), waited for `data` (`first_data` in the first wait) and was `blocked`. `executed`
    counts at most one graph per step.
    """

    seconds: float
    steps: int
    executed: int
    compiles: int
    compiling: float
    waited: float | None
    locked: float
    data: float
    blocked: float
    fallbacks: Mapping[str, int]
    newest: Sample
    first_data: float = 0.0

    @classmethod
    def between(cls, old: Sample, new: Sample) -> Window:
        steps = max(0, new.items - old.items if new.loops_step else new.steps - old.steps)
        return cls(
            seconds=new.at - old.at - max(0.0, new.idle - old.idle),
            steps=steps,
            executed=max(0, min(new.executed - old.executed, steps)),
            compiles=new.compiles - old.compiles,
            compiling=_compile_time(new) - _compile_time(old),
            waited=None if new.waited is None else new.waited - (old.waited or 0.0),
            locked=new.lock_waited - old.lock_waited,
            data=new.data_waited - old.data_waited,
            blocked=new.blocked - old.blocked,
            fallbacks={n: c - old.fallbacks.get(n, 0) for n, c in new.fallbacks.items()},
            newest=new,
            first_data=new.first_data_waited - old.first_data_waited,
        )

    @property
    def per_step(self) -> float:
        """Seconds per step, without compilation."""
        return max(0.0, self.seconds - self.compiling) / self.steps

    @property
    def spent(self) -> dict[str, float]:
        """The seconds spent on each kind except running."""
        kinds = {
            "compiling": self.compiling,
            "others": (self.waited or 0.0) + self.locked,
            "data": self.data,
            "blocked": self.blocked,
        }
        return {kind: max(0.0, seconds) for kind, seconds in kinds.items()}


@dataclass(frozen=True)
class RankStatus:
    """One rank at a moment. Times are in seconds up to that moment.

    quiet      since its last progress
    lasting    since its activity began
    operation  what it waits in, as in Sample; `missing` are the ranks that it waits for
    place      its innermost line of the notebook; `call` is the function that it called there
    cpu        its recent share of a CPU, if known
    returned   its function has returned; the result is being sent
    unheard    no sample has arrived for some time
    """

    rank: int
    phase: Phase = "running"
    quiet: float = 0.0
    lasting: float = 0.0
    activity: Activity = "running"
    operation: str = ""
    missing: tuple[int, ...] = ()
    place: str = ""
    call: str = ""
    cpu: float | None = None
    unheard: bool = False
    returned: bool = False

    @classmethod
    def of(cls, rank: RankState, sample: Sample | None, ended: Mapping[int, float]) -> RankStatus:
        """Status from its newest sample. `ended`: when other ranks ended; by then they had arrived
        at a collective or released the lock."""
        if sample is None or rank.phase != "running":
            return cls(rank.rank, rank.phase, place=rank.place)
        blocked = sample.activity == "blocked"
        return cls(
            rank.rank,
            rank.phase,
            lasting=max(0.0, sample.at - sample.since),
            activity="running" if blocked else sample.activity,
            operation=sample.operation if sample.activity == "waiting" else "",
            missing=missing(sample, ended),
            place=sample.place,
            call=sample.operation if blocked else "",
            returned=sample.returned,
        )

    @property
    def waits_for_lock(self) -> bool:
        return self.activity == "waiting" and self.operation == LOCK

    @property
    def in_collective(self) -> bool:
        return self.activity == "waiting" and self.operation != LOCK

    @property
    def computes(self) -> bool:
        return self.activity == "running" and self.cpu is not None and self.cpu >= _BUSY


class Track:
    """One rank's samples, as they arrive. Bounded, however long the run is."""

    def __init__(self) -> None:
        self.sample: Sample | None = None  # the newest,
        self.arrived = math.inf  # and the time.monotonic() when it was first seen
        self._recent: deque[Sample] = deque()  # samples from about _RECENT seconds ago on
        self._slots: dict[int, Slot] = {}  # by first second; old ones are `_width` seconds wide
        self._width = 1
        self._marks: deque[Sample] = deque()  # the first samples after a step
        self._between_marks: float | None = None  # seconds from one step to the next
        self._watched_sample: Sample | None = None  # the last one that `watch` saw
        self._mark: object = None
        self._progress_at = self._heard_at = math.inf  # times; inf: not watched yet

    def add(self, sample: Sample, started: float | None = None, ranks: int = 1) -> None:
        """Add a newer sample of one of so many `ranks`. `started`: when the rank started, with all
        counts at 0."""
        newest, self.sample = self.sample, sample
        if newest is not None and newest.at == sample.at:
            return
        self.arrived = time.monotonic()
        recent = self._recent
        if newest is None and started is not None and sample.at <= started + silence(ranks):
            recent.append(Sample(at=started, since=started, cpu=math.nan))  # else first seen late
        previous = recent[-1] if recent else None
        if previous is not None and sample.idle > previous.idle:  # live ranks: another cell began
            recent.clear()
            recent.append(previous)
        if previous is not None and sample.at < previous.at:  # the clock was set back
            self._slots = {at: slot for at, slot in self._slots.items() if at < int(sample.at)}
            recent.clear()
        elif previous is not None:
            self._add_time(previous, sample, silence(ranks))
            if len(self._slots) > 3 * LANE:
                self._merge_old(math.ceil(sample.at) - LANE)
        recent.append(sample)
        while len(recent) > 2 and recent[1].at <= sample.at - _RECENT:
            recent.popleft()
        if newest is not None and Window.between(newest, sample).steps:
            self._mark_step(sample)

    @property
    def cpu(self) -> float | None:
        """Its share of a CPU in the last seconds; None until known."""
        if not self._recent:
            return None
        first, last = self._recent[0], self._recent[-1]
        share = (last.cpu - first.cpu) / max(1.0, last.at - first.at)
        return share if last.at - first.at >= 1 and share >= 0 else None

    def steady(self, sample: Sample) -> Sample:
        """Its newest sample, with the activity of most of the last two seconds: views would flicker
        otherwise."""
        is_lasting = sample.at - sample.since >= _RECENT / 2 and sample.activity != "running"
        if is_lasting or sample.activity == "idle" or sample.operation == INPUT or not self._recent:
            return sample
        window = Window.between(self._recent[0], self._recent[-1])
        waits = window.spent
        compiling, waiting = waits.pop("compiling"), sum(waits.values())
        running = window.seconds - compiling - waiting
        names: tuple[Activity, ...] = ("running", "compiling", "waiting")
        main = max(zip((running, compiling, waiting), names, strict=True), key=itemgetter(0))[1]
        kind = max(waits, key=waits.__getitem__) if main == "waiting" else main
        within = [*self._recent][1:] or self._recent  # the first one is older, or of another cell
        seen = ((one.operation, one.place) for one in reversed(within) if _kind(one) == kind)
        call, place = next(seen, (DATA, "") if kind == "data" else ("", sample.place))
        is_same = sample.activity == main and sample.operation in (call, "")
        if call == LOCK and not is_same:  # it may hold the lock, and others be shown as waiting
            is_blocked = _kind(sample) == "blocked"
            return replace(sample, activity="blocked") if is_blocked else sample
        missing = sample.missing if is_same and call != LOCK else ()  # the lock has changed hands
        return replace(sample, activity=main, operation=call, place=place, missing=missing)

    @property
    def lane(self) -> tuple[Slot, ...]:
        last = max(self._slots, default=0)
        return tuple(slot for at, slot in self._slots.items() if at > last - LANE)

    @property
    def whole(self) -> tuple[Slot, ...]:
        """All its time, in at most about 200 slots."""
        return joined(self._slots.values(), self._width)

    def waits(self, shown: Sequence[Slot]) -> float | None:
        """Share of the time in these slots in which it waited for others; None if that is not
        visible, or if they cover less than a second."""
        total = math.fsum(sum(slot.parts) for slot in shown)
        if self.sample is None or self.sample.waited is None or total < 1.0:
            return None
        return min(1.0, math.fsum(slot.others for slot in shown) / total)

    @property
    def pace(self) -> Window | None:
        """The window from before the last steps (of live ranks: of their newest program) until now;
        None until two steps were seen, and if the last was long ago."""
        last = self.sample
        if len(self._marks) < 2 or last is None or self._has_begun_anew(last):
            return None
        old = (mark for mark in reversed(self._marks) if last.at - mark.at >= _PACE)
        windows = (w for mark in old if (w := Window.between(mark, last)).steps >= _PACE_STEPS)
        is_late = last.at - self._marks[-1].at > _MAX_GAP
        return None if is_late else next(windows, Window.between(self._marks[0], last))

    @property
    def step(self) -> float | None:
        """Seconds per item of its current or last loop; if there is none, seconds from one step to
        the next in the last minute, without compilation and pauses. None until known."""
        last = self.sample
        if last is not None and last.loops_step and last.loops:  # samples of live ranks have none
            rate = last.loops[-1].rate
            return 1 / rate if rate else None
        return None if self.pace is None else self._between_marks

    def _time_steps(self) -> float | None:
        """Seconds from one step to the next, by the marks."""
        pairs = itertools.pairwise(self._marks)
        windows = [one for pair in pairs if (one := Window.between(*pair)).steps]
        if len(windows) < 2 or sum(one.seconds for one in windows) < _MIN_STEPS_TIME:
            return None
        median = statistics.median_low(one.per_step for one in windows)
        usual = [one for one in windows if one.per_step <= _PAUSE * median]
        mean = sum(one.per_step * one.steps for one in usual) / sum(one.steps for one in usual)
        error = statistics.pstdev(one.per_step for one in usual) / math.sqrt(len(usual))
        return mean if median and error <= _MAX_ERROR * mean else None

    # ---------------------------------------------------------- progress

    def watch(self, rank: RankState, written: int, now: float) -> None:
        """Note whether it made progress. `written` is the size of its files in bytes, `now` is from
        `time.monotonic()`, since the clocks of hosts may differ."""
        old, sample = self._watched_sample, self.sample
        if self._heard_at > now or (sample is not None and (old is None or sample.at > old.at)):
            self._heard_at = now
        mark = rank.phase, written, sample and _counts(sample)
        has_moved = mark != self._mark or _in_collective(old) or _in_collective(sample)
        if has_moved and not _in_one_collective(old, sample):
            self._progress_at = now
        self._mark, self._watched_sample = mark, sample

    def status(self, rank: RankState, now: float, ended: Mapping[int, float]) -> RankStatus:
        """Its status as last watched; `ended`: when other ranks ended."""
        sample, quiet = self._watched_sample, max(0.0, now - self._progress_at)
        status = RankStatus.of(rank, sample, ended)
        if sample is None or rank.phase != "running":
            unheard = rank.phase == "running" and quiet >= _UNHEARD_AFTER
            return replace(status, quiet=quiet, lasting=quiet, unheard=unheard)
        age = now - self._heard_at
        return replace(
            status,
            quiet=quiet,
            lasting=status.lasting + age,
            cpu=self.cpu,
            unheard=age >= _UNHEARD_AFTER,
        )

    # ---------------------------------------------------------- the lane

    def _add_time(self, old: Sample, new: Sample, known: float) -> None:
        """Add the time between two samples to the lane, without the time in which the rank was idle
        at either end. If it is longer than `known` seconds, only what was counted of it."""
        window = Window.between(old, new)
        span = remaining = window.seconds
        if not _MIN_SPAN < span < _MAX_GAP:
            return
        begin = new.at - span if old.activity == "idle" else old.at
        end = begin + span
        parts: Any = {}
        for name, seconds in window.spent.items():
            parts[name] = min(seconds, remaining)
            remaining -= parts[name]
        if _kind(old) == "blocked" and _kind(new) in ("others", "data"):  # until that wait began
            ended = max(0.0, remaining - (new.cpu - old.cpu))
            parts["blocked"], remaining = parts["blocked"] + ended, remaining - ended
        running = remaining if span < known else 0.0
        totals = Slot(0, running=running, **parts).parts
        for second in range(math.floor(begin), math.ceil(end)):
            overlap = min(end, second + 1) - max(begin, second)
            slot = self._slots.get(second) or Slot(second)
            self._slots[second] = slot.plus(part * overlap / span for part in totals)
        self._move_compiling(math.floor(begin), window.compiling - parts["compiling"])

    def _merge_old(self, first: int) -> None:
        """Merge all slots before this second into at most LANE wider ones."""
        old = [self._slots.pop(at) for at in [*self._slots] if at < first]
        while len(merged := joined(old, self._width)) > LANE:
            self._width *= 2
        self._slots = {slot.second: slot for slot in merged} | self._slots

    def _move_compiling(self, second: int, late: float) -> None:
        """Move so many seconds of compiling that were counted only when over from earlier running
        time, as which they were taken. They were spent within as many seconds."""
        first = second - math.ceil(late)
        while late > 0.0 and second >= first and second in self._slots:
            slot = self._slots[second]
            part = min(late, slot.running)
            compiling, running = slot.compiling + part, slot.running - part
            self._slots[second] = replace(slot, compiling=compiling, running=running)
            late, second = late - part, second - 1

    # ---------------------------------------------------------- steps

    def _mark_step(self, mark: Sample) -> None:
        marks = self._marks
        if len(marks) > 1 and mark.at - marks[-2].at < _MARK_DISTANCE:
            marks.pop()
        if marks and (
            mark.at <= marks[-1].at  # the clock was set back
            or mark.loops_step != marks[-1].loops_step  # steps are counted another way now
            or self._has_begun_anew(mark)
        ):
            marks.clear()
        marks.append(mark)
        while len(marks) > 3 and marks[0].at < mark.at - LANE:
            marks.popleft()
        self._between_marks = self._time_steps()  # here: views look more often than ranks step

    def _has_begun_anew(self, sample: Sample) -> bool:
        """Whether a live rank has started another program since its last step."""
        return sample.activity != "idle" and sample.idle > self._marks[-1].idle


def _kind(sample: Sample) -> str:
    """Its activity, by the name under which seconds are counted."""
    if sample.activity == "waiting":
        return "others"
    if sample.activity == "running" and sample.operation:
        return "data" if sample.operation == DATA else "blocked"
    return sample.activity


def _compile_time(sample: Sample) -> float:
    """Seconds of compiling so far, a compilation in progress included."""
    return sample.compile_seconds + sample.compiling


def missing(sample: Sample, ended: Mapping[int, float]) -> tuple[int, ...]:
    """The ranks that it waits for, except those that have ended since."""
    return tuple(rank for rank in sample.missing if ended.get(rank, -math.inf) < sample.at)


def _counts(sample: Sample) -> tuple[object, ...]:
    loops = tuple((loop.label, loop.done) for loop in sample.loops)
    fallbacks = sum(sample.fallbacks.values())
    counts = sample.steps, sample.graphs, sample.compiles, sample.locks, sample.returned
    return *counts, fallbacks, loops


def _in_collective(sample: Sample | None) -> bool:
    return sample is not None and sample.activity == "waiting" and sample.operation != LOCK


def _in_one_collective(old: Sample | None, new: Sample | None) -> bool:
    """Whether it is still in the same collective. What it writes there (that it waits) is not
    progress. A wait for the lock is not a collective: trying again and again is not progress."""
    if old is None or new is None or not (_in_collective(old) and _in_collective(new)):
        return False
    return old.operation == new.operation and abs(old.since - new.since) < _START_TOLERANCE


class Tracks(defaultdict[int, Track]):
    """A track for each rank of one run. Views and the hang watch read them in their own threads,
    holding `lock`."""

    def __init__(self) -> None:
        super().__init__(Track)
        self.lock = threading.RLock()

    def look(self, rank: RankState, read: Callable[[int], Sample | None]) -> None:
        """Add the newest sample of a rank to its track."""
        with self.lock:
            if (sample := read(rank.rank)) is not None:
                self[rank.rank].add(sample, rank.started, len(self))
