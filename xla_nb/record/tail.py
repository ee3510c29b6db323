"""The tails of a run's log files, read while they grow.

The rule: what is read is bounded, whatever a rank writes; a line is given whole, as a terminal
would leave it standing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Characters kept of one line.
LONGEST = 4000
_CHUNK = 1 << 20  # bytes read of one file at a time
_BLOCK = 1 << 18  # bytes read at most to find the lines before a place
_UP = b"\x1b[A"  # how tqdm goes back from the bar of an inner loop


@dataclass(frozen=True)
class LineBlock:
    """Lines that follow each other; `skipped` ones before them were left out. `start` is the
    first one's byte offset in the file."""

    start: int
    skipped: int
    lines: list[str]


class Tail:
    """What was added to a file since the last look, in whole lines.

    `\\r` rewrites the line it stands in, and so does going up to a line again: the bars of
    nested loops are no lines. A rewritten line is held back until another one follows it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0  # lines so far
        self.behind = False  # there was more than one look reads
        self._name = os.fspath(path)
        self._offset = 0
        self._rest = b""
        self._below = b""  # what stood in the line that was left upwards

    def lines(self) -> Iterator[str]:
        """The lines completed since the last call."""
        while (piece := self.look(None)) is not None:
            yield from piece.lines

    def look(self, limit: int | None) -> LineBlock | None:
        """The lines completed in the next megabyte, the last `limit` of them; None at the end."""
        found = self._take(limit)
        if found is None:
            return None
        skipped, kept = found
        start = self._offset - len(self._rest) - sum(len(line) + 1 for line in kept)
        return LineBlock(max(0, start), skipped, [shown(line) for line in kept])

    @property
    def open_lines(self) -> list[str]:
        """What stands in the unfinished line, and below it."""
        lines = map(shown, [*self._rest.split(b"\n"), self._below])
        return [line for line in lines if line.strip()]

    def finish(self) -> Iterator[str]:
        """The last lines; an unfinished one counts when nobody will finish it."""
        return map(shown, self.finish_raw())

    def finish_raw(self) -> list[bytes]:
        """The last lines as they were written, for `shown`."""
        lines: list[bytes] = []
        while (found := self._take(None)) is not None:
            lines += found[1]
        if self._rest:
            left = self._rest.removesuffix(b"\n").split(b"\n")
            self.count += len(left)
            lines += left
            self._rest = self._below = b""
        return lines

    def _take(self, limit: int | None) -> tuple[int, list[bytes]] | None:
        """How many of the next lines are left out, and the lines after them."""
        chunk = self._read()
        if not chunk:
            return None
        data = self._folded(self._rest + chunk)
        ends = data.count(b"\n")
        # Of a flood only the lines that are shown become objects; one more may be held back.
        most = ends if limit is None else min(ends, limit + 1)
        *whole, self._rest = data.rsplit(b"\n", most + 1)[-most - 1 :]
        if whole and b"\r" in whole[-1].rstrip(b"\r"):
            self._rest = whole.pop() + b"\n" + self._rest
            ends -= 1
        # An endless line is a progress bar or noise: only its end can still be shown.
        self._rest = self._rest[-4 * LONGEST :]
        self.count += ends
        kept = whole if limit is None else whole[max(0, len(whole) - limit) :]
        return ends - len(kept), kept

    def _read(self) -> bytes:
        # Plain system calls: a flood into 256 files is looked at 20 times a second.
        try:
            size = os.stat(self._name).st_size  # noqa: PTH116
            self.behind = size - self._offset > _CHUNK
            if size <= self._offset:
                return b""
            file = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            chunk = os.pread(file, min(_CHUNK, size - self._offset), self._offset)
        finally:
            os.close(file)
        self._offset += len(chunk)
        return chunk

    def _folded(self, data: bytes) -> bytes:
        """Without the lines that were left upwards again."""
        if b"\x1b" not in data or _UP not in data:  # the first is found 10 times as fast
            return data
        first, *more = data.split(_UP)
        kept = bytearray(first)
        for part in more:
            cut = max(0, kept.rfind(b"\n"))
            self._below = bytes(kept[cut + 1 :])
            del kept[cut:]
            kept += part
        return bytes(kept)


def shown(line: bytes) -> str:
    """A line as a terminal would leave it standing: what the last carriage return left."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


# ---------------------------------------------------------------- a file as it lies there


@dataclass(frozen=True)
class Ends:
    """Head and tail of a file, with `left_out` lines between them."""

    head: list[str]
    left_out: int
    tail: list[str]


def ends(path: Path, head: int, tail: int, count: int | None = None) -> Ends:
    """The first and the last lines of a file, none if it is not there. `count` is the number of
    its lines where that is known; a big file is read through for it otherwise."""
    if not path.exists() or path.stat().st_size <= _BLOCK:
        lines = Tail(path).finish_raw()
        left_out = max(0, len(lines) - head - tail)
        cut = head if left_out else len(lines)
        return Ends(
            [shown(line) for line in lines[:cut]],
            left_out,
            [shown(line) for line in lines[cut + left_out :]],
        )
    with path.open("rb") as file:
        first = [shown(line) for line in file.read(_BLOCK).split(b"\n")[:head]]
    last = before(path, path.stat().st_size, tail).lines
    lines_there = _count(path) if count is None else count
    return Ends(first, max(0, lines_there - len(first) - len(last)), last)


@dataclass(frozen=True)
class Earlier:
    """Lines before a place in a file. `start` is the byte offset of the first of them; `first`:
    nothing lies before it."""

    start: int
    lines: list[str]
    first: bool


def before(path: Path, end: int, count: int) -> Earlier:
    """At most `count` lines that end before the byte offset `end`."""
    origin = max(0, end - _BLOCK)
    try:
        with path.open("rb") as file:
            file.seek(origin)
            data = file.read(end - origin)
    except FileNotFoundError:
        return Earlier(0, [], True)
    whole = data.removesuffix(b"\n").split(b"\n") if data else []
    if origin and len(whole) > 1:  # the first is the end of a line
        whole = whole[1:]
    kept = whole[max(0, len(whole) - count) :]
    start = end - sum(len(line) + 1 for line in kept) + (not data.endswith(b"\n") and bool(kept))
    return Earlier(max(0, start), [shown(line) for line in kept], start <= 0)


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_CHUNK), b""))
