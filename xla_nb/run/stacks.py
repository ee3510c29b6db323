"""Where is each rank now? The question, and its answers as they come.

A rank that does not answer in time is listed with what was last seen of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from xla_nb.run.run import Run
from xla_nb.run.state import ENDED, RankState
from xla_nb.wording import ranks

#: Seconds that ranks have to answer.
PATIENCE = 1.5
_POLL = 0.05


@dataclass(frozen=True)
class StackGroup:
    """Ranks that are at the same place. `note` says what is to be known of the answer."""

    ranks: tuple[int, ...]
    place: str
    stack: str
    note: str = ""


class Inquiry:
    """One question, put when it is made."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._requested = time.time()
        self._deadline = time.monotonic() + PATIENCE
        run.ask_stacks()

    @property
    def settled(self) -> bool:
        """Everybody has answered, or had the time to."""
        return time.monotonic() >= self._deadline or all(map(self._answered, self._addressed()))

    def groups(self) -> list[StackGroup]:
        """The answers so far, the place with the fewest ranks first: it is the odd one out."""
        by_answer: dict[tuple[str, str, str], list[int]] = {}
        for rank in self._addressed():
            by_answer.setdefault(self._answer(rank), []).append(rank.rank)
        groups = [StackGroup(tuple(sorted(ranks)), *answer) for answer, ranks in by_answer.items()]
        return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))

    def wait(self) -> list[StackGroup]:
        """The answers, when all are there or time is up."""
        while not self.settled:
            with self._run.changed:
                self._run.changed.wait(_POLL)
        return self.groups()

    def _addressed(self) -> list[RankState]:
        ranks = self._run.state.ranks.values()
        return [r for r in ranks if r.phase not in ENDED or self._answered(r)]

    def _answered(self, rank: RankState) -> bool:
        return rank.located is not None and rank.located >= self._requested

    def _answer(self, rank: RankState) -> tuple[str, str, str]:
        if self._answered(rank):
            return rank.place, _innermost_first(rank.stack), ""
        if rank.phase == "starting":
            return "", "", "not started yet: joining the runtime"
        seen = self._run.sample(rank.rank)
        if seen is None:
            return "", "", "no answer"
        ago = self._requested - seen.at
        return (
            seen.place,
            "",
            f"no answer: Python is blocked in native code (last seen here {ago:.0f} s ago)",
        )


def _innermost_first(stack: str) -> str:
    """The frames of a Python stack from the innermost out; each is a line and its source lines."""
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
