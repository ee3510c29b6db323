"""Displays of ranks: how they are written and read, and `run.displays`.

A rank's file is a journal of lines of JSON: a display, an update of a display, or a clearing, after
which a long journal is restarted. Both the file and the state that a reader folds it into are
bounded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xla_nb.record import private
from xla_nb.wording import in_one_line, size

#: The newest displays of a rank that are kept: their number and their bytes.
MOST, MOST_BYTES = 100, 32_000_000
#: Largest display and largest journal, in bytes.
LARGEST, JOURNAL = 8_000_000, 256 << 20
_BLOCK_SIZE = 1 << 24  # bytes to read from a journal at a time


@dataclass(frozen=True)
class Display:
    """One display of a rank; IPython's `display(…)` shows it again.

    data      its forms by MIME type, as in Jupyter (images as base64)
    metadata  Jupyter's metadata
    id        its `display_id`, if it has one
    result    it is the return value of the rank's function
    """

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = field(default=None, compare=False)  # may be generated
    result: bool = False
    nbytes: int = field(default=0, compare=False, repr=False)

    @property
    def text(self) -> str:
        """Its plain text, or its MIME types if it has none."""
        text = self.data.get("text/plain")
        return text if isinstance(text, str) else f"<{', '.join(self.data)}>"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(self.data), dict(self.metadata)

    def __repr__(self) -> str:
        kinds = [name for name in self.data if name != "text/plain"]
        return f"<Display {in_one_line(self.text, 60)!r}{': ' if kinds else ''}{', '.join(kinds)}>"


@dataclass
class Shown:
    """The current displays of a rank, from its journal so far.

    dropped     the number of earlier displays dropped because there were too many
    unreadable  the number of lines that are not a journal's
    """

    displays: list[Display] = field(default_factory=list)
    dropped: int = 0
    unreadable: int = 0
    _clears: bool = field(default=False, compare=False)  # with the next display

    def take(self, line: bytes) -> None:
        """Fold in one line of the journal."""
        try:
            self._apply(json.loads(line), len(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.unreadable += 1

    def _apply(self, body: dict[str, Any], nbytes: int) -> None:
        match body.pop("kind"):
            case "show":
                self._show(Display(**_check_body(body), nbytes=nbytes))
            case "update":
                self._update(Display(**_check_body(body), nbytes=nbytes))
            case "clear":
                self._clear(**body)
            case _:
                self.unreadable += 1

    def _show(self, display: Display) -> None:
        if self._clears:
            self._clear(wait=False)
        self.displays.append(display)
        self._trim()

    def _update(self, new: Display) -> None:
        """Update a display. If none has its id (it is from an earlier run, say), show it as a new
        one: otherwise it would be lost."""
        if all(display.id != new.id for display in self.displays):
            self._show(new)
        else:
            self.displays[:] = [
                replace(new, result=display.result) if display.id == new.id else display
                for display in self.displays
            ]
            self._trim()

    def _clear(self, wait: bool) -> None:
        self._clears = wait
        if not wait:
            self.displays.clear()
            self.dropped = 0

    def _trim(self) -> None:
        size = sum(display.nbytes for display in self.displays)
        while len(self.displays) > MOST or size > MOST_BYTES:
            size -= self.displays.pop(0).nbytes
            self.dropped += 1


def _check_body(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a line. Raises TypeError if it is not a MIME bundle."""
    if not isinstance(body["data"], dict) or not isinstance(body["metadata"], dict):
        raise TypeError("not a bundle")
    return body


def encode(kind: str, **body: Any) -> bytes:
    """One line of a journal. Lone surrogates, which cannot be sent to a front end, become question
    marks. Raises ValueError and TypeError for values that JSON cannot represent."""
    return json.dumps({"kind": kind, **body}, ensure_ascii=False).encode(errors="replace") + b"\n"


class Reader:
    """The displays of a rank, read while its journal grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = Shown()
        self._offset = 0
        self._pending = b""

    def look(self) -> bool:
        """Read new lines. Returns whether the file has changed."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 # several times a second for each rank
        except OSError:
            return False
        if status.st_size < self._offset:  # the journal was restarted
            self.shown, self._offset, self._pending = Shown(), 0, b""
        elif status.st_size == self._offset:
            return False
        with contextlib.suppress(OSError):  # the next look finds the rest
            while block := private.part(self.path, self._offset, _BLOCK_SIZE):
                self._offset += len(block)
                *lines, self._pending = (self._pending + block).split(b"\n")
                for line in filter(None, lines):
                    self.shown.take(line)
        return True


def read(path: Path) -> list[Display]:
    """The displays of a rank, from its journal as it is now; none if it does not exist."""
    reader = Reader(path)
    reader.look()
    return reader.shown.displays


class Journal:
    """A rank's journal, written by any thread and any process that the rank forked."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def add(self, line: bytes, *, clears: bool = False) -> None:
        """Append a line from `encode`, whole or not at all. One that `clears` restarts a long
        journal; it is left out if the journal is empty, or ends with the same line, as in a loop
        that clears and prints. Raises OSError, also if the journal is full."""
        fd = private.writing(self._path, os.O_RDWR | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            nbytes = os.fstat(fd).st_size
            if clears and os.pread(fd, len(line), max(0, nbytes - len(line))) in (b"", line):
                return
            if clears and nbytes > MOST_BYTES:
                nbytes = 0
                os.ftruncate(fd, 0)
            if nbytes + len(line) > JOURNAL:
                limit = f"{size(JOURNAL)} is the limit for a rank's displays"
                raise OSError(errno.ENOBUFS, f"{limit}, unless it clears them")
            if nbytes and os.pread(fd, 1, nbytes - 1) != b"\n":  # left by a killed process
                line = b"\n" + line
            try:
                while line:
                    line = line[os.write(fd, line) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, nbytes)
                raise
        finally:
            os.close(fd)
