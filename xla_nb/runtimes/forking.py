"""Ranks as processes: forked from their job, watched, each death told with its status.

torch_xla starts its ranks through a process pool, which ends every other process the moment one
dies and says only "broken pool". Here a death is an event, and when the others end is not the
pool's to decide: they have the grace period.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import context
from typing import Any

from xla_nb.protocol.events import ProcessDied


class Latch:
    """Open when every process that was forked with it has arrived, or died.

    torch_xla's pool hands a worker that is done the next task that waits: a rank that returned
    before the last process had begun would be given that one's place as well.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def arrive(self) -> None:
        """Called once in each process, the one that made the latch included."""
        os.close(self._writer)

    def wait(self) -> None:
        os.read(self._reader, 1)  # the end of the file: nobody holds the writing end any more


class RankContext(context.ForkContext):
    """A fork context that starts a watch over its processes when `count` of them run."""

    def __init__(self, count: int, latch: Latch, tell: Callable[[ProcessDied], None]) -> None:
        super().__init__()
        self._count = count
        self._latch = latch
        self._tell = tell
        self._started: dict[int, Any] = {}  # by pidfd
        self._watcher = threading.Thread(target=self._watch, name="xla_nb-watch", daemon=True)

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return _RankProcess(self, *args, **kwargs)

    def started(self, process: Any) -> None:
        """Called after each fork; the watch's thread begins after the last one."""
        # At once: multiprocessing waits for what has died, and forgets it, at the next start.
        self._started[os.pidfd_open(process.pid)] = process
        if len(self._started) == self._count:
            self._latch.arrive()
            self._watcher.start()

    def tell_the_rest(self) -> None:
        """Wait until every death has been told; for when the pool is done with its processes."""
        if self._watcher.ident is not None:
            self._watcher.join()

    def _watch(self) -> None:
        poll = select.poll()
        alive = self._started
        for fd in alive:
            poll.register(fd, select.POLLIN)
        while alive:
            for fd, _ in poll.poll():
                poll.unregister(fd)
                os.close(fd)
                self._died(alive.pop(fd))

    def _died(self, process: Any) -> None:
        status = _status(process)
        if status is not None:
            self._tell(ProcessDied(pid=process.pid, status=status))


class _RankProcess(context.ForkProcess):
    def __init__(self, ranks: RankContext, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ranks = ranks

    def start(self) -> None:
        super().start()
        self._ranks.started(self)

    def terminate(self) -> None:
        """Nothing: the pool would end healthy ranks before they could say where they are."""


def _status(process: Any) -> int | None:
    """The exit status of a process that has ended, whoever gets to reap it first."""
    try:
        seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return _reaped(process)
    if seen is None:
        return None
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def _reaped(process: Any) -> int | None:
    """The status as multiprocessing has it: another thread of ours has just waited for it, and
    is about to write it down."""
    deadline = time.monotonic() + 1
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    status: int | None = process.exitcode
    return status


@dataclass(frozen=True)
class Lifecycle:
    """How a process of the ranks lives: `enter(local_rank, processes)`, then `main(rank)` for each
    of its ranks. `latch` opens when all have entered, `tell` is told of each death."""

    enter: Callable[[int, int], None]
    main: Callable[[int], None]
    latch: Latch
    tell: Callable[[ProcessDied], None]


def fork_ranks(count: int, life: Lifecycle, first: int = 0) -> None:
    """Fork `count` processes with one rank each, from `first` on, and wait until all have ended.

    Unlike torch_xla's pool, which keeps a rank's process until the last rank is done: to others a
    rank is gone when its process is, which closes its connections.
    """
    watched = RankContext(count, life.latch, life.tell)

    def be_a_rank(local_rank: int) -> None:
        try:
            life.enter(local_rank, count)
        except BaseException:  # which `enter` has told
            sys.exit(1)
        life.main(first + local_rank)

    started = [watched.Process(target=be_a_rank, args=(one,)) for one in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    watched.tell_the_rest()
