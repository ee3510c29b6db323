"""Problems of a run, recent or overall, found in its ranks' samples.

Pure, except `conclude`. Only causes that take much of the time are reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from xla_nb.messages.events import Concluded
from xla_nb.record.sample import Sample
from xla_nb.run import waits
from xla_nb.run.activity import RankStatus, Window
from xla_nb.run.stacks import Followed
from xla_nb.run.state import RunState
from xla_nb.run.waits import WAITED, line
from xla_nb.wording import exactly, listed, ranks, several

Samples = Mapping[int, Sample]

_STEPS = 10  # least number of steps to draw a conclusion from
_TENS = 30  # the same for waiting for data, in the whole run: the first batches take long
_EACH = 0.9  # share of the steps that counts as every step
_SOME = 0.3  # the same if the change is known: other graphs follow a collective, say
_COST = 2.0  # least cost to report, in seconds
_SHARE = 0.1  # least cost to report, as a share of the time
_WAITING, _MOST = 0.2, 0.5  # the same for waiting for data or a lock; for needed compilation
_TOGETHER = 1.0  # seconds, plus a step, between the last steps of ranks whose waits are compared


Windows = Mapping[int, Window]


@dataclass(frozen=True)
class _Time:
    """The windows of ranks. `everybody`: the number of ranks present, `total`: of the run. `of`
    names the time that costs are part of."""

    label: str
    windows: Windows
    everybody: int
    total: int
    of: str

    def found(self) -> Iterator[Concluded]:
        yield from filter(None, [self._compiled(), self._fallen_back()])
        loading, awaited = self._loading(), self._awaited()
        if loading is not None:
            yield loading
        if awaited is not None and not _explains(loading, awaited):
            yield awaited
        locked = {rank: one.locked for rank, one in self.windows.items()}
        if (found := self._waited("locked", "the `lock`", locked)) is not None:
            yield found

    def _loading(self) -> Concluded | None:
        done = [max(one.newest.done, one.newest.graphs) for one in self.windows.values()]
        if max(done, default=0) < _TENS:
            return None
        loaded = {rank: one.data for rank, one in self.windows.items()}
        return self._waited("loading", "data", loaded)

    def _compiled(self) -> Concluded | None:
        again = {
            rank: one
            for rank, one in self.windows.items()
            if min(one.compiles, one.executed) >= _STEPS
            and one.compiles >= (_SOME if one.newest.changes_at else _EACH) * one.executed
            and _matters(one.compiling, one, _SHARE)
        }
        if not again:
            return None
        some, cost = self._some(again), statistics.median(one.compiling for one in again.values())
        what = f"compiled a new graph, {self._part(cost)}"
        of = f" of {ranks(some)}" if some else ""
        told = f"each step{of} {what}"
        cause = next((w.newest for w in again.values() if w.newest.changes_at), None)
        if cause is not None:
            told = f"{line(cause.changes_at, self.label)} {cause.change}, so each{of} {what}"
        return Concluded(kind="compiling", sentence=told, ranks=some, strength=cost)

    def mostly_compiled(self) -> Iterator[Concluded]:
        """Compilation that took half of the time or more, on the rank where it took longest."""
        if self.windows:
            rank, one = max(self.windows.items(), key=lambda pair: pair[1].compiling)
            if _matters(one.compiling, one, _MOST):
                told = f"{self._part(one.compiling)} compiling {several(one.compiles, 'graph')}"
                if len({other.compiles for other in self.windows.values()}) > 1:
                    told += f" on {ranks([rank])}"
                yield Concluded(kind="graphs", sentence=told, strength=one.compiling, calm=True)

    def _fallen_back(self) -> Concluded | None:
        found: dict[str, str] = {}
        who: set[int] = set()
        for rank, one in self.windows.items():
            for name, calls in one.fallbacks.items():
                if one.steps >= _STEPS and calls >= _EACH * one.steps:
                    found[name] = found.get(name) or one.newest.fallbacks_at.get(name, "")
                    who.add(rank)
        if not found:
            return None
        place = "".join(found.values()) if len(found) == 1 else ""
        at = f" at {line(place, self.label)}" if place else ""
        told = f"every step ran {listed(found, most=2)} on the CPU{at}"
        return Concluded(kind="fallback", sentence=told, ranks=self._some(who))

    def _waited(self, kind: str, what: str, waited: Mapping[int, float]) -> Concluded | None:
        """Ranks that waited for something for much of the time: those that waited longest, or at
        least half as long."""
        much = [cost for r, cost in waited.items() if _matters(cost, self.windows[r], _WAITING)]
        if not much:
            return None
        who = [rank for rank, cost in waited.items() if cost >= max(much) / 2]
        some, cost = self._some(who), max(waited.values())
        on = f" on {ranks(some)}" if some else ""
        up_to = "up to " if min(waited[rank] for rank in who) < _EACH * cost else ""
        told = f"waiting for {what} took {up_to}{self._part(cost)}{on}"
        return Concluded(kind=kind, sentence=told, ranks=some, strength=cost)

    def _awaited(self) -> Concluded | None:
        """Ranks that wait little while all others wait, because their steps are slower or they
        validate alone, say; without steps, for most of the time. None if some waits are in between,
        as when another rank has become the slow one."""
        waited = {rank: one.waited for rank, one in self.windows.items() if one.waited is not None}
        if len(waited) < max(2, self.everybody):
            return None
        most = max(waited.values())
        slow = [rank for rank, wait in waited.items() if wait <= most / 4]
        others = [wait for rank, wait in waited.items() if wait > most / 2]
        if not 0 < len(slow) <= len(others) or len(slow) + len(others) < len(waited):
            return None
        cost = min(others) - max(waited[rank] for rank in slow)
        stepping = min(one.steps for one in self.windows.values()) >= _STEPS
        if not _matters(cost, self.windows[slow[0]], _SHARE if stepping else _MOST):
            return None
        least = math.floor(cost) if cost >= 10 else math.floor(10 * cost) / 10
        who = f"the other{'s' * (len(others) > 1)}"
        told = f"{who} waited at least {self._part(least)} for {ranks(slow)}"
        return Concluded(kind=WAITED, sentence=told, ranks=tuple(slow), strength=cost)

    def _part(self, cost: float) -> str:
        return f"{f'{cost:.1f} s' if cost < 9.95 else exactly(round(cost))} of {self.of}"

    def _some(self, numbers: Collection[int]) -> tuple[int, ...]:
        """The ranks to name: none if it applies to all."""
        return () if len(numbers) >= self.total else tuple(sorted(numbers))


def lately(label: str, windows: Windows, everybody: int, total: int) -> Concluded | None:
    """The worst problem in these windows, in the cell `label`."""
    ends = [one.newest.at for one in windows.values()]
    each = [one.seconds / one.steps for one in windows.values() if one.steps]
    if ends and max(ends) - min(ends) > _TOGETHER + max(each, default=0.0):
        # Some have ended a wait that others are not yet known to have ended.
        windows = {rank: replace(one, waited=None) for rank, one in windows.items()}
    longest = max((one.seconds for one in windows.values()), default=0.0)
    of = f"the last {exactly(math.ceil(longest))}"
    found = _Time(label, windows, everybody, total, of).found()
    return max(found, key=lambda one: one.strength, default=None)


def at_end(state: RunState, label: str, samples: Samples) -> Iterable[Concluded]:
    """All conclusions about the whole run, except waits that `at_stop`, or the report of a hang
    that is not over, has already named."""
    windows = {
        rank: Window.between(Sample(at=started, since=started), sample)
        for rank, sample in samples.items()
        if (started := state.ranks[rank].started) is not None and sample.at > started
    }
    whole = _Time(label, windows, len(windows), len(windows), "it")
    found = [*whole.found(), *whole.mostly_compiled()]
    is_told = WAITED in state.conclusions or (state.hang is not None and not state.hang.over)
    return [one for one in found if one.kind != WAITED or not is_told]


def at_stop(state: RunState, label: str, samples: Samples) -> Iterable[Concluded]:
    """The longest wait when the run was stopped: who waited, for whom, and where that rank was."""
    statuses = [RankStatus.of(state.ranks[rank], sample, {}) for rank, sample in samples.items()]
    if (found := waits.longest(statuses, label, over=True)) is not None:
        yield found


def conclude(
    run: Followed, label: str, look: Callable[[RunState, str, Samples], Iterable[Concluded]]
) -> None:
    """Add conclusions from a run's newest samples to it: not to a failed run, where they do not
    matter, and not to live ranks, whose cells have them."""
    state = run.state
    if state.troubled or state.ended is not None or state.group is not None:
        return
    samples = {n: sample for n in state.ranks if (sample := run.sample(n)) is not None}
    for found in look(state, label, samples):
        run.take(found)


def _explains(loading: Concluded | None, awaited: Concluded) -> bool:
    """Whether ranks are late because they wait for data."""
    if loading is None or loading.ranks != awaited.ranks:
        return False
    return loading.strength >= awaited.strength / 2


def _matters(cost: float, one: Window, share: float) -> bool:
    return cost >= max(_COST, share * one.seconds)
