"""A job: the process between the fork server and the ranks of one run.

It takes on the notebook's environment, loads the program and its values once, and starts the
ranks. The rule: it never touches a device and never runs a threaded operation, so that what
is forked from it is sound; when it cannot go on it says why and ends.
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
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from xla_nb import runtimes
from xla_nb.linux import name_process
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.protocol import events
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import ARGUMENTS_GROUP, Order
from xla_nb.rank import loader
from xla_nb.rank.process import Inherited, capture, enter, inherit, main
from xla_nb.runtimes.forking import Latch, Lifecycle


def run(sender: Sender, parcel_fd: int, order_fd: int, imported: Mapping[str, str]) -> int:
    """The whole life of a job; gives its exit status.

    The two files hold the notebook's values (`shipping`) and the pickled Order; `imported` are
    the environment variables that importing torch_xla set.
    """
    with open(order_fd, "rb") as file:  # a descriptor, not a path
        file.seek(0)
        order = pickle.load(file)
    _take_on(order, parcel_fd, imported)
    try:
        _start(order, sender)
    except _Refused as refused:
        sender.send(refused.event)
        return 1
    return 0


class _Refused(Exception):
    def __init__(self, kind: str, message: str, text: str = "") -> None:
        super().__init__(message)
        self.event = events.JobFailed(kind=kind, message=message, text=text)


def _take_on(order: Order, parcel_fd: int, imported: Mapping[str, str]) -> None:
    """Make this process one of the notebook's: directory, environment, path, keys."""
    name_process("xla_nb-job")
    _allow_open_files()
    os.environ.clear()
    os.environ.update({**imported, **order.env, loader.PARCEL: loader.parcel_path(parcel_fd)})
    _complete_flags(imported)
    capture(Path(order.request.record), "job")
    sys.path[:] = order.request.sys_path
    multiprocessing.current_process().authkey = order.request.authkey
    order.request.inheritance.take_on()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.chdir(order.request.cwd)
    except OSError as problem:
        print(
            f"the notebook's working directory {order.request.cwd} is gone: {problem}",
            file=sys.stderr,
        )


def _allow_open_files() -> None:
    """As many as may be: the streams between n ranks are n² before each has closed the others'."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complete_flags(imported: Mapping[str, str]) -> None:
    """The notebook's XLA_FLAGS stand, but flags that torch_xla adds on import are added."""
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        mine = os.environ.get(name, "").split()
        taken = {flag.split("=")[0] for flag in mine}
        more = [flag for flag in imported.get(name, "").split() if flag.split("=")[0] not in taken]
        if mine or more:
            os.environ[name] = " ".join([*mine, *more])


def _start(order: Order, sender: Sender) -> None:
    runtime = runtimes.named(order.request.runtime)
    runtime.set_up()
    namespace, table = _load(order, runtime.opened)
    try:
        prepared = runtime.prepare(order)
    except OSError as error:
        raise _Refused(
            type(error).__name__,
            f"{order.ranks} ranks could not be set up on this machine: {error}. What to do: use "
            "fewer ranks (-n), or allow more open files (`ulimit -n`) where Jupyter is started",
        ) from error
    except Exception as error:
        raise _refusal("the runtime could not be set up", error, table) from error
    sender.send(
        events.JobStarted(
            pid=os.getpid(),
            host=socket.gethostname(),
            ranks=prepared.ranks,
            first=order.host_group.index * prepared.ranks,
            simulated=prepared.simulated,
        )
    )
    latch = Latch()
    inherit(
        Inherited(
            order=order,
            sender=sender,
            namespace=namespace,
            table=table,
            lock=multiprocessing.get_context("fork").Lock(),
            runtime=prepared,
            latch=latch,
            random=random.getstate(),
        )
    )
    try:
        prepared.start(Lifecycle(enter, main, latch, sender.send))
    except BrokenProcessPool:
        return  # each death has been told by now
    except Exception as error:  # a rank that could not join has said so itself
        traceback.print_exc()
        sender.send(
            events.Notice(text=f"the ranks' start ended with {type(error).__name__}: {error}")
        )


def _load(order: Order, opened: Callable[[], str | None]) -> tuple[dict[str, Any], ModuleMap]:
    """The program's module, executed with one thread: a pool of threads does not survive forks."""
    path = Path(order.request.program)
    table = ModuleMap.open(path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        module = loader.load(path, opened)
        loader.restore(ARGUMENTS_GROUP, vars(module))
    except BaseException as error:
        raise _refusal("the program could not be loaded", error, table) from error
    finally:
        torch.set_num_threads(threads)
    return vars(module), table


def _refusal(what: str, error: BaseException, table: ModuleMap) -> _Refused:
    if isinstance(error, loader.CellError):
        return _Refused("DeviceTouched", f"{error.place}: {error}")
    told = tracebacks.tell(error, table.sources)
    place = f" at {told.place}" if told.place else ""
    return _Refused(told.kind, f"{what}{place}: {told.kind}: {told.message}", told.text)
