"""A rank: join the runtime, run a program (a live rank runs several in turn), and report how each
ended.

`enter` runs in each process that the runtime starts, and `main` for each rank of that process (a
thread per device where torch_xla starts several). No exception of user code leaves `main`: a
failure must be reported at once, not after all ranks have ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import io
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from xla_nb import untrusted
from xla_nb.linux import die_with_parent, name_process
from xla_nb.live_ranks import sharing
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import Order
from xla_nb.pickling import code_facts, module_objects, rebuild
from xla_nb.pickling.parcel import Parcel
from xla_nb.pickling.rebuild import Definitions
from xla_nb.process_state.settings import unmoved
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.program.rank_cell import PREDEFINED
from xla_nb.rank import entries, loader, loading, reporting
from xla_nb.rank.crashes import Crashes
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.preview import numbers, short_repr
from xla_nb.rank.program import Loaded, OnRank, digest, keep
from xla_nb.record.output import capture, flush, mend
from xla_nb.runtimes import Prepared, RankInfo
from xla_nb.simulation.agreement import CollectiveMismatch
from xla_nb.stopwatch import Stopwatch
from xla_nb.wording import listed


@dataclass
class Inherited:
    """State that a rank inherits from its job through the fork.

    `first` is the expected rank of this host's first process: on a TPU of several hosts torch_xla
    may number ranks differently, and a rank knows its number after joining the runtime. `program`
    is the program that the job has loaded; live ranks have a `control` socket and get
    others. `running` maps each rank to its current program and thread; `captured` are the ranks
    whose log receives this process's output; `struck` is the `time.monotonic()` of the last
    interrupt.
    """

    program: Loaded
    first: int
    lock: SharedLock
    runtime: Prepared
    crashes: Crashes
    control: socket.socket | None = None
    random: Any = field(default_factory=random.getstate)
    running: dict[int, tuple[Loaded, int]] = field(default_factory=dict)
    captured: range = range(0)
    struck: float = float("-inf")


#: Set once in the job before it forks the ranks. `xmp.spawn` pickles its arguments, but a lock or
#: a cell's function can only be inherited.
_inherited: list[Inherited] = []


def inherit(inherited: Inherited) -> None:
    """Set what ranks inherit; the job calls this before it forks."""
    _inherited[:] = [inherited]


# ---------------------------------------------------------------- the process


def enter(local_rank: int, processes: int) -> None:
    """Set up a new process of ranks, and join the runtime."""
    (job,) = _inherited
    die_with_parent()
    rank = job.first + local_rank
    job.captured = range(rank, rank + 1)
    if processes < job.runtime.ranks:  # it has a thread per rank
        job.captured = range(job.first, job.first + job.runtime.ranks)
    name_process(f"xla_nb-rank-{rank}")
    _log_to(job.program, rank)
    _handle_interrupts(job)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job.crashes.watch(local_rank)
    random.setstate(job.random)  # the only generator that Python reseeds after a fork
    _renew_thread_pool()
    try:
        job.runtime.join(local_rank, processes)
    except BaseException as error:
        job.program.sender.send(_failure(job.program, rank, error, _consequence(job, error)))
        sys.exit(1)


def _log_to(program: Loaded, rank: int) -> None:
    capture(program.record, rank, functools.partial(program.tell, rank))


def _renew_thread_pool() -> None:
    """Make torch replace its thread pool while there is one thread.

    torch replaces it without a lock on first use after a fork. Autograd's threads, one per device,
    would race ("Invalid thread pool!", SIGABRT; in 7 of 50 first backward passes of SPMD).
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(torch.get_num_threads())


def _handle_interrupts(job: Inherited) -> None:
    """Have SIGINT interrupt the running programs."""
    pid = os.getpid()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if os.getpid() != pid:  # a process that user code forked
            raise KeyboardInterrupt
        _interrupt(job)

    # No partial: before Python 3.12 `signal` computes the repr of the previous handler, and the
    # repr of the job's namespace would compute pending tensors.
    signal.signal(signal.SIGINT, handler)


def _interrupt(job: Inherited) -> None:
    """Report where each program is, then raise KeyboardInterrupt there.

    In the main thread this also ends blocking calls (`time.sleep`, `queue.get`). In a process with
    several devices the programs run in other threads, where it is raised at the next line of
    Python: a blocking call there cannot be ended from outside. An idle live rank is not disturbed:
    its program has ended already, or it is about to begin the next one and will report its start
    (`struck`). Each program is interrupted once, even if the notebook repeats the interrupt
    (`Run._handle_staying`).
    """
    job.struck = time.monotonic()
    targets = [(rank, *run) for rank, run in list(job.running.items()) if not run[0].stopping]
    job.program.stopping = True
    for rank, program, thread in targets:
        program.stopping = True
        place, stack = tracebacks.locate(thread, program.table.sources)
        program.sender.send(events.RankInterrupted(rank=rank, place=place, stack=stack))
        if thread != threading.get_ident():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
            )
    # Handlers run in the main thread.
    if any(thread == threading.get_ident() for _, _, thread in targets):
        raise KeyboardInterrupt


# ---------------------------------------------------------------- programs of a live rank

_FORMER = "`{0}` shares data with the old {1}, which the notebook has re-sent; create `{0}` again"
_IMPORTED_SINCE = (
    "the notebook has since imported {}: ranks now use the notebook's values there, and the "
    "functions and classes that they imported (if the file was edited, importlib.reload it)"
)
_NAMES_PER_EVENT, _LONGEST = 64, 500  # most names in one event, and most characters of a name


class Cell(Loaded):
    """One program for a live rank, from its three file descriptors, which it closes. It runs in the
    namespace of `group`, the program with which the rank has begun.

    `handed`: when it was handed over, by `time.monotonic()` of this host.
    """

    def __init__(self, group: Loaded, events_fd: int, parcel_fd: int, order_fd: int) -> None:
        sender = Sender(socket.socket(fileno=events_fd))
        self._parcel = io.FileIO(parcel_fd)
        #: The module once it holds everything that the notebook has sent.
        self._before: dict[str, object] | None = None
        try:
            order: Order = pickle.loads(os.pread(order_fd, os.fstat(order_fd).st_size, 0))
        finally:
            os.close(order_fd)
        super().__init__(order.request, sender, group.namespace, group.table, own=group.own)
        self.handed = order.at
        assert order.request.turn is not None
        self.turn = order.request.turn

    def close(self) -> None:
        self.sender.sock.close()
        self._parcel.close()

    def tell_if_not_open(self, rank: int) -> None:
        """Report to the notebook if the rank may lack some of the values, so that it re-sends them.
        Called where interrupts are no longer raised: one may have prevented opening."""
        if self._before is None:
            self.sender.send(events.NotOpened(rank=rank))

    def open(self, definitions: Definitions) -> None:
        """Open the notebook's values in the module; `definitions` are those sent before.
        Raises Unopened, and what importing modules raises."""
        table = ModuleMap.parse(self.request.table)
        self.table.sources.update(table.sources)  # keeps those of earlier cells
        self.table = replace(table, sources=self.table.sources)
        _extend_path(self.request.sys_path)
        notices: list[str] = []
        with self._parcel as parcel:
            if os.fstat(parcel.fileno()).st_size:
                with unmoved(lives=True):
                    notices = self._open_parcel(definitions)
        for text in notices:
            self.sender.send(events.Notice(text=text))
        for text in rebuild.take_notices():
            self.sender.send(events.Notice(text=text, once=True))
        for name in self.turn.remote - self.own:  # bound by another rank: drop the old value
            self.namespace.pop(name, None)
        for label, source in table.sources.items():
            loader.remember(label, source)
        self._before = dict(self.namespace)

    def _open_parcel(self, definitions: Definitions) -> list[str]:
        """Open the values sent. Returns notices for the user."""
        # The notebook may have packed this before it knew what the rank has bound.
        rank_names, before = self.turn.remote | self.own, dict(self.namespace)
        parcel = Parcel(self._parcel.fileno())
        overwritten = sorted(filter(_is_own, {*parcel.imports} - definitions.imports))
        sent = parcel.open(self.namespace, table=definitions, but=rank_names)
        if overwritten:
            text = _IMPORTED_SINCE.format(listed([f"`{name}`" for name in overwritten]))
            rebuild.notices.append(lambda: text)
        return _former_notices(before, self.namespace, sent.keys() - rank_names, self.own)

    def tell_names(self, rank: int) -> None:
        """Report to the notebook which names of the module the program has bound or deleted."""
        if self._before is None:
            return
        before, now = self._before, self.namespace
        changed = {name for name, value in now.items() if before.get(name, self) is not value}
        bound = changed | (self.bound & now.keys())
        deleted = before.keys() - now.keys()
        self._before = None
        self.own.update(name for name in bound if isinstance(name, str))
        self.own.difference_update(deleted)
        for names in _in_chunks(bound):
            imported = {name: path for name in names if (path := code_facts.imported_as(now[name]))}
            self.sender.send(events.NamesBound(rank=rank, bound=names, imported=imported))
        for names in _in_chunks(deleted):
            self.sender.send(events.NamesBound(rank=rank, bound=(), deleted=names))


def _is_own(name: str) -> bool:
    """Whether this process has imported a module of this name from a file of the user's."""
    return name in sys.modules and module_objects.is_own(sys.modules[name])


def _former_notices(
    before: Mapping[str, object], now: Mapping[str, object], sent: Set[str], own: Set[str]
) -> list[str]:
    """Notices for the rank's `own` values that share data with old values which the notebook has
    `sent` anew and no longer has."""
    former = {n for n in filter(_is_cell_name, sent & before.keys()) if before[n] is not now[n]}
    if not (former and own):
        return []
    sent_parts = sharing.held([now[name] for name in sent])
    old_parts = {name: sharing.held([before[name]]) - sent_parts for name in sorted(former)}
    notices: list[str] = []
    for name in sorted(filter(_is_cell_name, own & now.keys())) if any(old_parts.values()) else ():
        data = sharing.held([now[name]])
        if shared := [f"`{old}`" for old, parts in old_parts.items() if not data.isdisjoint(parts)]:
            notices.append(_FORMER.format(name, listed(shared)))
    return notices


def _in_chunks(names: Iterable[object]) -> Iterator[tuple[str, ...]]:
    """The names that the cell has bound, sorted, in chunks that fit one event."""
    selected = sorted(name for name in names if isinstance(name, str) and _is_cell_name(name))
    for start in range(0, len(selected), _NAMES_PER_EVENT):
        yield tuple(selected[start : start + _NAMES_PER_EVENT])


def _extend_path(folders: Sequence[str]) -> None:
    """Add folders that the notebook has added to `sys.path`, at the same positions."""
    for position, folder in enumerate(folders):
        if folder not in sys.path:
            sys.path.insert(position, folder)
            importlib.invalidate_caches()


def _is_cell_name(name: str) -> bool:
    """Whether a cell has bound the name, and code can use it."""
    if name.startswith(("__", "_xla_nb")) or name in PREDEFINED:
        return False
    return name.isidentifier() and len(name) <= _LONGEST


def connect(control: socket.socket, rank: int) -> socket.socket:
    """Open the calling rank's line, over which it receives programs, and send the other end to the
    process that starts them."""
    own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other_end, contextlib.suppress(OSError):  # no receiver: the line has ended, then
        socket.send_fds(control, [b"%d" % rank], [other_end.fileno()])
    return own_end


# ---------------------------------------------------------------- programs


def main(rank: int) -> None:
    """Run a rank; `xmp.spawn` calls this for each one."""
    (job,) = _inherited
    job.lock.belongs_to(rank)
    try:
        if job.control is None:
            _run(job, job.program, rank, lambda: _register(job, job.program, rank))
        else:
            _run_live_rank(job, job.control, rank)
    finally:
        flush()


def _run_live_rank(job: Inherited, control: socket.socket, rank: int) -> None:
    """Run the programs that a live rank receives, until there are no more."""
    try:
        line = connect(control, rank)
        info = _register(job, job.program, rank)
    except BaseException as error:
        job.program.sender.send(_failure(job.program, rank, error, _consequence(job, error)))
        return
    idle = Stopwatch()
    idle.start()
    # A live rank is sampled across all its programs, in addition to each one's samples.
    history, losses = job.program.record.of_rank(rank, "history"), job.program.losses(rank)
    book = reporting.Book(history, losses, idle=idle, loading=loading.begin())
    reporting.over_programs.begin(book)
    with job.program.meter(rank, book, job.runtime, job.lock):
        try:
            _run_cells(job, line, rank, info, idle)
        except BaseException as error:  # outside any program
            traceback.print_exc()
            flush()
            with contextlib.suppress(BaseException):  # the process's end is reported anyway
                job.program.sender.send(_failure(job.program, rank, error, None))
            os._exit(1)
    job.runtime.leave("returned")
    job.program.sender.send(events.RankFinished(rank=rank, preview="", nbytes=0))


def _run_cells(
    job: Inherited, line: socket.socket, rank: int, info: RankInfo, idle: Stopwatch
) -> None:
    # The job has imported what the notebook had; the first cell lists that again.
    definitions = Definitions(loader.parcel(os.environ[loader.PARCEL]).imports)
    handler = signal.getsignal(signal.SIGINT)
    while (cell := _next_cell(job, line, rank)) is not None:
        with contextlib.closing(cell):
            if cell.turn.is_for(rank):
                if not cell.turn.asks:
                    idle.stop()
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, handler)  # a cell may have replaced it
                _run_cell(job, cell, rank, info, definitions)
                idle.start()
            else:
                _open_values(cell, rank, definitions)


def _next_cell(job: Inherited, line: socket.socket, rank: int) -> Cell | None:
    """Wait for the next program. An exception of a signal handler that a cell installed is
    reported, and only SystemExit ends the process."""
    while True:
        try:
            channel.ready(line, None)
        except SystemExit:
            raise
        except BaseException as error:
            traceback.print_exc()
            flush()
            message = f"A signal handler raised {untrusted.name_of(type(error))}"
            job.program.tell(rank, f"{message} while rank {rank} was idle.")
        else:
            data, fds = channel.take(line, 16, 3)
            return Cell(job.program, *fds) if data else None


def _open_values(cell: Cell, rank: int, definitions: Definitions) -> None:
    """Open the values of a program that other ranks run."""
    with contextlib.suppress(BaseException):
        cell.open(definitions)
    cell.tell_if_not_open(rank)


def _run_cell(
    job: Inherited, cell: Cell, rank: int, info: RankInfo, definitions: Definitions
) -> None:
    """Run one program of a live rank in its persistent namespace."""

    def begin() -> RankInfo:
        job.runtime.begin(cell.turn.number, cell.turn.members)
        if job.struck >= cell.handed:  # meant for this program, or late for the previous one
            _report_start(cell, rank, info)
        cell.open(definitions)
        return info

    try:
        _log_to(cell, rank)
        _run(job, cell, rank, begin)
    finally:
        cell.tell_if_not_open(rank)
        if job.lock.let_go():
            text = f"The cell ended on rank {rank} while it held `lock`; it has been released."
            cell.tell(rank, text)
        cell.tell_names(rank)
        mend()
        flush()
        _log_to(job.program, rank)
        cell.sender.send(events.RankLeft(rank=rank))


def _register(job: Inherited, program: Loaded, rank: int) -> RankInfo:
    """The rank's info from the runtime, after reporting the rank to the notebook."""
    info = job.runtime.rank_info(rank)
    if rank not in job.captured:  # the runtime assigned another number
        _log_to(program, rank)
    _report_start(program, rank, info)
    return info


def _report_start(program: Loaded, rank: int, info: RankInfo) -> None:
    """Report the start to the notebook, which interrupts a program that it has stopped before."""
    program.sender.send(
        events.RankStarted(
            rank=rank,
            pid=os.getpid(),
            device=info.shown,
            devices=info.devices,
        )
    )


def _run(job: Inherited, program: Loaded, rank: int, begin: Callable[[], RankInfo]) -> None:
    """Run a program on a rank, and report how it ended. `begin` prepares it, and returns the
    rank's info."""
    entries.refuse_launches(program.request.magic)
    job.running[rank] = program, threading.get_ident()
    try:
        try:
            info = begin()
            value, nbytes = OnRank(program, rank, info, job.runtime, job.lock).run()
        finally:
            del job.running[rank]
        job.runtime.leave("returned")
        if value is not None:  # its preview may hang or end the process; that of None is known
            event = events.RankFinished(
                rank=rank,
                preview=short_repr(value, reads=True),
                nbytes=nbytes,
                numbers=numbers(value),
                digest=digest(program.record.result(rank), rank),
            )
            program.sender.send(event)
    except BaseException as error:
        _report_failure(job, program, rank, error)


def _report_failure(job: Inherited, program: Loaded, rank: int, error: BaseException) -> None:
    consequence = _consequence(job, error)
    if program.stopping and (consequence or issubclass(type(error), KeyboardInterrupt)):
        program.sender.send(events.RankStopped(rank=rank))
        job.runtime.leave("was stopped")
        return
    program.sender.send(_failure(program, rank, error, consequence))
    job.runtime.leave(f"raised {untrusted.name_of(type(error))}")
    if consequence is None:
        keep(program.request, program.record.raised(rank), error)


def _consequence(job: Inherited, error: BaseException) -> BaseException | None:
    """The error in clear words if another rank's end caused it, else None. The runtime inspects
    the error's class and message, which may raise or hang."""
    try:
        return untrusted.within(untrusted.PATIENCE, lambda: job.runtime.consequence(error))
    except BaseException:
        return None


def _failure(
    program: Loaded, rank: int, error: BaseException, consequence: BaseException | None
) -> events.RankFailed:
    _advise(error)
    failure = tracebacks.tell(consequence or error, program.table.sources)
    return events.RankFailed(
        rank=rank,
        **vars(failure),
        follows=consequence is not None,
        early=error.early if type(error) is CollectiveMismatch else (),
    )


_NAME_ADVICE = (
    "xla_nb: Ranks get only notebook variables whose names appear in code. If this name does not, "
    "mention it in the function that looks it up, or pass its value as an argument."
)
#: (name of the error, words in its message): advice.
_ADVICE = {
    ("bdb.BdbQuit", ""): (
        "xla_nb: Ranks have no standard input, so breakpoint() and pdb exit at once. Debug the "
        "function in the notebook, or print() the values you need."
    ),
    ("builtins.RuntimeError", "Cannot re-initialize CUDA in forked subprocess"): (
        "xla_nb: Ranks are always forked, whatever `start_method` says, and have XLA devices, not "
        'CUDA devices. Use torch_xla.device() or "xla" where the program names "cuda".'
    ),
}


def _advise(error: BaseException) -> None:
    """Add a note with advice to an error of a rank, if there is any."""
    with contextlib.suppress(Exception):  # an error may refuse notes
        qualified_name = f"{untrusted.module_of(type(error))}.{untrusted.name_of(type(error))}"
        message = untrusted.message_of(error)
        frames = [frame for frame, _ in traceback.walk_tb(untrusted.trace_of(error))]
        # The loader's frames run cells.
        codes = [frame.f_code for frame in frames if frame.f_globals is not vars(loader)]
        if isinstance(error, NameError | KeyError) and any(map(code_facts.looks_up, codes[-2:])):
            error.add_note(_NAME_ADVICE)
        for (kind, words), advice in _ADVICE.items():
            if qualified_name == kind and words in message:
                error.add_note(advice)
