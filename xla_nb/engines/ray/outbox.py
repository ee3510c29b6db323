"""What the ranks of a host have written, on its way to the notebook.

The rule: a host keeps every file whole. The first WHOLE bytes of a log go as they are; of what is
behind them the newest lines go, and a line that says how many are left out and where they lie.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xla_nb.record.files import Record, is_log_of_job, kind

#: Bytes of a log that are sent without a gap; behind them, the most in one look.
WHOLE = 64 << 20
TAIL = 64 << 10
_CHUNK = 1 << 20  # bytes of a log in one look
_MOST = 8 << 20  # bytes of all files in one look
_BLOCK = 1 << 20  # bytes read at once to count lines

#: How a piece is taken in: behind what is there, in its place, or as a part of a result.
Mode = Literal["append", "replace"]


@dataclass(frozen=True)
class FileChunk:
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
        self._last = ""  # the file that was looked at last

    def look(self, *, over: bool = False) -> list[FileChunk]:
        """What is new; may be called again at once for what did not fit. `over`: nobody writes any
        more, so that an unfinished line will stay one."""
        found: list[FileChunk] = []
        room = _MOST
        for name in self._in_turn():
            if room <= 0:
                break
            self._last = name
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                piece = self._piece(name, (self._record / name).stat(), over)
                if piece is not None and piece.data:
                    found.append(piece)
                    room -= len(piece.data)
        return found

    def _in_turn(self) -> list[str]:
        """The files' names, beginning behind the last one: what fills a look has one turn."""
        names = sorted(os.listdir(self._record))  # noqa: PTH208 # 20 times a second
        names = [name for name in names if kind(name)]
        next_one = bisect.bisect(names, self._last)
        return names[next_one:] + names[:next_one]

    def delivered(self, rank: int) -> bool:
        """Whether all of a rank's result has been sent."""
        path = Record(self._record).result(rank)
        return self._results.get(path.name, 0) == path.stat().st_size

    def _piece(self, name: str, there: os.stat_result, over: bool) -> FileChunk | None:
        match kind(name):
            case "log":
                if name not in self._logs:
                    mark = f"[{self._host}] " if self._host and is_log_of_job(name) else ""
                    self._logs[name] = _Log(self._record / name, mark)
                return FileChunk(name, "append", self._logs[name].look(there.st_size, over))
            case "history" | "result":
                sent = self._results.get(name, 0)
                data = _read(self._record / name, sent, min(there.st_size - sent, _MOST))
                self._results[name] = sent + len(data)
                return FileChunk(name, "append", data)
            case "sample":
                if self._samples.get(name) == there.st_mtime_ns:
                    return None
                self._samples[name] = there.st_mtime_ns
                return FileChunk(name, "replace", (self._record / name).read_bytes())
        return None


class _Log:
    """One log: `sent` bytes of it are dealt with, sent or left out. With a mark it goes in whole
    lines, each behind the mark: others write into the same file."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark.encode()
        self._sent = 0
        self._in_line = False  # what was sent last has no end of line

    def look(self, size: int, over: bool) -> bytes:
        left_out = b""
        if self._sent >= WHOLE and size - self._sent > TAIL:
            left_out = self._skip(size - TAIL)
        data = _read(self._path, self._sent, min(size - self._sent, _CHUNK))
        if self._mark:
            # What has no end goes when nobody will end it, or when it is too long to wait for.
            unended = data if over or len(data) >= TAIL else b""
            data = data[: data.rfind(b"\n") + 1] or unended
        self._sent += len(data)
        told = left_out + self._marked(data)
        if self._mark and over and self._in_line and self._sent >= size:
            self._in_line = False
            told += b"\n"  # for who writes next into the same file
        return told

    def _marked(self, data: bytes) -> bytes:
        if not data:
            return b""
        start = b"" if self._in_line else self._mark
        self._in_line = not data.endswith(b"\n")
        lines = data.removesuffix(b"\n")
        return start + lines.replace(b"\n", b"\n" + self._mark) + data[len(lines) :]

    def _skip(self, to: int) -> bytes:
        """Leave out what lies before the first line that begins behind `to`; the line about it."""
        origin = self._sent
        self._sent = to + _read(self._path, to, TAIL).find(b"\n") + 1
        lines = sum(block.count(b"\n") for block in _blocks(self._path, origin, self._sent))
        start = b"\n" if self._in_line else b""
        lines -= self._in_line and lines > 0  # of which the beginning has been sent
        self._in_line = False
        told = (
            f"… {lines:,} lines ({(self._sent - origin) / 1e6:,.1f} MB) are left out here; the "
            f"whole is in {self._path} on {os.uname().nodename} …\n"
        )
        return start + self._mark + told.encode()


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
