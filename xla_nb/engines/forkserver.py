"""The fork server: a clean process that has imported the ranks' packages and only forks jobs.

It runs no user code, touches no device and starts no thread, because forks of a process that does
can hang. When its control socket closes or its parent ends, it ends with everything it started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
import multiprocessing
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xla_nb import linux
from xla_nb.linux import adopt_orphans, children, die_with_parent, name_process
from xla_nb.memory import OutOfMemory
from xla_nb.messages import channel
from xla_nb.messages.channel import Sender
from xla_nb.messages.events import JobEnded
from xla_nb.messages.exit_status import TERMINATED, ending
from xla_nb.record import output

_FILES = 4  # of a run, at most: its events, parcel, order, and the control of live ranks' lines
#: Modules of every job and rank, whatever their runtime.
ALWAYS = (
    *(("torch.utils.data", "torch.optim") if importlib.util.find_spec("torch") else ()),
    *("multiprocessing.popen_fork", "xla_nb.rank.job"),
    *("IPython.core.formatters", "IPython.display"),  # what `display` needs
)


@dataclass
class _Job:
    run: str
    sender: Sender
    memory: OutOfMemory


class ForkServer:
    """Forks jobs on requests from one control socket."""

    def __init__(
        self, control: socket.socket, parent: int, imported: Mapping[str, str], folder: str
    ) -> None:
        self._control = control
        self._parent = parent
        self._imported = imported
        self._folder = Path(folder)
        self._initial_children = children()  # such as a resource tracker that an import has started
        self._jobs: dict[int, _Job] = {}
        # A job forked ahead of need, its pid, and the socket at which it waits for a run's files.
        self._spare: tuple[int, socket.socket] | None = None
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until the notebook closes the control socket, or ends."""
        wake, alarm = socket.socketpair()
        wake.setblocking(False)
        alarm.setblocking(False)
        signal.set_wakeup_fd(alarm.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        self._selector.register(self._parent, selectors.EVENT_READ)
        self._spare = self._fork_spare()
        serving = True
        while serving:
            for key, _ in self._selector.select():
                if key.fileobj is wake:
                    with contextlib.suppress(BlockingIOError):
                        wake.recv(4096)
                    self._reap()
                elif key.fileobj is self._control and serving:
                    serving = self._handle_request()
                else:
                    serving = False
        self._spare = None  # it ends with its socket
        self._end_processes(*self._jobs)

    def _handle_request(self) -> bool:
        """Handle one request; False if the control socket was closed."""
        message, fds = channel.take(self._control, 1 << 16, _FILES)
        if not message:
            return False
        request = json.loads(message)
        if request["do"] == "launch":
            self._launch(request["run"], *fds)
        elif request["do"] == "kill":
            for pid in [pid for pid, job in self._jobs.items() if job.run == request["run"]]:
                linux.kill([pid, *linux.in_group(pid)])  # a surviving job would report the deaths
        return True

    def _launch(self, run: str, events_fd: int, *fds: int) -> None:
        memory = OutOfMemory()
        pid, orders = self._spare or self._fork_spare()
        try:
            socket.send_fds(orders, [b"go"], [events_fd, *fds])
        except OSError:  # the spare has been killed
            orders.close()
            pid, orders = self._fork_spare()
            socket.send_fds(orders, [b"go"], [events_fd, *fds])
        orders.close()
        os.kill(pid, signal.SIGCONT)  # somebody may have stopped it
        self._spare = None
        self._jobs[pid] = _Job(run, Sender(socket.socket(fileno=events_fd)), memory)
        for fd in fds:
            os.close(fd)

    def _fork_spare(self) -> tuple[int, socket.socket]:
        server_end, job_end = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            server_end.close()
            self._run_job(job_end)
        job_end.close()
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too, whichever is first
        return pid, server_end

    def _run_job(self, orders: socket.socket) -> NoReturn:
        status = 1
        try:
            os.setpgid(0, 0)  # a new group, so that all of it can be killed at once
            die_with_parent()
            adopt_orphans()
            name_process("xla_nb-spare")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._selector.close()
            self._control.close()
            os.close(self._parent)
            for other in self._jobs.values():
                other.sender.sock.close()
            job = _job_module()
            job.get_ready()
            message, fds = channel.take(orders, 16, _FILES)
            orders.close()
            if message:
                self._share_temporary_folder()
                status = job.run(Sender(socket.socket(fileno=fds[0])), self._imported, *fds[1:])
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def _share_temporary_folder(self) -> None:
        """Make multiprocessing keep the files of this job and its ranks in one folder, removed with
        the job: it would create one for each, and leave those of killed processes."""
        with contextlib.suppress(OSError):  # no space: multiprocessing raises it when used
            folder = self._folder_of(os.getpid())
            folder.mkdir(mode=0o700)
            process: Any = multiprocessing.current_process()
            process._config["tempdir"] = str(folder)

    def _folder_of(self, job: int) -> Path:
        return self._folder / f"{job:x}"  # short: a socket's path has at most 107 bytes

    def _reap(self) -> None:
        while (ended := _reap_child()) is not None:
            pid, status = ended
            job = self._jobs.pop(pid, None)
            if job is not None:
                self._end_processes(pid)
                shutil.rmtree(self._folder_of(pid), ignore_errors=True)
                limit = job.memory.limit(status)
                why = "" if limit is None else f"their job {ending(status, limit)}"
                job.sender.send(JobEnded(status=status, why=why))
                job.sender.sock.close()
        if self._spare is None and not self._jobs:
            self._spare = self._fork_spare()

    def _end_processes(self, *jobs: int) -> None:
        """End the processes left in the groups of these jobs, and those inherited from any job: a
        job adopts its ranks' orphans, and when it ends we do."""
        groups = [*jobs]
        linux.end_all(lambda: [*self._orphans(), *(p for g in groups for p in linux.in_group(g))])

    def _orphans(self) -> list[int]:
        """The inherited processes that have not ended; reap the others."""
        known = {*self._initial_children, *self._jobs, self._spare[0] if self._spare else None}
        return [pid for pid in children() if pid not in known and not linux.reaped(pid)]


def _job_module() -> Any:
    return importlib.import_module("xla_nb.rank.job")


def _reap_child() -> tuple[int, int] | None:
    """Reap one ended child; return its pid and exit status (negative for a signal)."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def main(fd: int, parent: int, imports: list[str], folder: str) -> None:
    """Entry point of the process: import, report that it is ready or why not, serve.

    `fd` is the control socket, `parent` the notebook's pid; `folder` is for temporary files.
    """
    control = socket.socket(fileno=fd)
    output.install()
    # The thread that started us may have blocked signals, as Ray's do; ranks need them.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    name_process("xla_nb-server")
    # Python 3.12+ warns about forking with threads; the only other ones are OpenBLAS's, idle.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    initial_env = dict(os.environ)
    gc.disable()  # collections are a quarter of an import's time, and find nothing to collect
    reply: dict[str, Any]
    # Exit through Python on SIGTERM, with which the notebook ends a server that is still importing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        tempfile.tempdir = folder  # torch creates a temporary folder when it is imported
        for name in (*imports, *ALWAYS):
            importlib.import_module(name)
        _job_module().install()
        tempfile.tempdir = None
        # torch_xla's import calls basicConfig, which would make the user's own call a no-op.
        logging.getLogger().handlers.clear()
        reply = {"ready": True}
    except BaseException as problem:
        reply = {"ready": False, "kind": type(problem).__name__, "problem": str(problem)}
    with contextlib.suppress(BrokenPipeError):
        control.send(json.dumps(reply).encode())
    if not reply["ready"]:
        return
    imported = {name: value for name, value in os.environ.items() if initial_env.get(name) != value}
    gc.collect()
    gc.freeze()  # so that collections in the children do not copy our pages
    gc.enable()
    linux.gather_pages()  # cuts a fork from 15 to 6 ms
    parent_fd = linux.watch_parent(parent)
    if parent_fd is not None:
        ForkServer(control, parent_fd, imported, folder).serve()
    shutil.rmtree(folder, ignore_errors=True)  # the notebook may be gone
