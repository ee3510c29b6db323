"""A rank: it joins the runtime, calls the entry, and says how that went.

`enter` is called in each process that the runtime starts and `main` for each of its ranks (in a
thread for each device, where torch_xla calls it). The rule: nothing the user's code raises gets
past `main`, so one rank's failure is told at once and never waits for the others.
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
from xla_nb.protocol import events, pickling
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import ARGUMENTS, Order
from xla_nb.rank import loader, reporting
from xla_nb.rank.meter import Meter
from xla_nb.runtimes import Prepared, RankInfo
from xla_nb.runtimes.forking import Latch
from xla_nb.wording import in_one_line


@dataclass
class Inherited:
    """What a rank has from its job through the fork.

    `entries` are the threads that run the entry, by rank; `captured` the ranks for which this
    process's output lies where it belongs.
    """

    order: Order
    sender: Sender
    namespace: dict[str, Any]
    table: ModuleMap
    lock: Any
    runtime: Prepared
    latch: Latch
    random: Any
    stopping: bool = False
    entries: dict[int, int] = field(default_factory=dict)
    captured: range = range(0)

    @property
    def first(self) -> int:
        """The rank of this host's first process. On a TPU of several hosts torch_xla may number
        them otherwise; a rank knows better once it has joined."""
        return self.order.host_group.index * self.runtime.ranks


#: Set once in the job before it forks the ranks: `xmp.spawn` pickles what it is given, and a
#: lock or a function of a cell only travels by inheritance.
_inherited: list[Inherited] = []


def inherit(inherited: Inherited) -> None:
    """Called by the job, before it forks."""
    _inherited[:] = [inherited]


def is_rank() -> bool:
    """Whether this process is a rank, or was forked by one."""
    return bool(_inherited)


# ---------------------------------------------------------------- the process


def enter(local_rank: int, processes: int) -> None:
    """A new process: the rank's own set-up, then it joins the runtime."""
    (job,) = _inherited
    die_with_parent()
    rank = job.first + local_rank
    job.captured = _captured(job, rank, processes)
    name_process(f"xla_nb-rank-{rank}")
    capture(Path(job.order.record), f"rank-{rank}")
    signal.signal(signal.SIGINT, functools.partial(_interrupt, job, os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    random.setstate(job.random)  # Python seeds it anew in a forked process, and it alone
    job.latch.arrive()
    _mend_thread_pool()
    try:
        job.runtime.join(local_rank, processes)
    except BaseException as error:
        job.sender.send(_failure(job, rank, error, job.runtime.consequence(error)))
        job.latch.wait()
        raise


def _captured(job: Inherited, rank: int, processes: int) -> range:
    """The ranks that a process may be whose output is that of `rank`: where it has several
    threads with a rank each, they share it."""
    ranks = job.runtime.ranks
    return range(rank, rank + 1) if processes == ranks else range(job.first, job.first + ranks)


def _mend_thread_pool() -> None:
    """torch replaces its pool at the first use after a fork, and without a lock: the threads that
    autograd starts, one a device, would race for it ("Invalid thread pool!", SIGABRT; 7 of 50
    first backward passes of SPMD). Here one thread does it."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(torch.get_num_threads())


def capture(record: Path, stem: str) -> None:
    """Make the record's files this process's stdout and stderr, for Python and C alike."""
    sys.stdout.flush()
    sys.stderr.flush()
    for fd, suffix in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(record / f"{stem}.{suffix}", flags, 0o600)
        os.dup2(log, fd, inheritable=True)
        os.close(log)


def _interrupt(job: Inherited, pid: int, _signal: int, _frame: FrameType | None) -> None:
    """Stop: say where each entry is, then raise KeyboardInterrupt in its thread."""
    if os.getpid() != pid:  # a helper that the user's code forked
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
    """What `xmp.spawn` runs: the entry with its arguments, its value into the record."""
    (job,) = _inherited
    job.entries[index] = threading.get_ident()
    try:
        place = job.runtime.rank_info(index)
        if index not in job.captured:  # the runtime has numbered it otherwise
            capture(Path(job.order.record), f"rank-{index}")
        job.sender.send(
            events.RankStarted(
                rank=index,
                local_rank=place.local_rank,
                pid=os.getpid(),
                device=place.shown,
                devices=place.devices,
            )
        )
        with _measured(job, index):
            value = _call(job, index, place)
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
    """While the user's function runs: what it reports is written down, and a meter looks on."""

    def answer(place: str, stack: str) -> None:
        job.sender.send(events.RankAt(rank=index, place=place, stack=stack))

    record = Path(job.order.record)
    book = reporting.begin(record / f"rank-{index}.history")
    # Many ranks on few cores are looked at less often.
    every = 1 + job.runtime.ranks // 64
    try:
        with Meter(
            book,
            record / f"rank-{index}.now",
            job.table.sources,
            job.runtime,
            record / "stacks",
            answer,
            every,
        ):
            yield
    finally:
        reporting.end()


def _call(job: Inherited, index: int, place: RankInfo) -> object:
    if job.table.body is not None:
        job.namespace.update(
            rank=index, world_size=place.world_size, device=place.device, lock=job.lock
        )
        return loader.run_body(job.table, job.namespace)
    assert job.order.entry is not None
    entry = job.namespace[job.order.entry]
    extra = {"lock": job.lock} if job.order.takes_lock else {}
    try:
        return entry(index, *job.namespace[ARGUMENTS], **extra)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return None
        raise


def _send_home(job: Inherited, index: int, value: object) -> None:
    """Write the result under a temporary name, then rename: a result is whole or absent."""
    path = Path(job.order.record) / f"rank-{index}.result"
    scratch = path.with_suffix(".partial")
    fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        nbytes = pickling.send_home(fd, value, job.order.by_name)
    except Exception as problem:
        scratch.unlink()
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        usual = "return what it holds as numbers, arrays or CPU tensors instead"
        advice = getattr(problem, "advice", usual)
        raise ResultError(
            f"what the rank returned ({kind}) cannot be sent back: {problem}. What to do: {advice}."
        ) from None
    finally:
        os.close(fd)
    scratch.rename(path)
    job.sender.send(events.RankFinished(rank=index, preview=preview(value), nbytes=nbytes))


class ResultError(Exception):
    """A rank's result that cannot be pickled."""


class _Preview(reprlib.Repr):
    """Short, and arrays and tensors by shape and type: their numbers say little in one line."""

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
    told = tracebacks.tell(consequence or error, job.table.sources)
    return events.RankFailed(
        rank=rank,
        kind=told.kind,
        message=told.message,
        text=told.text,
        place=told.place,
        where=told.where,
        follows=consequence is not None,
    )
