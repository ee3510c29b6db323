"""Fold equal lines of several ranks into one, keeping each rank's lines in order.

No I/O: the text view folds lines that arrive together; saved HTML and text fold the lines of a
record.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import attrgetter, itemgetter

from xla_nb import wording
from xla_nb.monitor.snapshot import Stream

#: Equal lines written within this many seconds are folded; lines are held back for as long.
HOLD = 0.25
#: A finished tqdm bar. Ranks share the part before the times and rates, and the postfix that the
#: program sets after these.
_BAR = re.compile(
    r"(.*100%\|[^|]*\| *[^\s/]+/[^\s/]+) \[[^\],]*(?:, *[^\],]*)?(?:, ([^\]]*))?\]\s*"
)


@dataclass
class Folded:
    """A line of a stream (for finished bars, the shared part), the ranks that wrote it (None is the
    job that runs the cell), when the first of them did, and its place among all lines."""

    stream: str
    line: str
    compared: str
    at: float
    place: int
    ranks: list[int | None]

    @property
    def who(self) -> str:
        """`0–3`."""
        return who(self.ranks)


def folded(
    written: Mapping[tuple[int | None, Stream], Iterable[tuple[float, float, str]]],
) -> list[Folded]:
    """Fold lines, given by rank and stream as (time seen, switches before it from one stream to the
    other, text). Sorted by time; the lines of one rank are in order of switches."""
    by_rank: dict[int | None, list[tuple[float, float, tuple[str, str]]]] = defaultdict(list)
    for (rank, stream), stream_lines in written.items():
        by_rank[rank] += ((switch, at, (stream, text)) for at, switch, text in stream_lines)
    lines: list[tuple[float, int | None, tuple[str, str]]] = []
    for rank, entries in by_rank.items():
        entries.sort(key=itemgetter(0, 1))
        times = itertools.accumulate((at for _, at, _ in entries), max)
        lines += ((at, rank, line) for at, (*_, line) in zip(times, entries, strict=True))
    folder = Folder()
    for (at, rank), batch in groupby(sorted(lines, key=_batch_key), itemgetter(0, 1)):
        folder.add(rank, [line for *_, line in batch], at)
    return folder.all()


def _batch_key(entry: tuple[float, int | None, object]) -> tuple[float, int]:
    at, rank, _ = entry
    return at, -1 if rank is None else rank


def who(ranks: Sequence[int | None]) -> str:
    """Format ranks as `0–3`, or `cell` for the job that runs the cell (None)."""
    numbers = [rank for rank in ranks if rank is not None]
    names = ["cell"] if None in ranks else []
    return ", ".join([*names, *([wording.spans(numbers)] if numbers else [])])


def _comparable(line: str) -> str:
    bar = _BAR.fullmatch(line) if "100%|" in line else None
    if bar is None:
        return line
    return f"{bar[1]} [{bar[2]}]" if bar[2] else bar[1]


_GAP = 1 << 256  # distance between the places of lines, so others fit between them


class Folder:
    """Folds lines as they arrive. A line joins the first equal line of the last HOLD seconds that
    follows the previous line of its rank. Lines that the rank wrote in between are placed right
    before the joined line."""

    def __init__(self) -> None:
        self._queue: list[Folded] = []  # in the order of their places
        self._equal: dict[tuple[str, str], list[Folded]] = {}  # lines to join, in order of places
        self._last_places: dict[int | None, int] = {}  # the place of a rank's last line
        self._shown_place = self._top_place = 0  # the last place shown, and of all lines

    @property
    def is_empty(self) -> bool:
        return not self._queue

    def add(self, rank: int | None, lines: Iterable[tuple[str, str]], now: float) -> None:
        """Add (stream, line) pairs that a rank has written since the last call."""
        last = self._last_places.get(rank, 0)
        unjoined: list[Folded] = []
        for stream, line in lines:
            text = _comparable(line)
            equal = self._equal.get((stream, text), [])
            while equal and now - equal[0].at > HOLD:
                del equal[0]
            index = bisect_right(equal, last, key=_PLACE)
            if index == len(equal) or not self._place(unjoined, last, equal[index].place):
                unjoined.append(Folded(stream, line, text, now, 0, [rank]))
                continue
            unjoined, joined = [], equal[index]
            joined.ranks.append(rank)
            joined.line = line if line == joined.line else text
            last = joined.place
        end = self._top_place + _GAP * (len(unjoined) + 1)
        self._place(unjoined, self._top_place, end)
        self._top_place = unjoined[-1].place if unjoined else self._top_place
        self._last_places[rank] = unjoined[-1].place if unjoined else last

    def _place(self, lines: Sequence[Folded], first: int, end: int) -> bool:
        """Place lines after the place `first` and right before `end`. Returns False if there is no
        room."""
        index = bisect_left(self._queue, end, key=_PLACE)
        first = max(first, self._queue[index - 1].place if index else self._shown_place)
        step = (end - first) // (len(lines) + 1)
        for number, line in enumerate(lines if step else (), 1):
            line.place = first + number * step
            insort(self._equal.setdefault((line.stream, line.compared), []), line, key=_PLACE)
        self._queue[index:index] = lines if step else ()
        return step > 0

    def all(self) -> list[Folded]:
        """Return all held lines, because no more will arrive."""
        return self.due((), math.inf)

    def due(self, others: Collection[int], now: float) -> list[Folded]:
        """Return the lines that no rank can join any more. `others`: ranks that may still write."""
        last = min((self._last_places.get(rank, 0) for rank in others), default=math.inf)
        lines = [*takewhile(lambda line: line.place <= last or now - line.at >= HOLD, self._queue)]
        del self._queue[: len(lines)]
        for line in lines:
            self._shown_place = line.place
            equal = self._equal.get((line.stream, line.compared), [])
            if equal and equal[0] is line:
                del equal[0]
            if not equal:
                self._equal.pop((line.stream, line.compared), None)
        return lines


_PLACE = attrgetter("place")
