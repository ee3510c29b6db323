"""Fork ranks from their job and watch their processes; each death is reported with its status.

torch_xla starts its ranks through a process pool, which kills all others the moment one dies and
reports only "broken pool". Here a death is an event, and the other ranks keep their grace period.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, context

from xla_nb.memory import OutOfMemory
from xla_nb.messages.events import ProcessDied


@dataclass(frozen=True)
class Lifecycle:
    """The functions that a rank process runs: `enter(local_rank, processes)`, which ends it if that
    fails, then `main(rank)` for each of its ranks. `report` is called with each death."""

    enter: Callable[[int, int], None]
    main: Callable[[int], None]
    report: Callable[[ProcessDied], None]


class _RankProcess(context.ForkProcess):
    def run(self) -> None:
        atexit._clear = _original_clear
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False  # otherwise each rank would delete a folder that all ranks use
        try:
            super().run()
        finally:
            _shut_down()

    def start(self) -> None:
        atexit._clear = _keep  # Python 3.13 would drop the job's exit handlers in the rank
        try:
            super().start()
        finally:
            atexit._clear = _original_clear


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


def fork(
    count: int,
    run: Callable[[int], object],
    report: Callable[[ProcessDied], None],
    *,
    forked: Callable[[], None] = lambda: None,
    stay: bool = False,
) -> None:
    """Fork `count` processes, which call `run` with their number once all have begun, so that ranks
    start together; return when all have ended, each death having been reported. `forked` is called
    once all have been forked.

    stay: each stays until all have run, or died; otherwise the others see it leave when its
    connections close. Raises OSError if one cannot be started, and kills those already running,
    which would wait for it.
    """
    reader, writer = os.pipe()
    running = os.memfd_create("xla_nb-running", os.MFD_CLOEXEC)

    def work(number: int) -> None:
        # Such a lock is its process's alone (fcntl(2)): it ends with it, and no child inherits it.
        fcntl.lockf(running, fcntl.LOCK_SH)
        os.close(writer)
        os.read(reader, 1)  # end of file: all have begun
        os.close(reader)
        run(number)
        fcntl.lockf(running, fcntl.LOCK_UN)
        if stay:
            fcntl.lockf(running, fcntl.LOCK_EX)
            fcntl.lockf(running, fcntl.LOCK_UN)

    memory = OutOfMemory()
    processes = [_RankProcess(target=work, args=(number,)) for number in range(count)]
    alive: dict[int, _RankProcess] = {}  # by pidfd
    try:
        for process in processes:
            process.start()
            # Now: at its next start, multiprocessing reaps processes that have died.
            alive[os.pidfd_open(process.ident or 0)] = process
    except OSError:
        for process in processes:
            if process.ident is not None:
                process.kill()
                process.join()
        raise
    os.close(writer)
    forked()
    while alive:
        for fd in alive.keys() & connection.wait([*alive]):
            process = alive.pop(fd)
            os.close(fd)
            process.join()
            status = process.exitcode or 0
            lack = memory.limit(status)
            report(ProcessDied(pid=process.ident or 0, status=status, lack=lack))


def fork_ranks(count: int, life: Lifecycle, first: int = 0) -> None:
    """Fork `count` processes with one rank each, from `first` on, and wait until all have ended."""

    def run_rank(local_rank: int) -> None:
        life.enter(local_rank, count)
        life.main(first + local_rank)

    fork(count, run_rank, life.report)
