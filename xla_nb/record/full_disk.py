"""Writing to a disk that may be full: what fits is kept, what does not is told once, nobody ends.

A disk is full for as long as nobody frees space, and a run may take days.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from xla_nb.record import private

#: What a system call says of a disk: full, its quota, a limit on file sizes, broken.
_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE}
_FREE = " Free space there, or set XLA_NB_HOME to a folder that has more before the next launch."
_FIXES = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: " Raise the limit on the size of files (`ulimit -f`).",
}


def is_of_disk(problem: OSError) -> bool:
    """Whether the disk could not take what was written, rather than the file being wrong."""
    return problem.errno in _OF_DISKS


class Losses:
    """Tells what could not be written to a folder, each kind of thing once."""

    def __init__(self, folder: str | Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._told: set[str] = set()

    def note(self, what: str, problem: OSError) -> None:
        """`what` is as in "Cannot write all of its output"."""
        if what not in self._told:
            self._told.add(what)
            self._tell(
                f"Cannot write {what}: {problem.strerror} ({self._folder}). The run goes on."
                f"{_FIXES.get(problem.errno or 0, '')}"
            )


class Appender:
    """A file that grows by whole lines, of any thread. What does not fit waits in memory, up to
    `most` bytes, and is written when there is space again; what waits no longer is lost.

    Opened by `add` where it is not; the caller closes it.
    """

    def __init__(self, path: str | Path, most: int) -> None:
        self._path, self._most = path, most
        self._file: int | None = None
        self._waiting = b""
        self._lock = threading.Lock()

    def add(self, line: bytes = b"") -> None:
        """Append what waits, and a line. Raises OSError where some has to wait, or is lost."""
        with self._lock:
            if len(self._waiting) + len(line) <= self._most:
                self._waiting += line
            if self._file is None and self._waiting:
                self._file = private.writing(self._path, os.O_WRONLY | os.O_APPEND)
            while self._file is not None and self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
