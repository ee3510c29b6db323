"""A rank: join the runtime, call the entry and report how it ended.

`enter` runs in each process that the runtime starts, and `main` for each rank of that process (a
thread per device where torch_xla starts several). Nothing the user's code raises gets past `main`:
a failure must be reported at once, not when all ranks have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import random
import reprlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from xla_nb.linux import die_with_parent, name_process
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.protocol import events, pickling, refusals
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import ARGUMENTS, Order
from xla_nb.rank import loader, reporting
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.meter import Meter
from xla_nb.record.files import Record, partial
from xla_nb.runtimes import Prepared, RankInfo
from xla_nb.runtimes.forking import Latch
from xla_nb.wording import in_one_line


@dataclass
class Inherited:
    """What a rank inherits from its job through the fork.

    `entries` are the threads that run the entry, by rank; `captured` are the ranks whose log this
    process's output goes to.
    """

    order: Order
    sender: Sender
    namespace: dict[str, Any]
    table: ModuleMap
    lock: SharedLock
    runtime: Prepared
    latch: Latch
    random: Any
    stopping: bool = False
    entries: dict[int, int] = field(default_factory=dict)
    captured: range = range(0)

    @property
    def record(self) -> Record:
        return Record(Path(self.order.request.record))

    @property
    def first(self) -> int:
        """The expected rank of this host's first process.

        On a TPU of several hosts torch_xla may number ranks differently; a rank knows its number
        once it has joined the runtime.
        """
        return self.order.host_group.index * self.runtime.ranks


#: Set once in the job before it forks the ranks. `xmp.spawn` pickles its arguments, but a lock or
#: a cell's function can only be inherited.
_inherited: list[Inherited] = []


def inherit(inherited: Inherited) -> None:
    """Set what ranks inherit; the job calls this before it forks."""
    _inherited[:] = [inherited]


def is_rank() -> bool:
    """Whether this process is a rank, or was forked by one."""
    return bool(_inherited)


# ---------------------------------------------------------------- the process


def enter(local_rank: int, processes: int) -> None:
    """Set up a new process of ranks, and join the runtime."""
    (job,) = _inherited
    die_with_parent()
    rank = job.first + local_rank
    job.captured = _captured(job, rank, processes)
    name_process(f"xla_nb-rank-{rank}")
    capture(job.record, rank)
    signal.signal(signal.SIGINT, functools.partial(_interrupt, job, os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    random.setstate(job.random)  # the one generator that Python reseeds in a forked process
    job.latch.arrive()
    _mend_thread_pool()
    try:
        job.runtime.join(local_rank, processes)
    except BaseException as error:
        job.sender.send(_failure(job, rank, error, job.runtime.consequence(error)))
        job.latch.wait()
        raise


def _captured(job: Inherited, rank: int, processes: int) -> range:
    """The ranks that log to the file of `rank`: several where a process has a thread per rank."""
    ranks = job.runtime.ranks
    return range(rank, rank + 1) if processes == ranks else range(job.first, job.first + ranks)


def _mend_thread_pool() -> None:
    """Make torch replace its thread pool while there is one thread.

    torch replaces it at the first use after a fork, without a lock. Autograd's threads, one per
    device, would race for it ("Invalid thread pool!", SIGABRT; 7 of 50 first backward passes of
    SPMD).
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(torch.get_num_threads())


def capture(record: Record, rank: int | None) -> None:
    """Send this process's stdout and stderr, of Python and C code, to the logs of `rank`.

    None is the job.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for fd, stream in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(record.log(rank, stream), flags, 0o600)
        os.dup2(log, fd, inheritable=True)
        os.close(log)


def _interrupt(job: Inherited, pid: int, _signal: int, _frame: FrameType | None) -> None:
    """Report where each entry is, then raise KeyboardInterrupt in its thread."""
    if os.getpid() != pid:  # a process that the user's code forked
        raise KeyboardInterrupt
    job.stopping = True
    for rank, thread in list(job.entries.items()):
        place, stack = tracebacks.locate(thread, job.table.sources)
        job.sender.send(events.RankAt(rank=rank, place=place, stack=stack))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
        )


# ---------------------------------------------------------------- the entry


def main(index: int) -> None:
    """Call the entry and write its result to the record; `xmp.spawn` runs this for each rank."""
    (job,) = _inherited
    job.entries[index] = threading.get_ident()
    job.lock.belongs_to(index)
    try:
        info = job.runtime.rank_info(index)
        if index not in job.captured:  # the runtime gave it another number
            capture(job.record, index)
        job.sender.send(
            events.RankStarted(
                rank=index,
                local_rank=info.local_rank,
                pid=os.getpid(),
                device=info.shown,
                devices=info.devices,
            )
        )
        with _measured(job, index):
            value = _call(job, index, info)
        _send_home(job, index, value)
        job.runtime.leave("returned")
    except BaseException as error:
        consequence = job.runtime.consequence(error)
        if job.stopping and (consequence or isinstance(error, KeyboardInterrupt)):
            job.sender.send(events.RankStopped(rank=index))
            job.runtime.leave("was stopped")
            return
        job.sender.send(_failure(job, index, error, consequence))
        job.runtime.leave(f"raised {type(error).__name__}")
    finally:
        del job.entries[index]
        sys.stdout.flush()
        sys.stderr.flush()
        job.latch.wait()


@contextlib.contextmanager
def _measured(job: Inherited, index: int) -> Iterator[None]:
    """Record reported figures, and run the meter, while the user's function runs."""

    def answer(place: str, stack: str) -> None:
        job.sender.send(events.RankAt(rank=index, place=place, stack=stack))

    book = reporting.begin(job.record.history(index))
    # Sample less often where many ranks share few cores.
    every = 1 + job.runtime.ranks // 64
    try:
        with Meter(
            book,
            job.record.sample(index),
            job.table.sources,
            job.runtime,
            job.record.stacks_request,
            answer,
            every,
            job.lock.waiting,
        ):
            yield
    finally:
        reporting.end()


def _call(job: Inherited, index: int, info: RankInfo) -> object:
    if job.table.body is not None:
        job.namespace.update(
            rank=index, world_size=info.world_size, device=info.device, lock=job.lock
        )
        return loader.run_body(job.table, job.namespace)
    assert job.order.request.entry is not None
    entry = job.namespace[job.order.request.entry]
    extra = {"lock": job.lock} if job.order.request.takes_lock else {}
    try:
        return entry(index, *job.namespace[ARGUMENTS], **extra)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise


def _send_home(job: Inherited, index: int, value: object) -> None:
    """Write the result to the record; a result is whole or absent."""
    path = job.record.result(index)
    scratch = partial(path)
    fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        nbytes = pickling.pack_home(value, job.order.request.by_name).write(fd)
    except Exception as problem:
        scratch.unlink()
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ResultError(
            f"Cannot send the result ({kind}) to the notebook: {problem}. "
            f"{refusals.advice_on_result(problem)}."
        ) from None
    finally:
        os.close(fd)
    scratch.rename(path)
    job.sender.send(events.RankFinished(rank=index, preview=preview(value), nbytes=nbytes))


class ResultError(Exception):
    """A rank's result that cannot be pickled."""


class _Preview(reprlib.Repr):
    """Short reprs, with arrays and tensors as shape and dtype rather than a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxstring = 60

    def repr1(self, x: Any, level: int) -> str:
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if dtype is not None and isinstance(shape, tuple) and len(shape) > 0:
            return f"{type(x).__name__} {tuple(shape)} {dtype}"
        return super().repr1(x, level)


def preview(value: object) -> str:
    """A result in at most 80 characters."""
    try:
        return in_one_line(_Preview().repr(value), 80)
    except Exception as problem:
        return f"<{type(value).__name__}: its repr() raised {type(problem).__name__}>"


def _failure(
    job: Inherited, rank: int, error: BaseException, consequence: BaseException | None
) -> events.RankFailed:
    failure = tracebacks.tell(consequence or error, job.table.sources)
    return events.RankFailed(
        rank=rank,
        kind=failure.kind,
        message=failure.message,
        text=failure.text,
        place=failure.place,
        where=failure.where,
        follows=consequence is not None,
    )
