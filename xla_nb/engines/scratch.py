"""The folder in TMPDIR of one fork server: what torch and multiprocessing keep in files for a
process, and would leave there when it is killed.

It is locked by every process that uses it, so that however they end, it is known when nobody does:
the notebook removes it, or the server if the notebook is gone, or else the next server's start.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Short: a socket's path has at most 107 bytes, and those of multiprocessing are in here.
_PREFIX = "xnb-"
_MARK = "xla_nb"  # a file that tells it from what others call so
_LONGEST = 107 - len("/listener-12345678")  # bytes of a folder in which a socket has a name


class Scratch:
    """The folder at `path`, locked by this process and those that it forks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    def create(cls) -> Scratch:
        """A new one; removes those that nobody uses. Raises OSError."""
        _tidy(Path(tempfile.gettempdir()))
        made = cls(Path(tempfile.mkdtemp(prefix=_PREFIX)))
        (made.path / _MARK).touch()  # from now on others look at it, and it is locked
        return made

    @contextlib.contextmanager
    def taking_in(self) -> Iterator[None]:
        """Have `tempfile` make everything in it, for imports that make a folder."""
        before, tempfile.tempdir = tempfile.tempdir, str(self.path)
        try:
            yield
        finally:
            tempfile.tempdir = before

    def of_job(self, pid: int) -> Path:
        """The folder of one of the server's jobs, which makes it itself."""
        return self.path / f"{pid:x}"

    def remove_of_job(self, pid: int) -> None:
        """Remove it, when the job and all it started have ended."""
        shutil.rmtree(self.of_job(pid), ignore_errors=True)

    def remove(self) -> None:
        """Remove it, whoever else uses it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def keep_processes_in(folder: Path) -> None:
    """Have multiprocessing keep what it makes for this process, and those it starts, in `folder`.

    It would make a folder for each, and remove it where the process ends by itself. It still does
    where TMPDIR is too long for sockets in ours.
    """
    if len(os.fsencode(folder)) > _LONGEST:
        return
    with contextlib.suppress(OSError):  # no space, no TMPDIR: multiprocessing says so when asked
        folder.mkdir(mode=0o700)
        process: Any = multiprocessing.current_process()
        process._config["tempdir"] = str(folder)


def _tidy(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for mark in folder.glob(f"{_PREFIX}*/{_MARK}"):
            _remove_unused(mark.parent)


def _remove_unused(folder: Path) -> None:
    with contextlib.suppress(OSError):  # in use, another user's, gone meanwhile
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
