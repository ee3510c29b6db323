"""A process's stdout and stderr as logs of a record, on a disk that may be full.

`print` must not end a training of many hours. Writes of Python code to `sys.stdout` and
`sys.stderr` never fail for lack of space; direct writes to descriptors 1 and 2 get the system's
error: `printf` in C code continues, `os.write(1, …)` raises OSError.
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
from typing import Any, ClassVar

from xla_nb.record import private
from xla_nb.record.files import Losses, Record, is_of_disk

_GAP_TEXT = "\n… output is missing here: {} …\n"
_OUTPUT = "all of its output"
_STREAMS = ((1, "stdout"), (2, "stderr"))


_write = io.FileIO.write
#: A switch between the streams in a record: the bytes of stdout and of stderr until then.
SWITCH = struct.Struct("<qq")


class Log(io.FileIO):
    """Descriptor `fd` for writing. `losses` reports lost data, once there is a record.

    newest    the log of this process that wrote last
    switches  the file that notes how far both logs are when one continues after the other, so that
              their lines can be read in order; opened for each switch, because programs close
              unknown descriptors
    """

    newest: ClassVar[Log | None] = None
    switches: ClassVar[str] = ""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = name
        self.losses: Losses | None = None
        self._gap = b""  # to write before anything else

    def write(self, data: Any) -> int:
        """Write all of `data`, except what the disk has no space for."""
        if Log.newest is not self:
            self._switch()
        if self._gap:
            return self._write_rest(memoryview(data).cast("B"), 0)
        try:  # runs for every printed line: as little Python as possible
            written = _write(self, data)
        except OSError:
            written = 0  # `_write_rest` fails again, and reports it
        if written == len(data):
            return written
        return self._write_rest(memoryview(data).cast("B"), written or 0)

    def _switch(self) -> None:
        """Note that this one is about to write."""
        previous, Log.newest = Log.newest, self
        if previous is None or not Log.switches:
            return
        with contextlib.suppress(OSError):  # full disk, or the record is gone: note nothing
            sizes = [os.lseek(fd, 0, os.SEEK_END) for fd, _ in _STREAMS]
            file = private.writing(Log.switches, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(file, "wb", 0) as switches:
                switches.write(SWITCH.pack(*sizes))

    def _write_rest(self, text: memoryview, written: int) -> int:
        try:
            while self._gap:
                self._gap = self._gap[os.write(self.fileno(), self._gap) :]
            remaining = text[written:]
            while remaining.nbytes:
                remaining = remaining[os.write(self.fileno(), remaining) :]
        except OSError as problem:
            if not is_of_disk(problem):
                raise
            self._gap = self._gap or _GAP_TEXT.format(problem.strerror).encode()
            if self.losses is not None:
                self.losses.note(_OUTPUT, problem)
        return text.nbytes


def install() -> None:
    """Make this process's stdout and stderr survive a full disk. Call it before any import binds
    them, as `xm.master_print` does in a default argument."""
    for fd, name in _STREAMS:
        stream = _stream(fd, name, getattr(sys, name).write_through)
        for attribute in (name, f"__{name}__"):
            setattr(sys, attribute, stream)


def _stream(fd: int, name: str, write_through: bool) -> io.TextIOWrapper:
    log: Any = Log(fd, f"<{name}>")
    return io.TextIOWrapper(
        log if write_through else io.BufferedWriter(log),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
        write_through=write_through,
    )


def flush() -> None:
    """Write out the buffered output of this process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()


def mend() -> None:
    """Reopen stdout, stderr and stdin if user code has closed them, as `exit()` does, for the code
    that runs afterwards."""
    if getattr(sys.stdin, "closed", True) is True:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 # stays open
    for fd, name in _STREAMS:
        attribute = f"__{name}__"
        old = getattr(sys, attribute)
        if old is None or old.closed:
            setattr(sys, attribute, _stream(fd, name, getattr(old, "write_through", False)))
        current = getattr(sys, name, None)
        if current is None or getattr(current, "closed", False) is True:
            setattr(sys, name, getattr(sys, attribute))


def capture(record: Record, rank: int | None, report: Callable[[str], None]) -> None:
    """Send this process's stdout and stderr, of Python and C code, to the logs of `rank`.

    None is the job. `report` is called with a sentence when data does not fit on the disk.
    """
    losses = Losses(record.folder, report)
    for fd, name in _STREAMS:
        original = getattr(sys, f"__{name}__")
        for stream in (original, getattr(sys, name)):
            with contextlib.suppress(Exception):  # a user's object, or a closed descriptor
                stream.flush()
        log = getattr(original.buffer, "raw", original.buffer)
        if isinstance(log, Log):
            log.losses = losses
        file = _open_log(record, rank, name.removeprefix("std"), losses)
        if file == fd:  # it was closed
            os.set_inheritable(fd, True)
            continue
        os.dup2(file, fd, inheritable=True)
        os.close(file)
    Log.newest, Log.switches = None, record.of_rank(rank, "switches")


def _open_log(record: Record, rank: int | None, stream: str, losses: Losses) -> int:
    """Open a log, or /dev/null if there is no space for it or no folder."""
    try:
        return private.writing(record.of_rank(rank, stream), os.O_WRONLY | os.O_APPEND)
    except OSError as problem:
        if not is_of_disk(problem) and problem.errno != errno.ENOENT:  # its folder was removed
            raise
        losses.note(_OUTPUT, problem)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
