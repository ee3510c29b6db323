"""What each rank is doing, and for how long it has not got on.

Progress is what a rank writes, reports, counts or goes through: output, figures, loops, steps,
graphs, collectives, the `lock`, a phase. What only shows that it lives (memory, CPU time, its
line) is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from xla_nb.record.sample import LOCK, Activity, Sample
from xla_nb.run.state import Phase, RankState

#: Seconds without a sample after which Python is taken to be blocked.
_UNHEARD = 10.0
_CPU_WINDOW = 5.0  # seconds; the share of a CPU is of the last one or two of these
_SAME = 0.5  # seconds by which the start of one wait may differ between samples
_BUSY = 0.2  # of a CPU, from which on a rank is said to compute: others may load the machine


@dataclass(frozen=True)
class Standing:
    """One rank at a moment. Times are in seconds until then.

    quiet      since its last progress
    lasting    since its activity began
    pid        of its process, if that is stopped
    host       where it is, if the run has several
    operation  of its wait, as in Sample; `missing` are the ranks that it waits for
    place      its innermost line of the notebook; `call`: what it has called there
    cpu        its share of a CPU lately, if known
    returned   its function has returned; the result is on its way
    unheard    no sample has come for some time, though its process is not stopped
    """

    rank: int
    phase: Phase = "running"
    quiet: float = 0.0
    lasting: float = 0.0
    pid: int | None = None
    host: str = ""
    activity: Activity = "running"
    operation: str = ""
    missing: tuple[int, ...] = ()
    place: str = ""
    call: str = ""
    cpu: float | None = None
    unheard: bool = False
    returned: bool = False

    @classmethod
    def of(cls, rank: RankState, sample: Sample | None, ended: Mapping[int, float]) -> Standing:
        """What its newest sample says; `ended`: when other ranks have, which may have come before
        that, or given the lock back."""
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


class Clock:
    """The looks at one rank, from the first on. `now` is of `time.monotonic()`: the clocks of hosts
    may differ, so what is measured is when a change is seen here."""

    def __init__(self, now: float) -> None:
        self._progress = self._heard = now
        self._mark: object = None
        self._sample: Sample | None = None
        self._cpu: list[tuple[float, float]] = []  # time and processor time of up to two samples

    def look(
        self, rank: RankState, sample: Sample | None, written: int, now: float, stopped: bool
    ) -> None:
        """Take in a newer sample, if there is one, and how many bytes its files have. A process
        that is `stopped` can make no progress: its time begins when it goes on."""
        before, sample = self._sample, sample or self._sample
        if sample is not None and (before is None or sample.at > before.at):
            self._heard = now
            self._count_cpu(sample)
        mark = rank.phase, written, sample and _counts(sample)
        moved = mark != self._mark or _in_collective(before) or _in_collective(sample)
        if stopped or (moved and not _in_one_collective(before, sample)):
            self._progress = now
        self._mark, self._sample = mark, sample

    def standing(
        self,
        rank: RankState,
        pid: int | None,
        now: float,
        ended: Mapping[int, float] = MappingProxyType({}),
    ) -> Standing:
        """`pid`: of its process, if that is stopped; `ended` as above."""
        sample, one = self._sample, Standing.of(rank, self._sample, ended)
        quiet = now - self._progress
        if sample is None or rank.phase != "running":
            return replace(one, quiet=quiet, lasting=quiet, pid=pid)
        age = now - self._heard
        return replace(
            one,
            quiet=quiet,
            lasting=one.lasting + age,
            pid=pid,
            cpu=self._share(sample),
            unheard=pid is None and age >= _UNHEARD,
        )

    def _count_cpu(self, sample: Sample) -> None:
        if not self._cpu or sample.at - self._cpu[-1][0] >= _CPU_WINDOW:
            self._cpu = [*self._cpu[-1:], (sample.at, sample.cpu)]

    def _share(self, sample: Sample) -> float | None:
        at, cpu = self._cpu[0]
        return (sample.cpu - cpu) / (sample.at - at) if sample.at - at >= 1 else None


def missing(sample: Sample, ended: Mapping[int, float]) -> tuple[int, ...]:
    """For whom it waits, but for those that have ended since."""
    return tuple(rank for rank in sample.missing if ended.get(rank, -math.inf) < sample.at)


def _counts(sample: Sample) -> tuple[object, ...]:
    loops = tuple((loop.label, loop.done) for loop in sample.loops)
    fallbacks = sum(sample.fallbacks.values())
    done = sample.steps, sample.graphs, sample.compiles, sample.locks, sample.returned
    return *done, fallbacks, loops


def _in_collective(sample: Sample | None) -> bool:
    return sample is not None and sample.activity == "waiting" and sample.operation != LOCK


def _in_one_collective(before: Sample | None, now: Sample | None) -> bool:
    """Whether it is in the same collective still. What it writes there (that it waits) is no
    progress. A wait for the lock is no collective: who tries again and again does not get on."""
    if before is None or now is None or not (_in_collective(before) and _in_collective(now)):
        return False
    return before.operation == now.operation and abs(before.since - now.since) < _SAME
