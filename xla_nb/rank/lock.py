"""The `lock` that the ranks of a host share: a multiprocessing Lock that records its holder.

A process that ends while holding the lock leaves it locked forever. A live rank releases it after
each program, and the job releases it for a rank that has died. The meter of a waiting rank reads
the holder here, so that it can be reported.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import threading
from multiprocessing import synchronize
from typing import Any

from xla_nb.rank.threads import OfRank
from xla_nb.record.sample import LOCK
from xla_nb.stopwatch import Stopwatch, Wait

_NO_WAIT = Stopwatch()  # for a thread that has not waited


class SharedLock(synchronize.Lock):
    """A Lock of multiprocessing's fork context, created in the job before it forks the ranks."""

    _semlock: Any  # multiprocessing's

    def __init__(self) -> None:
        super().__init__(ctx=multiprocessing.get_context("fork"))
        # Numbers shared with forked processes: the holder's rank plus 1 (0 if unknown), and its
        # process ID.
        self._holder = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("i")
        self._ranks: OfRank[int] = OfRank()
        self._pid = 0
        self._waits: dict[int, Stopwatch] = {}  # by thread
        self.taken = 0  # number of acquisitions in this process

    def _make_methods(self) -> None:
        """Do nothing: multiprocessing would replace these methods with the semaphore's."""

    def belongs_to(self, rank: int) -> None:
        """Called by the thread that runs a rank, before it runs the user's function."""
        self._pid = os.getpid()
        self._ranks.begin(rank)

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
            self._holder[1], self._holder[0] = os.getpid(), self._caller_number()
            self.taken += 1
        return taken

    def release(self) -> None:
        self._holder[0] = 0  # before another process may acquire it
        self._semlock.release()

    def let_go(self) -> bool:
        """Release it if this rank still holds it after its program; returns whether it did."""
        # By the semaphore's count: an interrupt may have prevented setting the holder.
        if not self._semlock._count() or self._holder[0] not in (0, self._caller_number()):
            return False
        try:
            self.release()
        except ValueError:  # another process has released it
            return False
        return True

    def free_from(self, pid: int) -> int | None:
        """In the job: release it if the dead process held it. Returns the rank that did."""
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
        """The wait that a thread of this process is in, or None; safe in any thread."""
        since = self._waits.get(thread, _NO_WAIT).since
        if since is None:
            return None
        holder = self._holder[0] - 1
        return Wait(LOCK, since, (holder,) if holder >= 0 else ())

    def waited(self, thread: int) -> float:
        """Seconds that a thread of this process has waited so far; safe in any thread."""
        return self._waits.get(thread, _NO_WAIT).seconds

    def _caller_number(self) -> int:
        """The rank of the calling thread plus 1; 0 in a process that a rank started."""
        rank = self._ranks.here()
        return 0 if rank is None or os.getpid() != self._pid else rank + 1
