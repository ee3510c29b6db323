"""Equal lines of several ranks as one, with no rank's own lines out of order.

Pure: the text view folds what comes together, saved HTML and text fold what a record holds.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from xla_nb import wording

#: More lines than these at once are a flood, which is shown as it comes.
_FLOOD = 4000
#: A finished bar of tqdm: what all ranks' bars have in common, before their times and rates.
_BAR = re.compile(r"(.*100%\|[^|]*\| *[^\s/]+/[^\s/]+) \[[^\]]*\]\s*")
#: Lines of a rank that were held in vain, one after the other, until its lines are held no more.
_VAIN = 3

_Rank = TypeVar("_Rank", bound=Hashable)


class Folded(NamedTuple, Generic[_Rank]):
    """A line, and the ranks that wrote it, in order. Of their finished bars what they share."""

    ranks: tuple[_Rank, ...]
    line: str


def folded(written: Mapping[_Rank, Sequence[str]]) -> Iterator[Folded[_Rank]]:
    """All lines, equal ones of several ranks together where no rank's order forbids it."""
    folder: Folder[_Rank] = Folder(0.0)
    for rank, lines in written.items():
        folder.add(rank, lines, 0.0)
    return folder.all()


def who(ranks: Sequence[int | None]) -> str:
    """`0-3`, or `cell` for the job that runs the cell (None)."""
    numbers = [rank for rank in ranks if rank is not None]
    names = ["cell"] if None in ranks else []
    return ", ".join([*names, *([wording.spans(numbers)] if numbers else [])])


def _compared(line: str) -> str:
    bar = _BAR.fullmatch(line) if "100%|" in line else None
    return bar[1] if bar else line


class _Queue:
    """One rank's lines that are still to be shown, as what is compared of each, the line, and the
    time it came."""

    def __init__(self) -> None:
        self.lines: deque[tuple[str, str, float]] = deque()
        self.texts: Counter[str] = Counter()
        self.vain = 0  # lines in a row that nobody else wrote


class Folder(Generic[_Rank]):
    """Holds lines until other ranks have written the same, but for `hold` seconds at most."""

    def __init__(self, hold: float) -> None:
        self._hold = hold
        self._queues: dict[_Rank, _Queue] = {}
        self._owners: Counter[str] = Counter()  # how many ranks have a line that is to be shown
        self._count = 0
        self._alone: dict[str, float] = {}  # lines that were shown of one rank alone, and when

    @property
    def is_empty(self) -> bool:
        return not self._count

    def add(self, rank: _Rank, lines: Sequence[str], now: float) -> None:
        """What a rank has written since the last call."""
        queue = self._queues.setdefault(rank, _Queue())
        for line in lines:
            text = _compared(line)
            queue.lines.append((text, line, now))
            self._owners[text] += not queue.texts[text]
            queue.texts[text] += 1
        self._count += len(lines)

    def all(self) -> Iterator[Folded[_Rank]]:
        """Everything that is held: nothing more will come."""
        return self.due((), float("inf"))

    def due(self, others: Collection[_Rank], now: float) -> Iterator[Folded[_Rank]]:
        """The lines whose time has come. `others`: the ranks that may still write."""
        if self._count > _FLOOD:
            yield from self._as_they_came()
        while self._count:
            before, own = self._count, self._own(others)
            for rank, queue in self._queues.items():
                while queue.lines and (group := self._ready(rank, others, own, now)):
                    yield self._take(group, now)
            if self._count == before and not (yield from self._forced(now)):
                return

    def _as_they_came(self) -> Iterator[Folded[_Rank]]:
        queues, self._queues = self._queues, {}
        self._owners.clear()
        self._count = 0
        for rank, queue in queues.items():
            yield from (Folded((rank,), line) for _, line, _ in queue.lines)

    def _own(self, others: Collection[_Rank]) -> set[str]:
        """Lines of one rank alone where each rank has gone on with some line."""
        if not all(other in self._queues and self._queues[other].lines for other in others):
            return set()
        heads = (queue.lines[0][0] for queue in self._queues.values() if queue.lines)
        return {text for text in heads if self._owners[text] == 1}

    def _ready(
        self, rank: _Rank, others: Collection[_Rank], own: Collection[str], now: float
    ) -> tuple[_Rank, ...] | None:
        """The ranks whose next line is this rank's next line, if no more are to be waited for."""
        text, _, came = self._queues[rank].lines[0]
        group = self._next_to_write(text)
        if len(group) < self._owners[text]:
            return None  # one of them has it behind another line
        if text in own or now - came >= self._hold or all(other in group for other in others):
            return group
        return None if self._may_come(group, text, now) else group

    def _next_to_write(self, text: str) -> tuple[_Rank, ...]:
        queues = self._queues.items()
        return tuple(rank for rank, q in queues if q.lines and q.lines[0][0] == text)

    def _may_come(self, group: tuple[_Rank, ...], text: str, now: float) -> bool:
        """Whether others are likely to write it too: not where nobody else wrote what a rank wrote
        last, unless somebody does so again."""
        if now - self._alone.get(text, float("-inf")) < self._hold:
            for queue in self._queues.values():
                queue.vain = 0
        return len(group) > 1 or self._queues[group[0]].vain < _VAIN

    def _take(self, group: tuple[_Rank, ...], now: float) -> Folded[_Rank]:
        text = self._queues[group[0]].lines[0][0]
        lines = set()
        for rank in group:
            queue = self._queues[rank]
            lines.add(queue.lines.popleft()[1])
            queue.texts[text] -= 1
            self._owners[text] -= not queue.texts[text]
            queue.vain = 0 if len(group) > 1 else queue.vain + 1
            if not queue.texts[text]:
                del queue.texts[text]
        if not self._owners[text]:
            del self._owners[text]
        self._count -= len(group)
        if len(group) == 1:
            if len(self._alone) >= _FLOOD:
                self._alone.clear()
            self._alone[text] = now
        return Folded(group, lines.pop() if len(lines) == 1 else text)

    def _forced(self, now: float) -> Generator[Folded[_Rank], None, bool]:
        """The oldest line, if it has waited long enough: ranks have lines in another order."""
        heads = [(q.lines[0][2], rank) for rank, q in self._queues.items() if q.lines]
        came, rank = min(heads, key=lambda head: head[0])
        if now - came < self._hold:
            return False
        yield self._take(self._next_to_write(self._queues[rank].lines[0][0]), now)
        return True
