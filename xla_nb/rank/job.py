"""A job: the process between the fork server and the ranks of one run.

It takes over the notebook's environment, loads the program and its values once, and forks the
ranks. It must never touch a device or run a threaded operation: neither survives a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from multiprocessing import util
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
from xla_nb.runtimes.forking import Lifecycle, forget_exit_handlers
from xla_nb.wording import in_one_line

_POLL = 0.02  # seconds between looks for processes that outlive the ranks
_DIED_WITH_LOCK = "Rank {rank} died while holding `lock`; it has been released."


def install() -> None:
    """Install, in the fork server, the patches that all jobs and ranks need."""
    loading.watch_loaders()
    displays.install()
    asking.install()
    patches.install()
    old_names.install()
    entries.watch_launchers()


def get_ready() -> None:
    """Do the work common to all orders, in a process forked ahead of need."""
    _allow_open_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_exit_handlers()
    # An order will change this state: write to it now, so that its memory is copied in advance.
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

    The two files hold the notebook's values (`Parcel`) and the pickled order; `imported` are the
    environment variables set by importing torch_xla. Live ranks get their programs over the socket
    `control_fd`.
    """
    control = None if control_fd is None else socket.socket(fileno=control_fd)
    try:
        order = _begin(parcel_fd, order_fd, imported, sender)
        _start(order, sender, control)
    except _Refused as refused:
        sender.send(refused.event)
        return 1
    finally:
        # Removes named semaphores, which `os._exit` would leave behind.
        util._run_finalizers(0)  # type: ignore[attr-defined]
    return 0


def _begin(parcel_fd: int, order_fd: int, imported: Mapping[str, str], sender: Sender) -> Order:
    """Read the order and apply its environment and settings. Raises _Refused."""
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
    environment = {**imported, **order.env, loader.PARCEL: loader.parcel_path(parcel_fd)}
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment.items() - os.environ.items())
    _complete_flags(imported)
    record = Record(order.request.record)
    capture(record, None, lambda text: sender.send(events.Notice(text=f"The cell: {text}")))
    sys.path[:] = order.request.sys_path
    multiprocessing.current_process().authkey = order.request.authkey
    for state in (order.request.inheritance, order.request.state):
        if state is not None:
            state.take_on()
    old_names.install(lambda notice: sender.send(events.Notice(text=notice, once=True)))
    try:
        os.chdir(order.request.cwd)
    except OSError as problem:
        print(
            f"Cannot change to the notebook's directory {order.request.cwd}: {problem}",
            file=sys.stderr,
        )


def _allow_open_files() -> None:
    """Raise the soft limit to the hard one: ranks inherit n² streams until they close others'."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complete_flags(imported: Mapping[str, str]) -> None:
    """Add the flags set by importing torch_xla, except those set in the notebook."""
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        flags = os.environ.get(name, "").split()
        names = {flag.split("=")[0] for flag in flags}
        flags += [f for f in imported.get(name, "").split() if f.split("=")[0] not in names]
        if flags:
            os.environ[name] = " ".join(flags)


def _start(order: Order, sender: Sender, control: socket.socket | None) -> None:
    runtime = runtimes.named(order.request.runtime)
    runtime.set_up(order)
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
        raise _shortage(f"Cannot set up {order.ranks} ranks", error) from error
    except Exception as error:
        raise _refusal("Cannot set up the runtime", error, program.table) from error
    first = order.host_group.index * prepared.ranks
    sender.send(
        events.JobStarted(
            host=socket.gethostname(),
            ranks=prepared.ranks,
            first=first,
            simulated=prepared.simulated,
        )
    )
    known = linux.children()  # started by the runtime or the cell's top level
    crashes = Crashes(prepared.ranks)
    inherited = Inherited(
        program=program,
        first=first,
        lock=lock,
        runtime=prepared,
        crashes=crashes,
        control=control,
    )
    inherit(inherited)

    def report_death(death: events.ProcessDied) -> None:
        sender.send(crashes.tell(death))
        if control is not None and (rank := lock.free_from(death.pid)) is not None:
            sender.send(events.Notice(text=_DIED_WITH_LOCK.format(rank=rank)))

    entries.allow_launches()
    try:
        prepared.start(Lifecycle(enter, main, report_death))
    except OSError as error:
        raise _shortage(f"Cannot start {prepared.ranks} ranks", error) from error
    except Exception as error:
        traceback.print_exc()
        sender.send(events.Notice(text=f"Starting ranks raised {type(error).__name__}: {error}"))
    crashes.close()
    _wait_for_others(known)


def _wait_for_others(known: Collection[int]) -> None:
    """Wait until this process, which adopts orphans, has no children except `known`, that is, for
    processes that outlive the ranks that started them. The notebook decides how long, and then ends
    the job."""
    # Twice: a list read while a child ends may omit others (proc(5), children).
    while _remaining(known) or _remaining(known):
        time.sleep(_POLL)


def _remaining(known: Collection[int]) -> list[int]:
    """The children to wait for; reaps those that have ended. The resource trackers of
    multiprocessing serve other processes and exit by themselves."""
    return [
        pid
        for pid in linux.children()
        if pid not in known and not linux.reaped(pid) and not linux.is_tracker(pid)
    ]


def _shortage(problem: str, error: OSError) -> _Refused:
    """The refusal for a lack of system resources."""
    advice = linux.shortage(error.errno) or "Use fewer ranks (-n), or free space in /dev/shm."
    return _Refused(type(error).__name__, f"{problem} on this machine: {error}. {advice}")


def _load(order: Order, opened: Callable[[], str | None]) -> tuple[dict[str, Any], ModuleMap]:
    """Execute the program's module with one thread: a thread pool does not survive forks. Returns
    its namespace and the map of its lines."""
    path = Path(order.request.program)
    table = ModuleMap.open(path)
    torch: Any = sys.modules.get("torch")  # imported by the fork server, if installed
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
    """The refusal for an error, with the notebook line that raised it, if any."""
    failure = tracebacks.tell(error, table.sources)
    place = f" (at {failure.place})" if failure.place else ""
    message = f"{problem}{place}: {failure.kind}: {failure.message}"
    return _Refused(failure.kind, message, _traceback_text(failure))


def _traceback_text(failure: tracebacks.Told) -> str:
    """The traceback without its last line, which the headline repeats unless it is too long."""
    last = f"\n{failure.kind}: {failure.message}"
    return failure.text.removesuffix(last if len(last) < 300 else "")


def _unopened(label: str, error: Unopened, table: ModuleMap) -> _Refused:
    """The refusal for a value from the notebook that cannot be unpickled here."""
    failure = tracebacks.tell(error.problem, table.sources)
    if error.name == SHARED_MEMORY:
        message = f"Cannot open an array or tensor in shared memory on ranks: {error.problem}"
        return _Refused(
            type(error.problem).__name__, f"{message}. Keep it until the ranks have started."
        )
    name = {ARGUMENTS: "--args", ENTRY: label.rpartition(", ")[2]}.get(error.name, error.name)
    details = table.details.get(error.name)
    reason = f"{failure.kind}: {in_one_line(failure.message, 300).rstrip('.')}"
    message = (
        f"Cannot open `{name}`{f' ({details})' if details else ''} on ranks: {reason}"
        f"{f' ({failure.place})' if failure.place else ''}. {error.advice}"
    )
    return _Refused(failure.kind, message, _traceback_text(failure))
