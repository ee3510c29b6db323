"""Ranks on this machine: the client of the fork servers, and of the lines to live ranks."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from xla_nb import linux
from xla_nb.engines.child import Child, Feed, in_memory
from xla_nb.errors import LaunchError, UsageError
from xla_nb.memory import OutOfMemory
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.exit_status import ending
from xla_nb.messages.orders import HostGroup, Order, Request, Turn
from xla_nb.runtimes.fit import Fit, OnWait, fit_to_machine


class LocalEngine:
    """Starts jobs through fork servers, and restarts a server that has died.

    There is one server per set of modules, which imports no others later, so that the imports of
    one runtime do not affect the processes of another.
    """

    here = True

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._live: dict[str, LiveRanks] = {}  # by the name of their run
        self._lock = threading.RLock()  # one launch at a time

    def check_hosts(self, hosts: int | None, slices: int | None) -> None:
        """Raise UsageError for more than one host."""
        for name, value in (("hosts", hosts), ("slices", slices)):
            if value not in (None, 1):
                raise UsageError(
                    f"--{name} {value} needs --on ray: this machine is one host. Add --on ray."
                )

    def warm(self, imports: tuple[str, ...]) -> _Server:
        """A server that imports these modules, or has imported them; returns at once."""
        with self._lock:
            server = self._servers.get(imports)
            if server is None or not server.child.alive:
                if server is not None:
                    server.close()
                server = self._servers[imports] = _Server(imports)
            return server

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """Fit a launch of `n` ranks to this machine. Raises XlaNbError."""
        return fit_to_machine(runtime, n, user_env, dict(os.environ))

    def start(
        self,
        request: Request,
        fit: Fit,
        parcel: int,
        waiting: OnWait,
        host_group: HostGroup | None = None,
    ) -> Feed:
        """Start a job with the modules that `fit` needs; return its events.

        `parcel` is the file of its values. Raises LaunchError if no server can be started.
        """
        order = Order(request, fit.device, fit.ranks, fit.env, host_group or HostGroup())
        with self._lock, in_memory(pickle.dumps(order)) as order_file:
            files = (parcel, order_file)
            if (turn := request.turn) is not None:
                if turn.group not in self._live:
                    raise LaunchError(NO_GROUP)
                return self._live[turn.group].hand(turn, *files)
            self._refuse_taken_chips(fit)
            if not request.lives:
                return self._start(request.run, files, fit.imports, waiting)
            control, writer = channel.pair()
            with writer:
                all_files = (*files, writer.fileno())
                try:
                    feed = self._start(request.run, all_files, fit.imports, waiting)
                except BaseException:
                    control.close()
                    raise
            child = self._servers[fit.imports].child
            self._live[request.run] = LiveRanks(control, child, fit, feed)
            return feed

    def _refuse_taken_chips(self, fit: Fit) -> None:
        """Raise LaunchError if a launch needs TPU chips that live ranks hold: a chip serves one
        process."""
        for live in self._live.values():
            if not live.feed.is_over and live.fit.device == fit.device == "TPU":
                raise LaunchError(_CHIPS_TAKEN)

    def end(self, run: str) -> None:
        """Tell the live ranks of this run that no more programs will follow."""
        with self._lock:
            live = self._live.pop(run, None)
            if live is not None:
                live.close()

    def _start(
        self, run: str, files: tuple[int, ...], imports: tuple[str, ...], waiting: OnWait
    ) -> LiveFeed:
        server = self.warm(imports)
        server.wait_until_ready(waiting)
        reader, writer = channel.pair()
        # Before the launch: if this failed for lack of a descriptor, nobody would follow the run.
        feed = LiveFeed(reader, server.child, server.why_ended)
        with writer:
            try:
                server.launch(run, writer.fileno(), *files)
            except OSError as problem:  # it has just ended
                feed.close()
                raise LaunchError(
                    f"Could not reach {_SERVER}: {problem}. Run the cell again."
                ) from None
        return feed

    def signal(self, run: str, pids: Mapping[str, Iterable[int]], number: int) -> None:
        """Send a signal to processes, also stopped ones, given by the names of their hosts."""
        for pid in (pid for host in pids.values() for pid in host):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)

    def kill(self, run: str) -> None:
        """Kill every process of a run."""
        for server in list(self._servers.values()):
            with contextlib.suppress(OSError):
                server.child.send({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """Do nothing: the ranks watch `Record.stacks_request` themselves."""

    def close(self) -> None:
        """End the servers and every run."""
        with self._lock:
            while self._live:
                self._live.popitem()[1].close()
            while self._servers:
                self._servers.popitem()[1].close()


_SERVER = "the process that starts and ends ranks"
_NO_TEMPORARY = (
    "xla_nb cannot write a temporary file: {}. Set TMPDIR to a folder that exists and has free "
    "space, and restart the kernel."
)
_CHIPS_TAKEN = (
    "Live ranks hold this machine's TPU chips, and a chip serves one process at a time. Run the "
    "cell on them (%%xla), or end them with %xla_shutdown (their variables are lost)."
)


class _Server:
    """A fork server. `ready`: a launch has seen that its modules are imported."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        names = (name for name in imports if not name.startswith("xla_nb"))
        self._package = next(names, "xla_nb").partition(".")[0]
        self.ready = False
        self._memory = OutOfMemory()
        try:  # for files of torch and multiprocessing, which would remain after a kill
            self._folder = tempfile.mkdtemp(prefix="xla_nb-")
        except OSError as problem:
            raise LaunchError(_NO_TEMPORARY.format(problem)) from None
        try:
            arguments = [list(imports), self._folder]
            self.child = Child("xla_nb.engines.forkserver", arguments, _environment())
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def wait_until_ready(self, waiting: OnWait) -> None:
        if self.ready:
            return
        began = time.monotonic()
        message = "importing the ranks' packages, once per session …"
        reply = self.child.receive(lambda: waiting(time.monotonic() - began, message))
        if reply is None:
            output = self.child.last_output()
            raise LaunchError(
                f"The process that starts the ranks {self._ending} while importing {self._package}."
                f"{f' Its last output: {output}' if output else ''}"
            )
        if not reply["ready"]:
            self.child.process.wait()
            raise LaunchError(_import_failed(reply["kind"], reply["problem"]))
        self.ready = True

    def launch(self, run: str, *fds: int) -> None:
        """Send it a run. Raises OSError if it has ended."""
        self._memory = OutOfMemory()
        self.child.send({"do": "launch", "run": run}, *fds)

    def why_ended(self) -> str:
        """How it ended, with its last output; empty if it is alive."""
        if not self.child.ended_within(1.0):
            return ""
        output = self.child.last_output() if self.child.process.returncode >= 0 else ""
        return f"{_SERVER} {self._ending}{f'. Its last output: {output}' if output else ''}"

    @functools.cached_property  # several runs ask, and each reading uses up a count
    def _ending(self) -> str:
        status = self.child.process.returncode
        return ending(status, self._memory.limit(status))

    def close(self) -> None:
        """End it; at once if it is still importing, since it has no jobs yet."""
        try:
            self.child.close(now=not self.ready and not self.child.has_news)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    env = dict(os.environ)
    env.pop("XLA_USE_SPMD", None)
    # JAX reads its variables on import; a job sets those of its launch.
    env = {name: value for name, value in env.items() if not name.startswith("JAX_")}
    env.setdefault("PJRT_DEVICE", "CPU")  # avoids a warning; each job sets its own
    # torch_tpu, if installed without libtpu, would end the interpreter on import.
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return env


def _import_failed(kind: str, problem: str) -> str:
    if kind == "ModuleNotFoundError" and "'torch" in problem:
        return (
            f"The ranks need torch_xla, which is not installed here ({problem}). Run `pip install "
            f"'xla_nb[xla]'` in the notebook's environment ({sys.executable}), then run the cell "
            "again."
        )
    fix = f"Run `{sys.executable} -c 'import torch_xla'` in a terminal to see why."
    if re.search("Cannot allocate memory|failed to map segment|^MemoryError", f"{kind} {problem}"):
        fix = linux.shortage(errno.ENOMEM)
    return f"Cannot import the ranks' packages ({kind}: {problem}). {fix}"


# ---------------------------------------------------------------- live ranks

# Programs are sent to each live rank over its own line, and followed until all ranks that run one
# have left it. Every rank gets every program, even one that it does not run: when it is free, it
# takes the values that the programs bring from the notebook, in order.

NO_GROUP = "These live ranks have ended. Start new ones: %xla_restart."
_BUSY = (
    "Rank {} is busy and has not yet read what cells on other ranks have sent since its own cell "
    "began. Wait for that cell to end."
)
_END_TIMEOUT = 5.0  # seconds to receive the end of live ranks' job: the server tidies up first


class LiveFeed(Feed):
    """The events of a job; the live ranks' programs look here for its start (`began`, and its ranks
    by number), their deaths, and its end."""

    def __init__(self, sock: socket.socket, child: Child, why: Callable[[], str]) -> None:
        super().__init__(sock, child, why)
        self.began: events.JobStarted | None = None
        self.ranks: dict[int, events.RankStarted] = {}
        self.deaths: list[events.ProcessDied] = []
        self._end: events.JobEnded | None = None
        self._ended = threading.Event()

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        for event in super().wait(seconds):
            match event:
                case events.JobStarted():
                    self.began = event
                case events.RankStarted():
                    self.ranks[event.rank] = event
                case events.ProcessDied():
                    self.deaths.append(event)
                case None | events.JobEnded() if not self.is_over:
                    self._end = event  # the writers' end, which follows, adds nothing
                    self._ended.set()
            yield event

    @property
    def is_over(self) -> bool:
        """True once the follower has received the end."""
        return self._ended.is_set()

    def why_over(self) -> str:
        """How the job, or the fork server, ended; empty if neither is known to have ended."""
        self._ended.wait(_END_TIMEOUT)
        return self.why_ended() if self._end is None else self._end.reason


class ProgramFeed(Feed):
    """The events of one program, which ends once the `ranks` that run it have left it, or died."""

    def __init__(self, child: Child, live: LiveRanks, ranks: Iterable[events.RankStarted]) -> None:
        reader, self.theirs = channel.pair()
        super().__init__(reader, child, live.feed.why_over)
        self._live, self._pids = live, {event.rank: event.pid for event in ranks}

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        if self._live.feed.is_over:  # no rank is left, so only what they have sent remains
            self.theirs.close()
        deaths = [*self._live.feed.deaths]  # before the look: what the dead had sent comes first
        is_over = False
        for event in super().wait(seconds):
            if isinstance(event, events.RankLeft):
                self._pids.pop(event.rank, None)
            elif event is not None:
                yield event
            is_over = event is None
        for death in deaths:
            if death.pid in self._pids.values():
                self._pids = {rank: pid for rank, pid in self._pids.items() if pid != death.pid}
                yield death
        if is_over:
            yield None
        elif not self._pids:
            yield events.JobEnded(status=0)

    def close(self) -> None:
        self.theirs.close()
        super().close()


class LiveRanks:
    """Live ranks of one job. `control` receives our ends of their lines, which they open
    themselves: on a TPU of several hosts only they know their numbers. `feed` has the ranks' own
    events, `fit` the resources that they got on the machine."""

    def __init__(self, control: socket.socket, child: Child, fit: Fit, feed: LiveFeed) -> None:
        self._control, self._child = control, child
        self.fit, self.feed = fit, feed
        self._lines: dict[int, socket.socket] = {}

    def hand(self, turn: Turn, parcel: int, order: int) -> ProgramFeed:
        """Give them a program, as files; return its events. Raises LaunchError."""
        self._accept_lines()
        began = self.feed.began
        if began is None or self.feed.is_over:
            raise LaunchError(NO_GROUP)
        ranks = tuple(self.feed.ranks[n] for n in sorted(self._lines) if turn.is_for(n))
        program = ProgramFeed(self._child, self, ranks)
        try:
            started = replace(began, ranks=len(ranks), live=ranks, at=time.time())
            Sender(program.theirs).send(started)
            for number in sorted(self._lines, key=turn.is_for):  # first those not running it
                self._send_files(number, program.theirs.fileno(), parcel, order)
        except BaseException:
            program.close()
            raise
        return program

    def _send_files(self, number: int, *files: int) -> None:
        try:
            socket.send_fds(self._lines[number], [b"go"], files)
        except (BrokenPipeError, ConnectionResetError):  # its death is or will be reported
            return
        except OSError as problem:
            raise LaunchError(f"{_BUSY.format(number)} ({problem})") from None

    def _accept_lines(self) -> None:
        """Accept the lines that ranks have opened, which they do before they report their start."""
        while channel.ready(self._control, 0):
            message, fds = channel.take(self._control, 64, 1)
            if not message:
                return
            line = self._lines[int(message)] = socket.socket(fileno=fds[0])
            line.setblocking(False)

    def close(self) -> None:
        """Close the lines: no more programs will follow."""
        with contextlib.suppress(OSError):
            self._accept_lines()
        for sock in [self._control, *self._lines.values()]:
            with contextlib.suppress(OSError):  # they have ended
                sock.shutdown(socket.SHUT_RDWR)  # a process forked here may hold a copy
            sock.close()
