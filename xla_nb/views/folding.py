"""Equal lines of several ranks as one, with no rank's own lines out of order.

Pure: the text view folds what comes together, saved HTML and text fold what a record holds.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from xla_nb import wording

#: Seconds that a line waits for the same from other ranks.
HOLD = 0.25
#: More lines than these at once are a flood, which is shown as it comes.
_FLOOD = 4000
#: A finished bar of tqdm: what all ranks' bars have in common is before their times and rates, and
#: what the program has put behind these.
_BAR = re.compile(
    r"(.*100%\|[^|]*\| *[^\s/]+/[^\s/]+) \[[^\],]*(?:, *[^\],]*)?(?:, ([^\]]*))?\]\s*"
)
#: Lines of a rank that were held in vain, one after the other, until its lines are held no more.
_VAIN = 3

_Rank = TypeVar("_Rank", bound=Hashable)
_Stream = TypeVar("_Stream", bound=Hashable)


class Folded(NamedTuple, Generic[_Rank]):
    """A line, the ranks that wrote it, in order, and when each did. Of their finished bars what
    they share."""

    ranks: tuple[_Rank, ...]
    line: str
    times: tuple[float, ...]

    def precedes(self, other: Folded[_Rank]) -> bool:
        """Whether it was seen before the other: in the ranks that wrote both, if there are any."""
        own, theirs = (dict(zip(one.ranks, one.times, strict=True)) for one in (self, other))
        both = [(own[rank], theirs[rank]) for rank in own.keys() & theirs.keys()]
        both = both or [(min(self.times), min(other.times))]
        return all(at <= later for at, later in both) and any(at < later for at, later in both)


def folded(
    written: Mapping[tuple[_Rank, _Stream], Sequence[tuple[float, str]]],
) -> list[tuple[_Stream, Folded[_Rank]]]:
    """Lines with the times at which they were seen, in order of time, and equal ones together where
    a Folder for each stream has them so."""
    folders: dict[_Stream, Folder[_Rank]] = {stream: Folder(HOLD) for _, stream in written}
    moments: dict[float, dict[tuple[_Rank, _Stream], list[str]]] = {math.inf: {}}
    for (rank, stream), lines in written.items():
        folders[stream].add(rank, (), 0.0)  # in this order
        for at, line in lines:
            moments.setdefault(at, {}).setdefault((rank, stream), []).append(line)
    last = {source: lines[-1][0] for source, lines in written.items() if lines}
    found: list[tuple[_Stream, Folded[_Rank]]] = []
    before = -math.inf
    for now in sorted(moments):
        for came, since in (({}, before), (moments[now], now)):
            for (rank, stream), new in came.items():
                folders[stream].add(rank, new, now)
            for stream, folder in folders.items():
                others = {rank for (rank, of), at in last.items() if of == stream and at > since}
                for one in folder.due(others, now):
                    place = len(found)  # what has waited for the same from others goes back
                    while place and one.precedes(found[place - 1][1]):
                        place -= 1
                    found.insert(place, (stream, one))
        before = now
    return found


def who(ranks: Sequence[int | None]) -> str:
    """`0-3`, or `cell` for the job that runs the cell (None)."""
    numbers = [rank for rank in ranks if rank is not None]
    names = ["cell"] if None in ranks else []
    return ", ".join([*names, *([wording.spans(numbers)] if numbers else [])])


def _compared(line: str) -> str:
    bar = _BAR.fullmatch(line) if "100%|" in line else None
    if bar is None:
        return line
    return f"{bar[1]} [{bar[2]}]" if bar[2] else bar[1]


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
            waiting: set[tuple[str, float]] = set()  # heads of queues, as long as nothing is taken
            for rank, queue in self._queues.items():
                while queue.lines and (head := queue.lines[0][::2]) not in waiting:
                    if group := self._ready(rank, others, own, now):
                        yield self._take(group, now)
                        waiting.clear()
                    else:
                        waiting.add(head)
            if self._count == before and not (yield from self._forced(now)):
                return

    def _as_they_came(self) -> Iterator[Folded[_Rank]]:
        queues, self._queues = self._queues, {}
        self._owners.clear()
        self._count = 0
        for rank, queue in queues.items():
            yield from (Folded((rank,), line, (came,)) for _, line, came in queue.lines)

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
        lines, times = set(), []
        for rank in group:
            queue = self._queues[rank]
            _, line, came = queue.lines.popleft()
            lines.add(line)
            times.append(came)
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
        return Folded(group, lines.pop() if len(lines) == 1 else text, tuple(times))

    def _forced(self, now: float) -> Generator[Folded[_Rank], None, bool]:
        """The oldest line, if it has waited long enough: ranks have lines in another order."""
        heads = [(q.lines[0][2], rank) for rank, q in self._queues.items() if q.lines]
        came, rank = min(heads, key=lambda head: head[0])
        if now - came < self._hold:
            return False
        yield self._take(self._next_to_write(self._queues[rank].lines[0][0]), now)
        return True
