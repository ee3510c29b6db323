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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from xla_nb.linux import die_with_parent, name_process
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.protocol import events, hostile, refusals, results
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import ARGUMENTS, Order
from xla_nb.rank import advice, asking, displays, leftovers, loader, reporting
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.meter import Meter
from xla_nb.record import private
from xla_nb.record.files import Record, partial
from xla_nb.record.full_disk import Losses
from xla_nb.record.output import capture
from xla_nb.runtimes import Prepared, RankInfo
from xla_nb.runtimes.forking import Latch
from xla_nb.simulation.agreement import CollectiveMismatch
from xla_nb.wording import in_one_line

T = TypeVar("T")


@dataclass
class Inherited:
    """What a rank inherits from its job through the fork.

    `entries` are the threads that run the entry, by rank; `returned` the ranks whose entry has
    returned; `captured` those whose log this process's output goes to.
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
    returned: set[int] = field(default_factory=set)
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
    capture(job.record, rank, functools.partial(_tell, job, rank))
    signal.signal(signal.SIGINT, functools.partial(_interrupt, job, os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    random.setstate(job.random)  # the one generator that Python reseeds in a forked process
    job.latch.arrive()
    _mend_thread_pool()
    try:
        job.runtime.join(local_rank, processes)
    except BaseException as error:
        job.sender.send(_failure(job, rank, error, _consequence(job, error)))
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


def _tell(job: Inherited, rank: int, text: str) -> None:
    job.sender.send(events.Notice(text=text, rank=rank))


def _interrupt(job: Inherited, pid: int, _signal: int, frame: FrameType | None) -> None:
    """Report where each entry is, then raise KeyboardInterrupt there.

    In the main thread it ends what waits for the system too (`time.sleep`, `queue.get`). A process
    with several devices has its entries in other threads, where it is raised at the next line of
    Python: there is no way to end such a wait from outside.
    """
    if os.getpid() != pid:  # a process that the user's code forked
        raise KeyboardInterrupt
    job.stopping = True
    here = threading.get_ident()  # handlers run in the main thread
    for rank, thread in list(job.entries.items()):
        if thread == here and frame is not None:
            place, stack = tracebacks.locate_frame(frame, job.table.sources)
        else:
            place, stack = tracebacks.locate(thread, job.table.sources)
        job.sender.send(events.RankAt(rank=rank, place=place, stack=stack))
        if thread != here:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
            )
    if here in job.entries.values():
        raise KeyboardInterrupt


# ---------------------------------------------------------------- the entry


def main(index: int) -> None:
    """Call the entry and write its result to the record; `xmp.spawn` runs this for each rank."""
    (job,) = _inherited
    job.entries[index] = threading.get_ident()
    job.lock.belongs_to(index)
    try:
        info = job.runtime.rank_info(index)
        if index not in job.captured:  # the runtime gave it another number
            capture(job.record, index, functools.partial(_tell, job, index))
        job.sender.send(
            events.RankStarted(
                rank=index,
                local_rank=info.local_rank,
                pid=os.getpid(),
                device=info.shown,
                devices=info.devices,
            )
        )
        value, nbytes = _measured(job, index, lambda: _called(job, index, info))
        job.runtime.leave("returned")
        # At last: a repr may hang, or end the process.
        job.sender.send(events.RankFinished(rank=index, preview=preview(value), nbytes=nbytes))
    except BaseException as error:
        consequence = _consequence(job, error)
        if job.stopping and (consequence or issubclass(type(error), KeyboardInterrupt)):
            job.sender.send(events.RankStopped(rank=index))
            job.runtime.leave("was stopped")
            return
        job.sender.send(_failure(job, index, error, consequence))
        job.runtime.leave(f"raised {hostile.name_of(type(error))}")
        if consequence is None:
            _keep(job, index, error)
    finally:
        del job.entries[index]
        _flush()
        job.latch.wait()


def _called(job: Inherited, index: int, info: RankInfo) -> tuple[object, int]:
    """What the entry returns, and the size of its result in bytes, which has been sent home."""
    if job.stopping:  # while this thread of several was not there yet
        raise KeyboardInterrupt
    try:
        value = _in_this_process(lambda: _call(job, index, info))
    except Exception:
        leftovers.display(None)
        raise
    leftovers.display(value)
    job.returned.add(index)
    return value, _send_home(job, index, value)


def _in_this_process(call: Callable[[], object]) -> object:
    """What `call` returns or raises, but not in a process that the user's code has forked in it:
    that is no rank, and ends as it would in a script."""
    pid = os.getpid()
    error: BaseException | None = None
    try:
        return call()
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != pid:
            _end(error)


def _end(error: BaseException | None) -> NoReturn:
    """End this process, which `error` has left, if not None."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    _flush()
    os._exit(status & 0xFF)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()


def _measured(job: Inherited, index: int, call: Callable[[], T]) -> T:
    """Record reported figures and displays, and run the meter, while the user's function runs and
    its result is sent.

    No context manager of contextlib's: it assigns the `__traceback__` of the user's exceptions."""

    def answer(place: str, stack: str) -> None:
        job.sender.send(events.RankAt(rank=index, place=place, stack=stack))

    losses = Losses(job.record.path, functools.partial(_tell, job, index))
    book = reporting.begin(job.record.history(index), losses, job.runtime.executed)
    displays.screens.begin(displays.Screen(job.record, index, losses))
    asker = asking.askers.begin(asking.Asker(index, job.sender, job.order.request.why_mute))
    # Sample less often where many ranks share few cores.
    every = 1 + job.runtime.ranks // 64
    try:
        with Meter(
            book,
            job.record.sample(index),
            job.table.sources,
            asking.WithQuestions(job.runtime, asker),
            job.record.stacks_request,
            answer,
            every,
            losses,
            job.lock,
            lambda: index in job.returned,
        ):
            return call()
    finally:
        asking.askers.end()
        displays.screens.end()
        reporting.end()


def _call(job: Inherited, index: int, info: RankInfo) -> object:
    try:
        return _run(job, index, info)
    except SystemExit as end:
        if end.code is None or (type(end.code) in (int, bool) and end.code == 0):
            return None
        raise


def _run(job: Inherited, index: int, info: RankInfo) -> object:
    if job.table.body is not None:
        job.namespace.update(
            rank=index, world_size=info.world_size, device=info.device, lock=job.lock
        )
        return loader.run_body(job.table, job.namespace)
    assert job.order.request.entry is not None
    entry = job.namespace[job.order.request.entry]
    extra = {"lock": job.lock} if job.order.request.takes_lock else {}
    return entry(index, *job.namespace[ARGUMENTS], **extra)


def _send_home(job: Inherited, index: int, value: object) -> int:
    """Write the result to the record; a result is whole or absent. Returns its size in bytes."""

    def tell(what: str) -> None:
        job.sender.send(events.Notice(text=f"The result of rank {index} {what}."))

    try:
        nbytes = _write(job, job.record.result(index), value, tell)
    except BaseException as problem:
        if issubclass(type(problem), KeyboardInterrupt):
            raise
        what = f"({refusals.described(value)}) to the notebook: {refusals.fault_in_words(problem)}"
        advice = refusals.advice_on_result(problem)
        if not job.order.request.drops or issubclass(type(problem), OSError):
            raise ResultError(f"Cannot send the result {what}. {advice}.") from None
        nbytes = _write(job, job.record.result(index), None, tell)
        text = f"Cannot send a result {what}. There is None in its place. {advice}."
        job.sender.send(events.Notice(text=text))
    job.sender.send(events.RankFinished(rank=index, preview="", nbytes=nbytes))
    return nbytes


def _keep(job: Inherited, index: int, error: BaseException) -> None:
    """Write to the record what the entry has raised, for programs that catch it. They get what is
    told of it all the same, so that it may fail."""
    with contextlib.suppress(BaseException):
        hostile.within(_LOOK, lambda: _write(job, job.record.raised(index), error))


def _write(
    job: Inherited, path: Path, value: object, tell: Callable[[str], None] = lambda what: None
) -> int:
    """A value for the notebook; its size in bytes. Raises what pickling raises."""
    scratch = partial(path)
    try:
        fd = private.writing(scratch, os.O_RDWR | os.O_TRUNC)
        try:
            nbytes = results.pack_home(value, job.order.request.by_name, tell).write(fd)
        finally:
            os.close(fd)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    scratch.rename(path)
    return nbytes


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
        if type(x) in (bytes, bytearray) and len(x) > self.maxstring:
            return f"{x[: self.maxstring]!r}…"  # of all it could take minutes
        return super().repr1(x, level)


_LOOK = 2.0  # seconds for a repr: less than processes have to exit (run/run.py)


def preview(value: object) -> str:
    """A result in at most 80 characters."""
    text = hostile.words(lambda: in_one_line(_Preview().repr(value), 80), "repr()", _LOOK)
    if text.startswith("<its repr()"):
        return f"<{hostile.name_of(type(value)).rpartition('.')[2]}: {text[1:]}"
    return text


def _consequence(job: Inherited, error: BaseException) -> BaseException | None:
    """The runtime looks at the error's class and message, which may raise or hang."""
    try:
        return hostile.within(hostile.PATIENCE, lambda: job.runtime.consequence(error))
    except BaseException:
        return None


def _failure(
    job: Inherited, rank: int, error: BaseException, consequence: BaseException | None
) -> events.RankFailed:
    advice.add_to(error)
    failure = tracebacks.tell(consequence or error, job.table.sources)
    return events.RankFailed(
        rank=rank,
        kind=failure.kind,
        message=failure.message,
        text=failure.text,
        place=failure.place,
        where=failure.where,
        follows=consequence is not None,
        early=error.early if type(error) is CollectiveMismatch else (),
    )
