"""Ranks on this machine: the client of the fork servers."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping

from xla_nb import linux
from xla_nb.engines.child import Child, Feed, in_memory
from xla_nb.engines.live_lines import NO_GROUP, LiveFeed, LiveRanks
from xla_nb.errors import LaunchError, UsageError
from xla_nb.memory import OutOfMemory
from xla_nb.messages import channel
from xla_nb.messages.orders import HostGroup, Order, Request
from xla_nb.runtimes.fit import Fit, OnWait, fit_to_machine
from xla_nb.wording import ending


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

    @property
    def importing(self) -> bool:
        """True if a server may still be importing: no launch has seen it ready."""
        return any(not server.ready for server in self._servers.values())

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
