"""Problems of a run, recent or overall, found in its ranks' samples.

Pure, except `conclude`. Only causes that take much of the time are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xla_nb.messages.events import Concluded
from xla_nb.monitor import waits
from xla_nb.monitor.activity import RankStatus, Window
from xla_nb.monitor.stacks import InProgress
from xla_nb.monitor.state import RunState
from xla_nb.monitor.waits import WAITED, line
from xla_nb.record.sample import Sample
from xla_nb.wording import exactly, listed, ranks, several

Samples = Mapping[int, Sample]

_MIN_STEPS = 10  # least number of steps to draw a conclusion from
_MIN_BATCHES = 30  # the same for waiting for data, in the whole run: the first batches take long
_EVERY_STEP = 0.9  # share of the steps that counts as every step
_MANY_STEPS = 0.3  # the same if the change is known: other graphs follow a collective, say
_ALIKE = 0.8  # share of these shares from which a rank is one of those that compile
_COST = 2.0  # least cost to report, in seconds
_MIN_SHARE = 0.1  # least cost to report, as a share of the time
_WAITING, _MAIN = 0.2, 0.5  # the same for waiting for data or a lock; for needed compilation
_MAX_SKEW = 1.0  # seconds, plus a step, between the last steps of ranks whose waits are compared


Windows = Mapping[int, Window]


@dataclass(frozen=True)
class _Time:
    """The windows of ranks. `present`: the number of ranks that have not ended, or of all after the
    run; `total`: of all ranks. `of` names the time that costs are part of."""

    label: str
    windows: Windows
    present: int
    total: int
    of: str

    def found(self) -> Iterator[Concluded]:
        causes = [*filter(None, (self._find_compiling(), self._find_loading()))]
        yield from causes
        if (fallbacks := self._find_fallbacks()) is not None:
            yield fallbacks
        awaited = self._find_stragglers()
        if awaited is not None and not any(_explains(cause, awaited) for cause in causes):
            yield awaited
        locked = {rank: w.locked for rank, w in self.windows.items()}
        if (conclusion := self._find_waits("locked", "the `lock`", locked)) is not None:
            yield conclusion

    def _find_loading(self) -> Concluded | None:
        steps = [w.newest.done or w.newest.graphs for w in self.windows.values()]
        if max(steps, default=0) < _MIN_BATCHES:
            return None
        seconds = {rank: w.data - w.first_data for rank, w in self.windows.items()}
        found = self._find_waits("loading", "data", seconds)
        if found is None or max(w.first_data for w in self.windows.values()) < found.strength / 10:
            return found
        return replace(found, sentence=f"{found.sentence}, not counting the first batch")

    def _find_compiling(self) -> Concluded | None:
        windows = {
            rank: w
            for rank, w in self.windows.items()
            if min(w.compiles, w.executed) >= _MIN_STEPS / 2 and _compiles_often(w, _ALIKE)
        }
        # Once it is certain and costly on one rank, others that are about as far do the same.
        certain = (w for w in windows.values() if min(w.compiles, w.executed) >= _MIN_STEPS)
        if not any(_compiles_often(w) and _matters(w.compiling, w, _MIN_SHARE) for w in certain):
            return None
        is_each = all(w.compiles >= _EVERY_STEP * w.executed for w in windows.values())
        group = self._subset(windows)
        costs = [min(w.compiling, w.seconds) for w in windows.values()]  # some began earlier
        rates = sorted({max(1, round(w.compiles / w.executed)) for w in windows.values()})
        number = f"{rates[0]} " if len(rates) == 1 else ""
        graphs = "a new graph" if rates == [1] else f"{number}new graphs"
        # The time of all compilation: a window may have graphs that change nothing, like the first.
        effect = f"compiled {graphs}; compiling took {self._most_text(costs)}"
        of = f" of {ranks(group)}" if group else ""
        text = f"{'each step' if is_each else 'many steps'}{of} {effect}"
        cause = next((w.newest for w in windows.values() if w.newest.changes_at), None)
        if cause is not None:
            change = cause.change.format(often="in each step" if is_each else "in many steps")
            steps = "each" if is_each else "these"
            steps += f" step{'s' * (not is_each)}{of}" if of else ""
            text = f"{line(cause.changes_at, self.label)} {change}, so {steps} {effect}"
        return Concluded(kind="compiling", sentence=text, ranks=group, strength=max(costs))

    def mostly_compiled(self) -> Iterator[Concluded]:
        """Compilation that took half of the time or more, on the rank where it took longest."""
        if self.windows:
            rank, w = max(self.windows.items(), key=lambda pair: pair[1].compiling)
            if _matters(w.compiling, w, _MAIN):
                text = f"{self._cost_text(w.compiling)} compiling {several(w.compiles, 'graph')}"
                if len({other.compiles for other in self.windows.values()}) > 1:
                    text += f" on {ranks([rank])}"
                yield Concluded(kind="graphs", sentence=text, strength=w.compiling, calm=True)

    def _find_fallbacks(self) -> Concluded | None:
        places: dict[str, str] = {}
        numbers: set[int] = set()
        for rank, w in self.windows.items():
            for name, calls in w.fallbacks.items():
                if w.steps >= _MIN_STEPS and calls >= _EVERY_STEP * w.steps:
                    places[name] = places.get(name) or w.newest.fallbacks_at.get(name, "")
                    numbers.add(rank)
        if not places:
            return None
        place = "".join(places.values()) if len(places) == 1 else ""
        at = f" at {line(place, self.label)}" if place else ""
        group = self._subset(numbers)
        of = f" of {ranks(group)}" if group else ""
        text = f"every step{of} ran {listed(places, most=2)} on the CPU{at}"
        return Concluded(kind="fallback", sentence=text, ranks=group)

    def _find_waits(self, kind: str, what: str, waited: Mapping[int, float]) -> Concluded | None:
        """Ranks that waited for something for much of the time: those that waited longest, or at
        least half as long. None while it is unknown of some ranks, which may wait as well."""
        if len(self.windows) < self.present:
            return None
        costs = [cost for r, cost in waited.items() if _matters(cost, self.windows[r], _WAITING)]
        if not costs:
            return None
        numbers = [rank for rank, cost in waited.items() if cost >= max(costs) / 2]
        group, cost = self._subset(numbers), max(waited.values())
        on = f" on {ranks(group)}" if group else ""
        text = f"waiting for {what} took {self._most_text([waited[n] for n in numbers])}{on}"
        return Concluded(kind=kind, sentence=text, ranks=group, strength=cost)

    def _find_stragglers(self) -> Concluded | None:
        """Ranks that wait little while all others wait, because their steps are slower or they
        validate alone, say; without steps, for most of the time. None if some waits are in between,
        as when another rank has become the slow one."""
        waited = {rank: w.waited for rank, w in self.windows.items() if w.waited is not None}
        if len(waited) < max(2, self.present):
            return None
        most = max(waited.values())
        slow = [rank for rank, wait in waited.items() if wait <= most / 4]
        others = [wait for rank, wait in waited.items() if wait > most / 2]
        if not 0 < len(slow) <= len(others) or len(slow) + len(others) < len(waited):
            return None
        cost = min(others) - max(waited[rank] for rank in slow)
        has_steps = min(w.steps for w in self.windows.values()) >= _MIN_STEPS
        if not _matters(cost, self.windows[slow[0]], _MIN_SHARE if has_steps else _MAIN):
            return None
        least = math.floor(cost) if cost >= 10 else math.floor(10 * cost) / 10
        subject = f"the other{'s' * (len(others) > 1)}"
        text = f"{subject} waited at least {self._cost_text(least)} for {ranks(slow)}"
        return Concluded(kind=WAITED, sentence=text, ranks=tuple(slow), strength=cost)

    def _most_text(self, costs: Sequence[float]) -> str:
        """The highest cost, with "up to" if others differ."""
        up_to = "up to " if _seconds(min(costs)) != _seconds(max(costs)) else ""
        return f"{up_to}{self._cost_text(max(costs))}"

    def _cost_text(self, cost: float) -> str:
        return f"{_seconds(cost)} of {self.of}"

    def _subset(self, numbers: Collection[int]) -> tuple[int, ...]:
        """The ranks to name: none if it applies to all."""
        return () if len(numbers) >= self.total else tuple(sorted(numbers))


def lately(label: str, windows: Windows, present: int, total: int) -> Concluded | None:
    """The worst problem in these windows, in the cell `label`, of so many ranks (see `_Time`)."""
    ends = [w.newest.at for w in windows.values()]
    step_times = [w.seconds / w.steps for w in windows.values() if w.steps]
    if ends and max(ends) - min(ends) > _MAX_SKEW + max(step_times, default=0.0):
        # Some have ended a wait that others are not yet known to have ended.
        windows = {rank: replace(w, waited=None) for rank, w in windows.items()}
    longest = max((w.seconds for w in windows.values()), default=0.0)
    of = f"the last {_seconds(longest)}"
    conclusions = _Time(label, windows, present, total, of).found()
    return max(conclusions, key=lambda c: c.strength, default=None)


def at_end(state: RunState, label: str, samples: Samples) -> Iterable[Concluded]:
    """All conclusions about the whole run, except waits that `at_stop`, or the report of a hang
    that is not over, has already named."""
    windows = {
        rank: Window.between(Sample(at=started, since=started), sample)
        for rank, sample in samples.items()
        if (started := state.ranks[rank].started) is not None and sample.at > started
    }
    of = "the run" if state.stopping else "it"  # its title begins with why, or with its time
    time = _Time(label, windows, len(windows), len(state.ranks), of)
    conclusions = [*time.found(), *time.mostly_compiled()]
    is_reported = WAITED in state.conclusions or state.current_hang is not None
    return [c for c in conclusions if c.kind != WAITED or not is_reported]


def at_stop(state: RunState, label: str, samples: Samples) -> Iterable[Concluded]:
    """The longest wait when the run was stopped: who waited, for whom, and where that rank was."""
    statuses = [RankStatus.of(state.ranks[rank], sample, {}) for rank, sample in samples.items()]
    if (conclusion := waits.longest(statuses, label, over=True)) is not None:
        yield conclusion


def conclude(
    run: InProgress, label: str, look: Callable[[RunState, str, Samples], Iterable[Concluded]]
) -> None:
    """Add conclusions from a run's newest samples to it: not to a failed run, where they do not
    matter, and not to live ranks, whose cells have them."""
    state = run.state
    if state.troubled or state.ended is not None or state.group is not None:
        return
    samples = {n: sample for n in state.ranks if (sample := run.sample(n)) is not None}
    for conclusion in look(state, label, samples):
        run.take(conclusion)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else exactly(round(seconds))


def _explains(cause: Concluded, awaited: Concluded) -> bool:
    """Whether ranks are late because they wait for data or compile."""
    return cause.ranks == awaited.ranks and cause.strength >= awaited.strength / 2


def _compiles_often(window: Window, tolerance: float = 1.0) -> bool:
    share = _MANY_STEPS if window.newest.changes_at else _EVERY_STEP
    return window.compiles >= tolerance * share * window.executed


def _matters(cost: float, window: Window, share: float) -> bool:
    return cost >= max(_COST, share * window.seconds)
