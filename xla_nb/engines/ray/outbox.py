"""What the ranks of a host have written, on its way to the notebook.

The rule: a host keeps every file whole. The beginning of a log goes as it is; of one that is longer
than WHOLE the newest lines go, and a line that says how many are left out and where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: Bytes of a log that are sent without a gap; of a longer one, the most in one look.
WHOLE = 64 << 20
TAIL = 64 << 10
_CHUNK = 1 << 20  # bytes of a log in one look
_MOST = 8 << 20  # bytes of all files in one look
_BLOCK = 1 << 20  # bytes read at once to count lines

#: How a piece is taken in: behind what is there, in its place, or as a part of a result.
Mode = Literal["append", "replace"]


@dataclass(frozen=True)
class Piece:
    """Bytes of the file `name` of a record."""

    name: str
    mode: Mode
    data: bytes


class Outbox:
    """The files of one host's record, and how much of each has been sent.

    `host` is put before each line of the job's own output where there are others: it has the name
    of no rank.
    """

    def __init__(self, record: Path, host: str = "") -> None:
        self._record = record
        self._host = host
        self._logs: dict[str, _Log] = {}
        self._samples: dict[str, int] = {}
        self._results: dict[str, int] = {}

    def look(self) -> list[Piece]:
        """What is new; may be called again at once for what did not fit."""
        found: list[Piece] = []
        room = _MOST
        for name in sorted(os.listdir(self._record)):  # noqa: PTH208 # 20 times a second
            if room <= 0 or name.endswith(".partial"):
                continue
            piece = self._piece(name, (self._record / name).stat())
            if piece is not None and piece.data:
                found.append(piece)
                room -= len(piece.data)
        return found

    def delivered(self, rank: int) -> bool:
        """Whether all of a rank's result has been sent."""
        path = self._record / f"rank-{rank}.result"
        return self._results.get(path.name, 0) == path.stat().st_size

    def _piece(self, name: str, there: os.stat_result) -> Piece | None:
        match name.rpartition(".")[2]:
            case "out" | "err":
                if name not in self._logs:
                    mark = f"[{self._host}] " if self._host and name.startswith("job") else ""
                    self._logs[name] = _Log(self._record / name, mark)
                return Piece(name, "append", self._logs[name].look(there.st_size))
            case "history" | "result":
                sent = self._results.get(name, 0)
                data = _read(self._record / name, sent, min(there.st_size - sent, _MOST))
                self._results[name] = sent + len(data)
                return Piece(name, "append", data)
            case "now":
                if self._samples.get(name) == there.st_mtime_ns:
                    return None
                self._samples[name] = there.st_mtime_ns
                return Piece(name, "replace", (self._record / name).read_bytes())
        return None


class _Log:
    """One log: `sent` bytes of it are dealt with, sent or left out."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark.encode()
        self._sent = 0
        self._in_line = False  # what was sent last has no end of line

    def look(self, size: int) -> bytes:
        behind = size - self._sent
        if behind <= 0:
            return b""
        left_out = b""
        if size > WHOLE and behind > TAIL:
            left_out = self._skip(size - TAIL)
        data = _read(self._path, self._sent, min(size - self._sent, _CHUNK))
        if self._mark:
            data = b"".join(data.splitlines(keepends=True)[: data.count(b"\n")])
        self._sent += len(data)
        self._in_line = not data.endswith(b"\n") if data else self._in_line
        if self._mark:
            data = b"".join(self._mark + line for line in data.splitlines(keepends=True))
        return left_out + data

    def _skip(self, to: int) -> bytes:
        """Leave out what lies before the first line that begins behind `to`; the line about it."""
        lines, origin = 0, self._sent
        for block in _blocks(self._path, origin, to):
            lines += block.count(b"\n")
        rest = _read(self._path, to, TAIL)
        end = rest.find(b"\n") + 1
        lines += end > 0
        self._sent = to + end
        start = b"\n" if self._in_line else b""
        self._in_line = False
        told = (
            f"… {lines:,} lines ({(self._sent - origin) / 1e6:,.1f} MB) are left out here; the "
            f"whole is in {self._path} on {os.uname().nodename} …\n"
        )
        return start + told.encode()


def _blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        block = _read(path, start, min(_BLOCK, end - start))
        if not block:
            return
        yield block
        start += len(block)


def _read(path: Path, offset: int, count: int) -> bytes:
    if count <= 0:
        return b""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), count, offset)
