"""The `lock` that the ranks of a host share: multiprocessing's, which also knows who holds it.

A process that ends with the lock leaves it locked for ever. A rank that lives on gives it back
after each program, and its job does where it has died. The meter of a rank that waits reads here
for whom, so that this can be told.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import threading
from multiprocessing import synchronize
from typing import Any

from xla_nb.record.sample import LOCK
from xla_nb.stopwatch import Stopwatch, Wait

_NONE = Stopwatch()  # of a thread that has not waited


class SharedLock(synchronize.Lock):
    """A Lock of multiprocessing's fork context, made in the job before it forks the ranks."""

    _semlock: Any  # multiprocessing's

    def __init__(self) -> None:
        super().__init__(ctx=multiprocessing.get_context("fork"))
        # Numbers that the forked processes share: the holder's rank plus 1, 0 if not known, and
        # its process.
        self._holder = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("i")
        self._ranks: dict[int, int] = {}  # by thread
        self._pid = 0
        self._waits: dict[int, Stopwatch] = {}  # by thread
        self.taken = 0  # times that this process has got it

    def _make_methods(self) -> None:
        """Nothing: multiprocessing would put the semaphore's own methods in place of these."""

    def belongs_to(self, rank: int) -> None:
        """Called by the thread that runs a rank, before it runs the user's function."""
        self._pid = os.getpid()
        self._ranks[threading.get_ident()] = rank

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        taken: bool = self._semlock.acquire(False, timeout)
        if not taken and block:
            watch = self._waits.setdefault(threading.get_ident(), Stopwatch())
            try:
                watch.start()
                taken = self._semlock.acquire(True, timeout)
            finally:
                watch.stop()
        if taken:
            self._holder[1], self._holder[0] = os.getpid(), self._own_number()
            self.taken += 1
        return taken

    def release(self) -> None:
        self._holder[0] = 0  # before the next one may have it
        self._semlock.release()

    def let_go(self) -> bool:
        """Give it back if this rank has it still, after its program; whether it had."""
        # The semaphore's own count: an interrupt may have come before the holder's number.
        if not self._semlock._count() or self._holder[0] not in (0, self._own_number()):
            return False
        try:
            self.release()
        except ValueError:  # another process has done so
            return False
        return True

    def free_from(self, pid: int) -> int | None:
        """In the job: give it back for a process that has died with it; the rank that had it."""
        holder = self._holder[0] - 1
        if holder < 0 or self._holder[1] != pid:
            return None
        self.release()
        return holder

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def waiting(self, thread: int) -> Wait | None:
        """The wait of a thread of this process, if it is in one; safe in any thread."""
        since = self._waits.get(thread, _NONE).since
        if since is None:
            return None
        holder = self._holder[0] - 1
        return Wait(LOCK, since, (holder,) if holder >= 0 else ())

    def waited(self, thread: int) -> float:
        """Seconds that a thread of this process has waited so far; safe in any thread."""
        return self._waits.get(thread, _NONE).seconds

    def _own_number(self) -> int:
        """The rank of the calling thread plus 1; 0 in a process that a rank started."""
        if os.getpid() != self._pid or not self._ranks:
            return 0
        first = next(iter(self._ranks.values()))
        return self._ranks.get(threading.get_ident(), first) + 1
