"""Ask each rank where it is, and collect the answers as they arrive.

A rank that does not answer in time is listed with the place where it was last seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from xla_nb.messages.events import Event, StackGroup
from xla_nb.monitor.activity import Tracks
from xla_nb.monitor.state import ENDED, RankState, RunState
from xla_nb.record.files import Record
from xla_nb.record.sample import Sample
from xla_nb.wording import ranks

#: Seconds that ranks have to answer.
PATIENCE = 1.5
_POLL = 0.05
Kind = TypeVar("Kind", bound=Hashable)
Named = TypeVar("Named", int, str)


class InProgress(Protocol):
    """The part of a run in progress that its watches need."""

    state: RunState
    record: Record
    tracks: Tracks
    changed: threading.Condition

    def ask_stacks(self) -> None: ...
    def sample(self, rank: int) -> Sample | None: ...
    def take(self, event: Event) -> None: ...
    def stop(self, why: str) -> None: ...


class Inquiry:
    """One question, asked on creation."""

    def __init__(self, run: InProgress) -> None:
        self._run = run
        self._requested = time.time()
        self._deadline = time.monotonic() + PATIENCE
        run.ask_stacks()

    @property
    def settled(self) -> bool:
        """All ranks have answered, or time is up."""
        return time.monotonic() >= self._deadline or all(map(self._answered, self._addressed()))

    def groups(self) -> list[StackGroup]:
        """The answers so far, the place with the fewest ranks first, as the outlier; then the ranks
        that have ended and have no stack."""
        answers, ranks = self.answers(), self._run.state.ranks
        ended = alike({rank: ranks[rank].phase for rank in ranks.keys() - answers.keys()})
        others = [StackGroup(numbers, "", "", phase) for phase, numbers in ended.items()]
        return grouped(answers) + others if answers else []

    def answers(self) -> dict[int, StackGroup]:
        """The answers so far by rank, and for ranks without one whatever is known of them. A stack
        has the innermost frame first."""
        return {rank.rank: _answer(self._run, rank, self._requested) for rank in self._addressed()}

    def wait(self) -> list[StackGroup]:
        """The answers, once all have arrived or time is up."""
        while not self.settled:
            with self._run.changed:
                self._run.changed.wait(_POLL)
        return self.groups()

    def _addressed(self) -> list[RankState]:
        ranks = self._run.state.ranks.values()
        return [r for r in ranks if r.phase not in ENDED or self._answered(r)]

    def _answered(self, rank: RankState) -> bool:
        return rank.located is not None and rank.located >= self._requested


def _answer(run: InProgress, rank: RankState, since: float) -> StackGroup:
    if rank.located is not None and rank.located >= since:
        return told(rank)
    sample, interrupt, place = run.sample(rank.rank), rank.interrupted, ""
    is_news = sample is not None and rank.is_news(sample.at, sample.place)
    note = "not responding (stopped, or blocked in native code)"
    if rank.phase == "starting":
        note = "not started yet: joining the runtime"
    elif interrupt is not None and rank.only_interrupted and not is_news:
        at = f"interrupted at {interrupt.place}; " if interrupt.place else ""
        note = f"{at}not responding since (stopped, or blocked in native code)"
    elif sample is not None:
        ago = f"{max(0.0, since - sample.at):.0f} s ago"
        place = sample.place
        note = f"not responding (stopped, or blocked in native code); last seen here {ago}"
    return StackGroup((rank.rank,), place, "", note)


def told(rank: RankState) -> StackGroup:
    """Its last answer."""
    return StackGroup((rank.rank,), rank.place, _innermost_first(rank.stack))


def grouped(answers: Mapping[int, StackGroup]) -> list[StackGroup]:
    """The ranks grouped by answer, the smallest group first."""
    by_answer = alike({rank: replace(answer, ranks=()) for rank, answer in answers.items()})
    groups = [replace(answer, ranks=numbers) for answer, numbers in by_answer.items()]
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))


def alike(things: Mapping[Named, Kind]) -> dict[Kind, tuple[Named, ...]]:
    """The ranks, or hosts, grouped by equal things, in order."""
    groups: dict[Kind, list[Named]] = {}
    for name in sorted(things):
        groups.setdefault(things[name], []).append(name)
    return {thing: tuple(names) for thing, names in groups.items()}


def _innermost_first(stack: str) -> str:
    """The frames of a Python stack, innermost first; each is a line with its source lines."""
    frames: list[list[str]] = []
    for line in stack.splitlines():
        if line.startswith("  File ") or not frames:
            frames.append([])
        frames[-1].append(line)
    return "\n".join(line for frame in reversed(frames) for line in frame)


def text(groups: list[StackGroup]) -> str:
    """The answers as lines to print."""
    paragraphs = []
    for group in groups:
        at = f" at {group.place}" if group.place else ""
        note = f": {group.note}" if group.note else ""
        paragraphs.append("\n".join(filter(None, [f"{ranks(group.ranks)}{at}{note}", group.stack])))
    return "\n\n".join(paragraphs) or "No ranks are running."
