"""Gloo's connections of this process, and how a collective that waits in them is broken off.

Gloo knows no interrupt: while a rank waits there, its Python gets none either. But it raises when a
connection is shut down. That is for good, as JAX keeps the group of ranks that the connections are
of; what the rank holds is not touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_FDS, _FD_INFO = Path("/proc/self/fd"), Path("/proc/self/fdinfo")
_TAKEN = b"\0"  # written beside the numbers of signals, of which none is 0
_PATIENCE = 1.0  # seconds that Python has to take an interrupt
_BUSY = 0.2  # of a CPU, from which on the process computes, and does not wait


class Connections:
    """Those of one process. `is_cut` once collectives over them were broken off."""

    def __init__(self) -> None:
        self._pollers: set[int] = set()
        self.is_cut = False

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Gloo's device is made meanwhile, and what it polls its connections with."""
        before = _pollers()
        yield
        self._pollers = _pollers() - before

    def cut(self) -> None:
        """Shut all down: here and at their other ends collectives raise, now and later."""
        for poller in self._pollers:
            for fd, inode in _polled(poller):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
                    if os.fstat(sock.fileno()).st_ino == inode and sock.getpeername():
                        sock.shutdown(socket.SHUT_RDWR)
                        self.is_cut = True


def _pollers() -> set[int]:
    found = set()
    for path in list(_FDS.iterdir()):
        with contextlib.suppress(OSError):
            if str(path.readlink()) == "anon_inode:[eventpoll]":
                found.add(int(path.name))
    return found


def _polled(poller: int) -> list[tuple[int, int]]:
    """Each descriptor that a poller has, with its inode: `tfd: 21 events: … ino:5f0c sdev:8`."""
    with contextlib.suppress(OSError):
        lines = (_FD_INFO / str(poller)).read_text().splitlines()
        words = [line.split() for line in lines if line.startswith("tfd:")]
        inodes = [next(word for word in each if word.startswith("ino:")) for each in words]
        return [(int(w[1]), int(i[4:], 16)) for w, i in zip(words, inodes, strict=True)]
    return []


def cut_when_interrupted(connections: Connections) -> None:
    """From now on, break collectives off where an interrupt cannot reach Python.

    Call it in the main thread, once SIGINT has its handler."""
    pid, handler = os.getpid(), signal.getsignal(signal.SIGINT)
    if not callable(handler):
        return  # the process ignores interrupts
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    took: Callable[[int, FrameType | None], Any] = handler

    def take(number: int, frame: FrameType | None) -> None:
        if os.getpid() == pid:
            with contextlib.suppress(BlockingIOError):
                os.write(writer, _TAKEN)
        took(number, frame)

    def watch() -> None:
        while True:
            has_come = signal.SIGINT in os.read(reader, 1)
            # With a handler of the cell's own, nothing tells whether it was taken.
            if has_come and _is_stuck(reader) and signal.getsignal(signal.SIGINT) is take:
                connections.cut()

    signal.signal(signal.SIGINT, take)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_wake_nobody)
    threading.Thread(target=watch, name="xla_nb-interrupts", daemon=True).start()


def _wake_nobody() -> None:
    """Signals of a process that the rank has forked are not the rank's."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def _is_stuck(reader: int) -> bool:
    """Whether Python has not taken an interrupt, and the process does nothing."""
    while True:
        before, deadline = time.process_time(), time.monotonic() + _PATIENCE
        while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if os.read(reader, 1) == _TAKEN:
                return False
        if time.process_time() - before < _BUSY * _PATIENCE:
            return True
