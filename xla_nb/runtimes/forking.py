"""Fork ranks from their job and watch their processes; each death is reported with its status.

torch_xla starts its ranks through a process pool, which kills all others the moment one dies and
reports only "broken pool". Here a death is an event, and the other ranks keep their grace period.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import context, queues
from typing import Any

from xla_nb.memory import OutOfMemory
from xla_nb.messages.events import ProcessDied


class Latch:
    """Opens when every process forked with it has arrived or died.

    torch_xla's pool hands an idle worker the next waiting task, so a rank that returned before the
    last process had begun would run that process's rank as well.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def arrive(self) -> None:
        """Called once in each process, including the one that created the latch."""
        os.close(self._writer)

    def wait(self) -> None:
        os.read(self._reader, 1)  # end of file when no process holds the writing end


@dataclass(frozen=True)
class Lifecycle:
    """The functions that a rank process runs: `enter(local_rank, processes)`, then `main(rank)` for
    each of its ranks. `latch` opens when all have entered; `report` is called with each death."""

    enter: Callable[[int, int], None]
    main: Callable[[int], None]
    latch: Latch
    report: Callable[[ProcessDied], None]


class RankContext(context.ForkContext):
    """A fork context that watches its processes once `count` of them are running."""

    def __init__(self, count: int, life: Lifecycle) -> None:
        super().__init__()
        self._count = count
        self._life = life
        self._started: dict[int, Any] = {}  # by pidfd
        self._memory = OutOfMemory()
        self._watcher = threading.Thread(target=self._watch, name="xla_nb-watch", daemon=True)

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return _RankProcess(self, *args, **kwargs)

    def started(self, process: Any) -> None:
        """Called after each fork; the watching thread starts after the last one."""
        # Now: at its next start, multiprocessing reaps processes that have died.
        self._started[os.pidfd_open(process.pid)] = process
        if len(self._started) == self._count:
            self._life.latch.arrive()
            self._watcher.start()

    def give_up(self) -> None:
        """Kill the processes that are already running: another could not be started, and they would
        wait for it."""
        for fd, process in self._started.items():
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            os.close(fd)
        self._started.clear()

    def finish(self) -> None:
        """Wait until every death has been reported; call after the pool has shut down."""
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
        # Another thread may have reaped it and not yet stored its status.
        deadline = time.monotonic() + 1
        while (status := process.exitcode) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if status is not None:
            lack = self._memory.limit(status)
            self._life.report(ProcessDied(pid=process.pid, status=status, lack=lack))


class _RankProcess(context.ForkProcess):
    def __init__(self, ranks: RankContext, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ranks = ranks
        argument, *_ = kwargs.get("args") or [None]
        self._queue: Any = argument if isinstance(argument, queues.Queue) else None  # in a pool

    def run(self) -> None:
        atexit._clear = _original_clear
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False  # otherwise each rank would delete a folder that all ranks use
        try:
            super().run()
        finally:
            _shut_down()

    def start(self) -> None:
        try:
            atexit._clear = _keep  # Python 3.13 would drop the job's exit handlers in the rank
            try:
                super().start()
            finally:
                atexit._clear = _original_clear
            self._ranks.started(self)
        except OSError:
            if self.pid is not None:
                self.kill()
            self._ranks.give_up()
            raise

    def terminate(self) -> None:
        """Ask a pool's process to end after its rank. From Python 3.13 on, a broken pool would
        otherwise terminate healthy ranks before they can report where they are."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue._sem.acquire(block=False)  # the process releases it, as for any item
            queue._writer.send(None)


_original_clear = atexit._clear


def _keep() -> None:
    """Replace `atexit._clear`, to keep the exit handlers."""


def forget_exit_handlers() -> None:
    """Drop the exit handlers of this process's imports: in its ranks they would delete resources
    that other processes use. The job calls this before any user code runs."""
    atexit._clear()
    atexit.register(logging.shutdown)  # flushes the user's buffering handlers
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def _shut_down() -> None:
    """Let pools end their idle workers, wait for threads, and call the `atexit` handlers.

    multiprocessing, which ends this process afterwards, uses another order and skips `atexit`: it
    would wait for workers of pools that were never told to end.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
        threading._threading_atexits.clear()  # type: ignore[attr-defined]  # or it raises again
    atexit._run_exitfuncs()


def fork_ranks(count: int, life: Lifecycle, first: int = 0) -> None:
    """Fork `count` processes with one rank each, from `first` on, and wait until all have ended.

    A process ends with its rank, so the others see a rank leave when its connections close.
    torch_xla's pool keeps each process until the last rank is done.
    """
    ranks = RankContext(count, life)

    def run_rank(local_rank: int) -> None:
        try:
            life.enter(local_rank, count)
        except BaseException:  # already reported by `enter`
            sys.exit(1)
        life.main(first + local_rank)

    processes = [ranks.Process(target=run_rank, args=(index,)) for index in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    ranks.finish()
