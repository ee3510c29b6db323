"""Read a run's log files while they grow, and note when their lines were seen.

Reads are bounded whatever a rank writes. Lines are whole, as a terminal would finally show them.
Ranks write straight to files, without times; the follower of the run notes how many lines each file
had at each look, so that a saved log can show them in order.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import math
import operator
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xla_nb.record import private
from xla_nb.record.files import Record
from xla_nb.record.output import SWITCH

#: Lines at each end of a stream whose times are kept: of a flood only these are shown.
MOST = 25
#: Characters to keep of one line.
LONGEST = 4000
_CHUNK = 1 << 20  # bytes to read from one file at a time
_BLOCK = 1 << 18  # bytes to read at most for the lines before an offset
_HOLD_TIME = 0.1  # seconds within which a cursor that moves up does so: tqdm does at once
_CURSOR_UP = b"\x1b[A"  # cursor up, as tqdm returns from the bar of an inner loop


class Arrivals:
    """The marks of each stream, by the name of its file: the time of a look, and the number of
    lines after it. `now` is the time of the newest look; 0: there was none."""

    def __init__(self) -> None:
        self.now = 0.0
        self._marks: dict[str, list[tuple[float, int]]] = {}

    def note(self, name: str, count: int) -> None:
        """Note the number of lines that a stream has now."""
        marks = self._marks.setdefault(name, [])
        marks.append((self.now, count))
        if len(marks) > 2 * MOST + 1:
            del marks[MOST]

    def times(self, name: str, head: int, left_out: int, tail: int) -> tuple[float, ...]:
        """The times at which the first and last lines were seen; empty if nobody looked at the run.

        A line that no look saw whole is later than all others."""
        if not self.now:
            return ()
        marks = list(self._marks.get(name, ()))
        counts, total = [count for _, count in marks], head + left_out + tail
        # Counts of a flood's lines may differ, and its last line may be unfinished.
        end = counts[-1] if counts and abs(total - counts[-1]) > 1 else total
        indexes = (bisect.bisect_right(counts, n) for n in (*range(head), *range(end - tail, end)))
        return tuple(marks[index][0] if index < len(marks) else math.inf for index in indexes)

    def save(self, record: Record) -> None:
        """Save the marks, if there was a look. Raises OSError."""
        if self.now:
            private.write(record.arrivals, json.dumps(self._marks).encode())

    @classmethod
    def read(cls, record: Record) -> Arrivals:
        """The arrivals of an ended run; empty if they were not saved, or are damaged."""
        new = cls()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            body = json.loads(private.read(record.arrivals)).items()
            new._marks = {n: [(float(at), int(count)) for at, count in marks] for n, marks in body}
            new.now = math.inf
        return new


@dataclass(frozen=True)
class LineBlock:
    """Consecutive lines, after `skipped` omitted ones, and the byte offsets in the file at which
    they end."""

    skipped: int
    lines: list[str]
    ends: Sequence[int]


class Tail:
    """The whole lines added to a file since the last look.

    `\\r` overwrites its line, and so does moving the cursor up to a line: bars of nested loops do
    not count as lines. So an overwritten line is held back until another line follows, but not for
    long.
    """

    def __init__(self, path: Path, arrivals: Arrivals | None = None) -> None:
        """arrivals: gets the counts of new lines."""
        self.path = path
        self._arrivals = arrivals
        self.count = 0  # lines so far
        self.behind = False  # there was more than one look can read
        self._name = os.fspath(path)
        self._aligned_size: int | None = None  # bytes of the file to read (`align`); None: all
        self._offset = 0
        self._pending = b""
        self._below = b""  # the text of the line that the cursor moved up from
        self._held_at: float | None = None  # time since which the first pending line is whole

    def look(self, limit: int | None, most: int | None = None) -> LineBlock | None:
        """The last `limit` lines completed in the next `most` bytes (default: a megabyte); None at
        the end of the file."""
        block = self._take(limit, most)
        if block is None:
            return None
        skipped, lines = block
        start = self.end - sum(len(line) + 1 for line in lines)
        ends = [*itertools.accumulate((len(line) + 1 for line in lines), initial=start)][1:]
        return LineBlock(skipped, [shown(line) for line in lines], ends)

    @property
    def size(self) -> int:
        """Bytes of the file now; a plain system call, because 256 are read 20 times a second."""
        try:
            return os.stat(self._name).st_size  # noqa: PTH116
        except FileNotFoundError:
            return 0

    def align(self, other: Tail) -> None:
        """Limit both to the same moment until they are aligned again, so that lines written to one
        and then to the other are not seen in reverse, unless the rank never stops writing."""
        for _ in range(5):
            self._aligned_size, other._aligned_size = self.size, other.size
            if self.size == self._aligned_size:
                return

    @property
    def end(self) -> int:
        """The byte offset at which the lines from `look` end, for `before`."""
        return max(0, self._offset - len(self._pending))

    @property
    def open_lines(self) -> list[str]:
        """The unfinished line, and the lines below it."""
        lines = map(shown, [*self._pending.split(b"\n"), self._below])
        return [line for line in lines if line.strip()]

    def finish(self) -> list[str]:
        """The last lines, including an unfinished one, of a file that is no longer written."""
        lines: list[bytes] = []
        while (block := self._take(None)) is not None:
            lines += block[1]
        if self._pending:
            pending = self._pending.removesuffix(b"\n").split(b"\n")
            self._add_count(len(pending))
            lines += pending
            self._pending = self._below = b""
        return [*map(shown, lines)]

    def _take(self, limit: int | None, most: int | None = None) -> tuple[int, list[bytes]] | None:
        """The number of skipped lines, and the lines after them."""
        chunk = self._read_chunk(most or _CHUNK)
        now = time.monotonic() if self._arrivals is None else self._arrivals.now
        if not chunk and (self._held_at is None or now - self._held_at < _HOLD_TIME):
            return None
        data = self._fold(self._pending + chunk)
        first_line = self._pending[: self._pending.find(b"\n") + 1]
        held_at = self._held_at if first_line and data.startswith(first_line) else None
        is_due = held_at is not None and now - held_at >= _HOLD_TIME
        count = data.count(b"\n")
        # Split off only the lines to show (a flood has many); one more may be held back.
        split = count if limit is None else min(count, limit + 1)
        *complete, self._pending = data.rsplit(b"\n", split + 1)[-split - 1 :]
        self._held_at = None
        if complete and b"\r" in complete[-1].rstrip(b"\r") and not (is_due and count == 1):
            self._pending = complete.pop() + b"\n" + self._pending
            count -= 1
            self._held_at = now if count or held_at is None else held_at
        # An endless line is a progress bar or noise, so only its end matters.
        self._pending = self._pending[-4 * LONGEST :]
        self._add_count(count)
        lines = complete if limit is None else complete[max(0, len(complete) - limit) :]
        return count - len(lines), lines

    def _add_count(self, lines: int) -> None:
        self.count += lines
        if lines and self._arrivals is not None:
            self._arrivals.note(self.path.name, self.count)

    def _read_chunk(self, most: int) -> bytes:
        size = self.size if self._aligned_size is None else self._aligned_size
        self.behind = size - self._offset > most
        if size <= self._offset:
            return b""
        chunk = private.part(self._name, self._offset, min(most, size - self._offset))
        self._offset += len(chunk)
        return chunk

    def _fold(self, data: bytes) -> bytes:
        """The data without lines that the cursor moved up from."""
        if b"\x1b" not in data or _CURSOR_UP not in data:  # one byte is found 10 times as fast
            return data
        first, *parts = data.split(_CURSOR_UP)
        folded = bytearray(first)
        for part in parts:
            cut = max(0, folded.rfind(b"\n"))
            self._below = bytes(folded[cut + 1 :])
            del folded[cut:]
            folded += part
        return bytes(folded)


def shown(line: bytes) -> str:
    """A line as a terminal would finally show it: the text after the last carriage return."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


# ---------------------------------------------------------------- the ends of a file


@dataclass(frozen=True)
class Ends:
    """Head and tail of a file, with `left_out` lines between them, and the byte offsets at which
    their lines end."""

    head: list[str]
    left_out: int
    tail: list[str]
    offsets: list[int]


def ends(path: Path, head: int, tail: int, count: int | None = None) -> Ends:
    """The first and last lines of a file; none if it does not exist.

    `count` is the number of its lines if known; otherwise a big file is read to count them.
    """
    first = _lines_before(path, sys.maxsize)
    total, last = len(first), first[-tail:]
    if last and last[-1].end > _BLOCK:
        first = _lines(private.part(path, 0, _BLOCK), 0)
        if last[0].start <= first[-1].start:  # what is cut here is whole there
            first.pop()
        total = _count_newlines(path) if count is None else count
    lines = first[:head]
    lines += [line for line in last if not lines or line.end > lines[-1].end]
    left_out = max(0, total - len(lines))
    cut = min(head, len(first)) if left_out else len(lines)
    texts = [shown(line.text) for line in lines]
    return Ends(texts[:cut], left_out, texts[cut:], [line.end for line in lines])


class _Line(NamedTuple):
    """A line as written, and the byte offsets at which it starts and ends."""

    start: int
    end: int
    text: bytes


def _lines(data: bytes, start: int) -> list[_Line]:
    """The lines in a part of a file that starts at this offset, without lines that the cursor moved
    up from. An unfinished line is one too."""
    text, ends, offset = bytearray(), [start], start
    for number, part in enumerate(data.split(_CURSOR_UP)):
        if number:
            del text[max(0, text.rfind(b"\n")) :]
            del ends[max(1, len(ends) - 1) :]
        text += part
        ends += (offset + match.end() for match in re.finditer(b"\n", part))
        offset += len(part) + len(_CURSOR_UP)
    texts = bytes(text).split(b"\n")
    ends += [start + len(data)] if texts[-1] else []
    return [_Line(*span, line) for span, line in zip(itertools.pairwise(ends), texts, strict=False)]


class SwitchLog:
    """The positions at which a process switched between its streams (`output.Log`)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._switches: list[tuple[int, int]] = []

    def before(self, stream: int, offsets: Iterable[int]) -> list[int]:
        """For lines of a stream (0: stdout, 1: stderr) that end at these offsets: the number of
        switches before each was written."""
        data = private.part(self._path, len(self._switches) * SWITCH.size, _CHUNK * SWITCH.size)
        self._switches += SWITCH.iter_unpack(data[: len(data) & -SWITCH.size])
        size = operator.itemgetter(stream)
        return [bisect.bisect_left(self._switches, at, key=size) for at in offsets]


def before(path: Path, end: int, count: int, most: int | None = None) -> LineBlock:
    """Up to `count` lines that end before the byte offset `end`, or at the end of the file, within
    `most` bytes (default: a quarter of a megabyte). How many precede them is unknown."""
    lines = _lines_before(path, end, most)
    del lines[: max(0, len(lines) - count)]
    return LineBlock(0, [shown(line.text) for line in lines], [line.end for line in lines])


def _lines_before(path: Path, end: int, most: int | None = None) -> list[_Line]:
    """The lines before an offset, as far as `most` bytes have them."""
    end = min(end, path.stat().st_size) if path.exists() else 0
    origin = max(0, end - (most or _BLOCK))
    lines = _lines(private.part(path, origin, end - origin), origin)
    return lines[1:] if origin and lines[1:] else lines  # the first is part of a line


def _count_newlines(path: Path) -> int:
    with os.fdopen(private.reading(path), "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_CHUNK), b""))
