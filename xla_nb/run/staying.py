"""Where ranks are that do not stop.

They are asked soon after the interrupt, and again in time before they are ended by force. That
waits for nobody: of a rank that has not answered it is told what is known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Protocol

from xla_nb.protocol import events
from xla_nb.record.sample import Sample
from xla_nb.run import stacks
from xla_nb.run.stacks import Answer, Asked, alike
from xla_nb.run.state import RankState, RunState
from xla_nb.wording import listed, ranks

_ASK = 0.3  # seconds from the interrupt until they are asked for the first time
_LEAD = stacks.PATIENCE + 0.1  # seconds before they are ended, when they are asked again
_STACK = 8  # lines of a stack
_LATELY = 2.0  # seconds for which a rank is said to be where it was seen
_MOST = 4  # places in one sentence


class Stopping(Asked, Protocol):
    """A run that is being stopped, as far as it is seen here."""

    def take(self, event: events.Event) -> None: ...


class Staying:
    """The ranks of a run that was stopped at `stopped`, of `time.monotonic()`, as is `now`; that is
    `at` on the clock of events."""

    def __init__(self, run: Stopping, stopped: float, at: float) -> None:
        self._run, self._stopped = run, stopped
        self._asked: float | None = None
        self._asked_at = at  # on the clock of events

    def ask_if_due(self, now: float, due: float | None) -> None:
        """Ask them where they are. They get the next signal at `due`, if there is to be one."""
        if self._asked is None:
            is_due = now >= self._stopped + _ASK
        else:
            is_due = due is not None and self._asked < due - _LEAD <= now
        if is_due:
            self._asked, self._asked_at = now, time.time()
            self._run.ask_stacks()

    def note(self, numbers: Iterable[int]) -> None:
        """Note where these are, by samples that are newer than what they have said."""
        for number in numbers:
            rank, seen = self._run.state.ranks[number], self._sample(number)
            if seen is None or rank.phase == "starting":
                continue
            if seen.at > (rank.located or 0.0) and rank.is_news(seen.at, seen.place):
                stack = rank.stack if rank.place == seen.place else ""
                at = events.RankAt(rank=number, place=seen.place, stack=stack, at=seen.at)
                self._run.take(at)

    def _sample(self, number: int) -> Sample | None:
        with contextlib.suppress(OSError):  # no reason not to end them
            return self._run.sample(number)
        return None

    def with_stacks(self, numbers: Iterable[int], now: float) -> str:
        """Where these are, with the innermost frames of their stacks, in lines: if all are at one
        place, that is the stack alone."""
        in_time = self._asked is not None and now >= self._asked + stacks.PATIENCE
        if in_time:
            found = stacks.known(self._run, numbers, self._asked_at)
        else:
            self.note(numbers)
            found = stacks.grouped({n: self._unasked(self._run.state.ranks[n]) for n in numbers})
        groups = [stacks.short(group, _STACK) for group in found]
        if len(groups) == 1 and groups[0].stack and not groups[0].note:
            return groups[0].stack
        return stacks.text(groups)

    def _unasked(self, rank: RankState) -> Answer:
        """Where one is that had no time to answer."""
        if rank.only_interrupted:
            return Answer("", "", f"interrupted at {rank.place}" if rank.place else "")
        return stacks.told(rank)


def in_words(state: RunState, numbers: Iterable[int], now: float) -> str:
    """Where ranks are by what has been noted until `now`, on the clock of events:
    `at Cell In[3], line 7`. Empty if nothing is known of any."""
    found = alike({number: _last_seen(state.ranks[number], now) for number in numbers})
    if len(found) == 1:
        return next(iter(found))
    return listed([f"{ranks(each)} {where}" for where, each in found.items() if where], most=_MOST)


def _last_seen(rank: RankState, now: float) -> str:
    if not rank.place:
        return ""
    if rank.only_interrupted:
        return f"interrupted at {rank.place}"
    age = now - (rank.located or now)
    return f"at {rank.place}" if age < _LATELY else f"last seen at {rank.place}, {age:.0f} s ago"


def may_take(numbers: list[int], grace: float, lives: bool) -> events.Notice:
    """That these may take as long as that, and what comes of another stop; lives: they are live."""
    who, then = f"Interrupted; {ranks(numbers)}", "Stop again to end them now."
    if lives:
        then = "Then, or if you stop again, all live ranks are ended, with what they hold."
    text = f"{who} may take up to {grace:g} s to clean up (grace). {then}"
    return events.Notice(text=text, passing=True)
