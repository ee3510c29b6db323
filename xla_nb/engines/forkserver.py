"""The fork server: a clean process that has imported the ranks' packages and only forks jobs.

It runs no user code, touches no device and starts no thread, because forks of a process that has
done so can hang. When its control socket closes, it ends with everything it started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xla_nb.engines.scratch import Scratch, keep_processes_in
from xla_nb.linux import adopt_orphans, children, die_with_parent, name_process
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.events import JobEnded
from xla_nb.record import output

#: Modules of every job and rank, whatever their runtime.
ALWAYS = ("torch.utils.data", "torch.optim", "xla_nb.rank.job")


@dataclass
class _Job:
    run: str
    sender: Sender


@dataclass
class _Spare:
    """A job forked ahead of need; it waits for the three descriptors of a run."""

    pid: int
    orders: socket.socket


class ForkServer:
    """Forks jobs on requests from one control socket."""

    def __init__(
        self, control: socket.socket, imported: Mapping[str, str], scratch: Scratch
    ) -> None:
        self._control = control
        self._imported = imported
        self._scratch = scratch
        self._jobs: dict[int, _Job] = {}
        self._spare: _Spare | None = None
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until the notebook's end of the control socket is closed."""
        wake, alarm = socket.socketpair()
        wake.setblocking(False)
        alarm.setblocking(False)
        signal.set_wakeup_fd(alarm.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        self._spare = self._fork_spare()
        serving = True
        while serving:
            for key, _ in self._selector.select():
                if key.fileobj is wake:
                    with contextlib.suppress(BlockingIOError):
                        wake.recv(4096)
                    self._reap()
                else:
                    serving = self._request()
        for pid in list(self._jobs):
            self._kill(pid)
            os.waitpid(pid, 0)
        self._jobs.clear()
        self._spare = None
        self._end_orphans()

    def _request(self) -> bool:
        """Handle one request; False if the control socket was closed."""
        message, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 4)
        if not message:
            return False
        request = json.loads(message)
        if request["do"] == "launch":
            self._control.send(b'{"taken": true}')
            self._launch(request["run"], *fds)
        elif request["do"] == "kill":
            for pid in [pid for pid, job in self._jobs.items() if job.run == request["run"]]:
                self._kill(pid)
        return True

    def _launch(self, run: str, events_fd: int, parcel_fd: int, order_fd: int) -> None:
        sender = Sender(socket.socket(fileno=events_fd))
        handed_over = False
        while not handed_over:
            spare = self._spare or self._fork_spare()
            self._spare = None
            with spare.orders, contextlib.suppress(BrokenPipeError):  # it was killed
                socket.send_fds(spare.orders, [b"go"], [events_fd, parcel_fd, order_fd])
                handed_over = True
        os.close(parcel_fd)
        os.close(order_fd)
        self._jobs[spare.pid] = _Job(run, sender)

    def _fork_spare(self) -> _Spare:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be_a_job(theirs)
        theirs.close()
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too: whichever is first
        return _Spare(pid, ours)

    def _be_a_job(self, orders: socket.socket) -> NoReturn:
        status = 1
        try:
            os.setpgid(0, 0)  # a group of its own, so that all of it can be killed at once
            die_with_parent()
            adopt_orphans()
            name_process("xla_nb-spare")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._selector.close()
            self._control.close()
            for job in self._jobs.values():
                job.sender.sock.close()
            message, fds, _, _ = socket.recv_fds(orders, 16, 3)
            if message:
                keep_processes_in(self._scratch.of_job(os.getpid()))
                run = importlib.import_module("xla_nb.rank.job").run
                status = run(Sender(socket.socket(fileno=fds[0])), *fds[1:], self._imported)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while (ended := _ended_child()) is not None:
            pid, status = ended
            job = self._jobs.pop(pid, None)
            if job is not None:
                self._kill(pid)  # processes that the ranks left in their group
                self._end_orphans()
                self._scratch.remove_of_job(pid)
                job.sender.send(JobEnded(status=status))
                job.sender.sock.close()
        if self._spare is None and not self._jobs:
            self._spare = self._fork_spare()

    def _end_orphans(self) -> None:
        """End the processes we inherited from a job: it adopts its ranks' orphans, then we do."""
        ours = {*self._jobs, self._spare.pid if self._spare else None}
        while orphans := [pid for pid in children() if pid not in ours]:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _ended_child() -> tuple[int, int] | None:
    """Reap one ended child; returns its pid and exit status (negative for a signal)."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def main(fd: int, imports: list[str], folder: str) -> None:
    """Entry point of the process: import, report that it is ready or why not, serve. `folder` is
    for its temporary files."""
    control = socket.socket(fileno=fd)
    scratch = Scratch(Path(folder))
    output.install()
    # The thread that started us may have blocked signals, as Ray's do; ranks need them.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    name_process("xla_nb-server")
    # Python 3.12+ warns about forking with threads; the only other ones are OpenBLAS's, idle.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    before = dict(os.environ)
    answer: dict[str, Any]
    # Exit normally on SIGTERM, by which the notebook ends a server that is still importing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with scratch.taking_in():  # the folder that torch makes when it is imported
            for name in (*imports, *ALWAYS):
                importlib.import_module(name)
        # torch_xla's import calls basicConfig, which would make the user's own call a no-op.
        logging.getLogger().handlers.clear()
        answer = {"ready": True}
    except BaseException as problem:
        answer = {"ready": False, "kind": type(problem).__name__, "problem": str(problem)}
    with contextlib.suppress(BrokenPipeError):
        control.send(json.dumps(answer).encode())
    if not answer["ready"]:
        return
    imported = {k: v for k, v in os.environ.items() if before.get(k) != v}
    gc.collect()
    gc.freeze()  # so that collections in the children do not copy our pages
    ForkServer(control, imported, scratch).serve()
    scratch.remove()  # the notebook may be gone
