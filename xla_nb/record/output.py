"""A process's stdout and stderr as logs of a record, on a disk that may be full.

`print` must not end a training of many hours. What Python code writes through `sys.stdout` and
`sys.stderr` never fails for want of space; what writes to descriptors 1 and 2 itself is told the
truth by the system: `printf` of C code goes on, `os.write(1, …)` raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xla_nb.record import private
from xla_nb.record.files import Losses, Record, is_of_disk

_GAP = "\n… output is missing here: {} …\n"
_WHAT = "all of its output"
_STREAMS = ((1, "stdout"), (2, "stderr"))


_write = io.FileIO.write
#: A switch in a record: where a stream's file goes on, times two, and 1 for stderr.
SWITCH = struct.Struct("<q")


class Switches:
    """Notes where a stream of this process goes on after the other one, so that the lines of both
    can be read in order. `log` is the one that has written last."""

    def __init__(self) -> None:
        self.log: Log | None = None
        self._path = ""

    def keep(self, path: str) -> None:
        """Note them in this file, opened for each: programs close descriptors they do not know."""
        self.log, self._path = None, path

    def begin(self, log: Log) -> None:
        """It is about to write."""
        before, self.log = self.log, log
        if before is None or not self._path:
            return
        with contextlib.suppress(OSError):  # a full disk, or the record is gone: nothing is noted
            start = os.lseek(log.fileno(), 0, os.SEEK_END)
            file = private.writing(self._path, os.O_WRONLY | os.O_APPEND)
            with contextlib.closing(os.fdopen(file, "wb", 0)) as switches:
                switches.write(SWITCH.pack(start << 1 | (log.fileno() == 2)))


class Log(io.FileIO):
    """Descriptor `fd` for writing. `losses` tells what did not fit; None: nobody can be told."""

    def __init__(self, fd: int, name: str, switches: Switches) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = name
        self.losses: Losses | None = None
        self.switches = switches
        self._gap = b""  # to be written before anything else

    def write(self, data: Any) -> int:
        """Write all of it, but for what the disk has no space for."""
        if self.switches.log is not self:
            self.switches.begin(self)
        if self._gap:
            return self._write_rest(memoryview(data).cast("B"), 0)
        try:  # for every line that is printed, so as little of Python as can be
            written = _write(self, data)
        except OSError:
            written = 0  # the same again, which is told
        if written == len(data):
            return written
        return self._write_rest(memoryview(data).cast("B"), written or 0)

    def _write_rest(self, text: memoryview, written: int) -> int:
        try:
            while self._gap:
                self._gap = self._gap[os.write(self.fileno(), self._gap) :]
            rest = text[written:]
            while rest.nbytes:
                rest = rest[os.write(self.fileno(), rest) :]
        except OSError as problem:
            if not is_of_disk(problem):
                raise
            self._gap = self._gap or _GAP.format(problem.strerror).encode()
            if self.losses is not None:
                self.losses.note(_WHAT, problem)
        return text.nbytes


def install() -> None:
    """Let this process's stdout and stderr outlive a full disk; before any import binds them, as
    `xm.master_print` does in a default argument."""
    switches = Switches()
    for fd, name in _STREAMS:
        stream = _stream(fd, name, getattr(sys, name).write_through, switches)
        for held in (name, f"__{name}__"):
            setattr(sys, held, stream)


def _stream(fd: int, name: str, write_through: bool, switches: Switches) -> io.TextIOWrapper:
    log: Any = Log(fd, f"<{name}>", switches)
    return io.TextIOWrapper(
        log if write_through else io.BufferedWriter(log),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
        write_through=write_through,
    )


def flush() -> None:
    """Write out what Python still holds of this process's output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()


def mend() -> None:
    """Open again what the user's code has closed of stdout, stderr and stdin, as `exit()` does, for
    what comes after it."""
    if getattr(sys.stdin, "closed", True) is True:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 # it stays
    for fd, name in _STREAMS:
        own = f"__{name}__"
        before = getattr(sys, own)
        if before is None or before.closed:
            setattr(
                sys, own, _stream(fd, name, getattr(before, "write_through", False), Switches())
            )
        shown = getattr(sys, name, None)
        if shown is None or getattr(shown, "closed", False) is True:
            setattr(sys, name, getattr(sys, own))


def capture(record: Record, rank: int | None, tell: Callable[[str], None] | None = None) -> None:
    """Send this process's stdout and stderr, of Python and C code, to the logs of `rank`.

    None is the job. `tell` gets a sentence when something does not fit on the disk.
    """
    losses = None if tell is None else Losses(record.folder, tell)
    for fd, name in _STREAMS:
        held = getattr(sys, f"__{name}__")
        for stream in (held, getattr(sys, name)):
            with contextlib.suppress(Exception):  # the user's own, or its descriptor is closed
                stream.flush()
        log = getattr(held.buffer, "raw", held.buffer)
        if isinstance(log, Log):
            log.losses = losses
            log.switches.keep(record.switches(rank))
        file = _opened(record, rank, name.removeprefix("std"), losses)
        if file == fd:  # it was closed
            os.set_inheritable(fd, True)
            continue
        os.dup2(file, fd, inheritable=True)
        os.close(file)


def _opened(record: Record, rank: int | None, stream: str, losses: Losses | None) -> int:
    """A log, or where there is no space for one, or no folder, nothing's."""
    path = record.log(None, stream) if rank is None else record.of_rank(rank, stream)
    try:
        return private.writing(path, os.O_WRONLY | os.O_APPEND)
    except OSError as problem:
        if not is_of_disk(problem) and problem.errno != errno.ENOENT:  # somebody has removed it
            raise
        if losses is not None:
            losses.note(_WHAT, problem)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
