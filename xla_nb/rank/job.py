"""A job: the process between the fork server and the ranks of one run.

It takes over the notebook's environment, loads the program and its values once, and forks the
ranks. It must never touch a device or run a threaded operation: a fork copies neither soundly.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures.process import BrokenProcessPool, _RemoteTraceback
from multiprocessing import connection, util
from pathlib import Path
from typing import Any

from xla_nb import linux, old_names, runtimes
from xla_nb.linux import name_process
from xla_nb.messages import events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import ARGUMENTS, ENTRY, Order
from xla_nb.pickling.parcel import SHARED_MEMORY, Unopened
from xla_nb.pickling.rebuild import take_notices
from xla_nb.process_state.random_state import Inheritance
from xla_nb.process_state.settings import ProcessState
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import asking, displays, entries, loader, loading, patches
from xla_nb.rank.crashes import Crashes
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.process import Inherited, enter, inherit, main
from xla_nb.rank.program import Loaded
from xla_nb.record.files import Record
from xla_nb.record.output import capture
from xla_nb.runtimes import Runtime
from xla_nb.runtimes.forking import Latch, Lifecycle, forget_exit_handlers
from xla_nb.wording import in_one_line

_DIED_WITH_LOCK = "Rank {rank} died while holding `lock`; it has been released."


def install() -> None:
    """Replace in the fork server what is to be otherwise in all jobs and ranks."""
    loading.watch_loaders()
    displays.install()
    asking.install()
    patches.install()
    old_names.install()
    entries.watch_launchers()


def get_ready() -> None:
    """Do what is the same for all orders, in a process that is forked ahead of need."""
    _allow_open_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_exit_handlers()
    # What an order will change: so the memory that it is in has been copied when the order comes.
    for state in pickle.loads(pickle.dumps((Inheritance(), ProcessState()))):
        state.take_on()


def run(
    sender: Sender,
    imported: Mapping[str, str],
    parcel_fd: int,
    order_fd: int,
    control_fd: int | None = None,
) -> int:
    """Run a job from start to end, and return its exit status.

    The two files hold the notebook's values (`Parcel`) and the pickled order; `imported`
    are the environment variables that importing torch_xla set. Live ranks get their programs over
    the socket `control_fd`.
    """
    control = None if control_fd is None else socket.socket(fileno=control_fd)
    try:
        order = _begin(parcel_fd, order_fd, imported, sender)
        _start(order, sender, control)
    except _Refused as refused:
        sender.send(refused.event)
        return 1
    finally:
        # Semaphores with names, which `os._exit` would leave.
        util._run_finalizers(0)  # type: ignore[attr-defined]
    return 0


def _begin(parcel_fd: int, order_fd: int, imported: Mapping[str, str], sender: Sender) -> Order:
    """Read the order, and take on what it says. Raises _Refused."""
    try:
        with open(order_fd, "rb") as file:  # a descriptor, not a path
            file.seek(0)
            order: Order = pickle.load(file)
        _take_on(order, parcel_fd, imported, sender)
    except Exception as error:
        message = f"Cannot prepare to load the program: {type(error).__name__}: {error}"
        raise _Refused(type(error).__name__, message, traceback.format_exc()) from error
    return order


class _Refused(Exception):
    def __init__(self, kind: str, message: str, text: str = "") -> None:
        super().__init__(message)
        self.event = events.JobFailed(kind=kind, message=message, text=text)


def _take_on(order: Order, parcel_fd: int, imported: Mapping[str, str], sender: Sender) -> None:
    """Take over the notebook's working directory, environment, `sys.path` and keys."""
    name_process("xla_nb-job")
    wanted = {**imported, **order.env, loader.PARCEL: loader.parcel_path(parcel_fd)}
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted.items() - os.environ.items())
    _complete_flags(imported)
    record = Record(order.request.record)
    capture(record, None, lambda text: sender.send(events.Notice(text=f"The cell: {text}")))
    sys.path[:] = order.request.sys_path
    multiprocessing.current_process().authkey = order.request.authkey
    for given in (order.request.inheritance, order.request.state):
        if given is not None:
            given.take_on()
    old_names.install(lambda notice: sender.send(events.Notice(text=notice, once=True)))
    try:
        os.chdir(order.request.cwd)
    except OSError as problem:
        print(
            f"Cannot change to the notebook's directory {order.request.cwd}: {problem}",
            file=sys.stderr,
        )


def _allow_open_files() -> None:
    """Raise the soft limit to the hard one: n ranks share n² streams until each closes others'."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complete_flags(imported: Mapping[str, str]) -> None:
    """Add the flags that importing torch_xla set, except those set in the notebook."""
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        flags = os.environ.get(name, "").split()
        names = {flag.split("=")[0] for flag in flags}
        flags += [f for f in imported.get(name, "").split() if f.split("=")[0] not in names]
        if flags:
            os.environ[name] = " ".join(flags)


def _start(order: Order, sender: Sender, control: socket.socket | None) -> None:
    runtime = runtimes.named(order.request.runtime)
    runtime.set_up()
    entries.refuse_launches(order.request.magic)
    namespace, table = _load(order, runtime.opened)
    for text in take_notices():
        sender.send(events.Notice(text=text, once=True))
    _run_ranks(order, Loaded(order.request, sender, namespace, table), runtime, control)


def _run_ranks(
    order: Order, program: Loaded, runtime: Runtime, control: socket.socket | None
) -> None:
    sender = program.sender
    try:
        lock = SharedLock()
        prepared = runtime.prepare(order)
    except OSError as error:
        raise _short(f"Cannot set up {order.ranks} ranks", error) from error
    except Exception as error:
        raise _refusal("Cannot set up the runtime", error, program.table) from error
    sender.send(
        events.JobStarted(
            pid=os.getpid(),
            host=socket.gethostname(),
            ranks=prepared.ranks,
            first=order.host_group.index * prepared.ranks,
            simulated=prepared.simulated,
        )
    )
    known = linux.children()  # the runtime's, and what the cell's top level has started
    latch = Latch()
    crashes = Crashes(prepared.ranks)
    inherited = Inherited(
        program=program,
        host_group=order.host_group,
        lock=lock,
        runtime=prepared,
        latch=latch,
        random=random.getstate(),
        crashes=crashes,
        control=control,
    )
    inherit(inherited)

    def died(death: events.ProcessDied) -> None:
        sender.send(crashes.tell(death))
        if control is not None and (rank := lock.free_from(death.pid)) is not None:
            sender.send(events.Notice(text=_DIED_WITH_LOCK.format(rank=rank)))

    entries.allow_launches()
    try:
        prepared.start(Lifecycle(enter, main, latch, died))
    except BrokenProcessPool:
        pass  # each death is an event by now
    except Exception as error:  # a rank that could not join has reported that
        # What a rank raised comes with the traceback that it had there.
        if isinstance(error, OSError) and not isinstance(error.__cause__, _RemoteTraceback):
            raise _short(f"Cannot start {prepared.ranks} ranks", error) from error
        traceback.print_exc()
        sender.send(events.Notice(text=f"Starting ranks raised {type(error).__name__}: {error}"))
    crashes.close()
    _wait_for_others(known)


def _wait_for_others(known: Collection[int]) -> None:
    """Wait until this process, which adopts orphans, has no children left but `known`: processes
    that ranks have started and that go on after them. How long is for the notebook to decide, which
    ends the job."""
    # Twice: a list read while a child ends may lack others (proc(5), children).
    while left := _left(known) or _left(known):
        _wait_for_one(left)


def _left(known: Collection[int]) -> list[int]:
    """The children to be waited for; reaps those that have ended. The trackers of multiprocessing
    serve others and end by themselves."""
    return [
        pid
        for pid in linux.children()
        if pid not in known and not linux.reaped(pid) and not linux.is_tracker(pid)
    ]


def _wait_for_one(pids: list[int]) -> None:
    """Wait until one of these children has ended, when what it has started is ours; or for a
    moment, since one that was just forked gets its program's name later."""
    watched = [os.pidfd_open(pid) for pid in pids]
    connection.wait(watched, 0.5)
    for fd in watched:
        os.close(fd)


def _short(problem: str, error: OSError) -> _Refused:
    """The refusal where the system has too little of what ranks need."""
    advice = linux.shortage(error.errno) or "Use fewer ranks (-n), or free space in /dev/shm."
    return _Refused(type(error).__name__, f"{problem} on this machine: {error}. {advice}")


def _load(order: Order, opened: Callable[[], str | None]) -> tuple[dict[str, Any], ModuleMap]:
    """Execute the program's module with one thread: a thread pool does not survive forks. Gives its
    namespace, and the map of its lines."""
    path = Path(order.request.program)
    table = ModuleMap.open(path)
    torch: Any = sys.modules.get("torch")  # which the fork server has imported, if it is there
    if torch:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    try:
        namespace = vars(loader.load(path))
    except Unopened as error:
        raise _unopened(order.request.label, error, table) from error
    except BaseException as error:
        raise _refusal("Cannot load the program", error, table) from error
    finally:
        if torch:
            torch.set_num_threads(threads)
    if message := opened():
        raise _Refused("DeviceTouched", message)
    return namespace, table


def _refusal(problem: str, error: BaseException, table: ModuleMap) -> _Refused:
    """By the notebook's line that raised it, if one did."""
    failure = tracebacks.tell(error, table.sources)
    inside = f" (at {failure.place})" if failure.place else ""
    told = f"{problem}{inside}: {failure.kind}: {failure.message}"
    return _Refused(failure.kind, told, _text(failure))


def _text(failure: tracebacks.Told) -> str:
    """The traceback without its last line, which the headline has, unless that will be cut."""
    last = f"\n{failure.kind}: {failure.message}"
    return failure.text.removesuffix(last if len(last) < 300 else "")


def _unopened(label: str, error: Unopened, table: ModuleMap) -> _Refused:
    """The refusal of a value that was pickled in the notebook and cannot be made again here."""
    failure = tracebacks.tell(error.problem, table.sources)
    if error.name == SHARED_MEMORY:
        message = f"Cannot open an array or tensor in shared memory on ranks: {error.problem}"
        return _Refused(
            type(error.problem).__name__, f"{message}. Keep it until the ranks have started."
        )
    name = {ARGUMENTS: "--args", ENTRY: label.rpartition(", ")[2]}.get(error.name, error.name)
    details = table.details.get(error.name)
    told = f"{failure.kind}: {in_one_line(failure.message, 300).rstrip('.')}"
    message = (
        f"Cannot open `{name}`{f' ({details})' if details else ''} on ranks: {told}"
        f"{f' ({failure.place})' if failure.place else ''}. {error.advice}"
    )
    return _Refused(failure.kind, message, _text(failure))
