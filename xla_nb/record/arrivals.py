"""When the lines of each stream of a run were seen, so that a saved log can have them in order.

Ranks write straight to files, without times; who follows the run notes how many lines each file had
at each look. Of a flood the first and the last marks are kept, as only those lines are shown.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math

from xla_nb.record import private
from xla_nb.record.files import Record

#: Lines at each end of a stream whose times are known.
MOST = 25


class Arrivals:
    """The marks of each stream, by the name of its file: the time of a look, and how many lines
    there were after it. `now` is the time of the newest look; 0: there was none."""

    def __init__(self) -> None:
        self.now = 0.0
        self._marks: dict[str, list[tuple[float, int]]] = {}

    def note(self, name: str, count: int, at: float | None = None) -> None:
        """A stream has so many lines now, or had `at` that time."""
        marks = self._marks.setdefault(name, [])
        marks.append((self.now if at is None else at, count))
        if len(marks) > 2 * MOST + 1:
            del marks[MOST]

    def times(self, name: str, head: int, left_out: int, tail: int) -> tuple[float, ...]:
        """When each of the first and last lines was seen; empty where nobody has looked at the run.

        A line that no look has seen whole came after all that were."""
        if not self.now:
            return ()
        marks = list(self._marks.get(name, ()))
        counts, total = [count for _, count in marks], head + left_out + tail
        # A flood's lines are not all counted alike, and it may end with an unfinished one.
        end = counts[-1] if counts and abs(total - counts[-1]) > 1 else total
        places = (bisect.bisect_right(counts, n) for n in (*range(head), *range(end - tail, end)))
        return tuple(marks[place][0] if place < len(marks) else math.inf for place in places)

    def save(self, record: Record) -> None:
        """Keep what there is, if somebody has looked. Raises OSError."""
        if self.now:
            private.write(record.arrivals, json.dumps(self._marks).encode())

    @classmethod
    def read(cls, record: Record) -> Arrivals:
        """Those of a run that has ended; none where they were not kept, or are damaged."""
        made = cls()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            kept = json.loads(private.read(record.arrivals)).items()
            made._marks = {n: [(float(at), int(count)) for at, count in each] for n, each in kept}
            made.now = math.inf
        return made
