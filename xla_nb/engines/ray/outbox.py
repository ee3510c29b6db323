"""The files of a host's ranks, in chunks for the notebook.

The host keeps every file whole. The first WHOLE bytes of a log are sent as they are; after that,
only the newest lines and a line that says how many were omitted and where the full log is.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xla_nb.record import private
from xla_nb.record.files import Record, is_log_of_job, kind

#: Bytes of a log that are sent without a gap; behind them, the most in one look.
WHOLE = 64 << 20
TAIL = 64 << 10
_CHUNK = 1 << 20  # bytes of a log at a time
_MOST = 8 << 20  # bytes of all files at a time
_BLOCK = 1 << 20  # bytes to read at a time for counting lines

#: How a chunk is written: after the content of the file, in its place, or as the beginning of
#: another file that takes its place.
Mode = Literal["append", "replace", "anew"]


@dataclass(frozen=True)
class FileChunk:
    """Bytes of the file `name` in a record."""

    name: str
    mode: Mode
    data: bytes


class Outbox:
    """The files of one host's record, and how much of each has been sent.

    `host`, if given, is put before each line of the job's own output, since no rank's name says
    where it comes from.
    """

    def __init__(self, record: Path, host: str = "") -> None:
        self._record = record
        self._host = host
        self._logs: dict[str, _Log] = {}
        self._samples: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._journals: dict[str, tuple[int, int]] = {}  # the file's number, and bytes sent of it
        self._last = ""  # the file looked at last

    def look(self, *, over: bool = False) -> list[FileChunk]:
        """The new chunks; call again at once for those that did not fit. `over`: nothing more will
        be written, so unfinished lines are sent too."""
        chunks: list[FileChunk] = []
        room = _MOST
        for name in self._in_turn():
            if room <= 0:
                break
            self._last = name
            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                chunk = self._chunk(name, (self._record / name).stat(), over)
                if chunk is not None and chunk.data:
                    chunks.append(chunk)
                    room -= len(chunk.data)
        return chunks

    def _in_turn(self) -> list[str]:
        """The files' names, starting after the last one, so that no file starves the others."""
        names = sorted(os.listdir(self._record))  # noqa: PTH208 # 20 times a second
        names = [name for name in names if kind(name)]
        next_one = bisect.bisect(names, self._last)
        return names[next_one:] + names[:next_one]

    def delivered(self, rank: int) -> bool:
        """Whether all of a rank's result has been sent."""
        path = Record(self._record).result(rank)
        return path.exists() and self._results.get(path.name, 0) == path.stat().st_size

    def _chunk(self, name: str, status: os.stat_result, over: bool) -> FileChunk | None:
        match kind(name):
            case "log":
                if name not in self._logs:
                    mark = f"[{self._host}] " if self._host and is_log_of_job(name) else ""
                    self._logs[name] = _Log(self._record / name, mark)
                return FileChunk(name, "append", self._logs[name].look(status.st_size, over))
            case "history" | "result":
                sent = self._results.get(name, 0)
                data = _read(self._record / name, sent, min(status.st_size - sent, _MOST))
                self._results[name] = sent + len(data)
                return FileChunk(name, "append", data)
            case "displays":
                return self._new_displays(name, status)
            case "sample":
                if self._samples.get(name) == status.st_mtime_ns:
                    return None
                self._samples[name] = status.st_mtime_ns
                return FileChunk(name, "replace", private.read(self._record / name))
        return None

    def _new_displays(self, name: str, status: os.stat_result) -> FileChunk:
        """A journal goes on, or has been written anew (record/displays.py)."""
        inode, sent = self._journals.get(name, (status.st_ino, 0))
        is_another = inode != status.st_ino or status.st_size < sent
        sent = 0 if is_another else sent
        data = _read(self._record / name, sent, min(status.st_size - sent, _MOST))
        self._journals[name] = status.st_ino, sent + len(data)
        return FileChunk(name, "anew" if is_another else "append", data)


class _Log:
    """One log, of which `_sent` bytes have been sent or omitted. With a mark it is sent in whole
    lines, each after the mark, because several hosts write to the notebook's file."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark.encode()
        self._sent = 0
        self._in_line = False  # the data sent last has no end of line

    def look(self, size: int, over: bool) -> bytes:
        gap = b""
        if self._sent >= WHOLE and size - self._sent > TAIL:
            gap = self._skip(size - TAIL)
        data = _read(self._path, self._sent, min(size - self._sent, _CHUNK))
        if self._mark:
            # An unfinished line is sent if it will stay so, or is too long to wait for.
            unfinished = data if over or len(data) >= TAIL else b""
            data = data[: data.rfind(b"\n") + 1] or unfinished
        self._sent += len(data)
        result = gap + self._marked(data)
        if self._mark and over and self._in_line and self._sent >= size:
            self._in_line = False
            result += b"\n"  # so that another host's line starts on a new one
        return result

    def _marked(self, data: bytes) -> bytes:
        if not data:
            return b""
        start = b"" if self._in_line else self._mark
        self._in_line = not data.endswith(b"\n")
        lines = data.removesuffix(b"\n")
        return start + lines.replace(b"\n", b"\n" + self._mark) + data[len(lines) :]

    def _skip(self, to: int) -> bytes:
        """Omit everything before the first line that begins after `to`; returns a line about it."""
        origin = self._sent
        self._sent = to + _read(self._path, to, TAIL).find(b"\n") + 1
        lines = sum(block.count(b"\n") for block in _blocks(self._path, origin, self._sent))
        start = b"\n" if self._in_line else b""
        lines -= self._in_line and lines > 0  # the beginning of the first one has been sent
        self._in_line = False
        note = (
            f"… {lines:,} lines ({(self._sent - origin) / 1e6:,.1f} MB) omitted here; the full log "
            f"is {self._path} on {os.uname().nodename} …\n"
        )
        return start + self._mark + note.encode()


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
    fd = private.reading(path)
    try:
        return os.pread(fd, count, offset)
    finally:
        os.close(fd)
