"""Ranks on this machine: the client of the fork servers."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from xla_nb.engines.base import Where
from xla_nb.engines.child import Child, in_memory, no_temporary
from xla_nb.engines.scratch import Scratch
from xla_nb.errors import LaunchError, UsageError
from xla_nb.protocol import channel
from xla_nb.protocol.order import HostGroup, Order, Request
from xla_nb.runtimes.fit import Fit, OnWait, fit_to_machine
from xla_nb.topology.slices import Seat


class LocalEngine:
    """Starts jobs through fork servers, and restarts a server that has died.

    There is one server for each set of modules, and it imports no others later, so that a runtime's
    imports do not affect the processes of another.
    """

    here = True

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._lock = threading.RLock()  # one launch at a time

    def engine(self, where: Where) -> LocalEngine:
        """This engine. Raises UsageError for more than one host."""
        for name, value in (("hosts", where.hosts), ("slices", where.slices)):
            if value not in (None, 1):
                raise UsageError(
                    f"--{name} {value} needs --on ray: this machine is one host. Add --on ray, or "
                    f"draw the hosts with %xla_topology --dry-run --{name} {value}."
                )
        return self

    def warm(self, imports: Sequence[str]) -> None:
        """Start a server that imports these modules; returns at once."""
        with self._lock:
            self._warm(tuple(imports))

    def _warm(self, imports: tuple[str, ...]) -> _Server:
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
    ) -> socket.socket:
        """Start a job with the modules that `fit` needs; returns the socket of its events.

        `parcel` is the file of its values. Raises LaunchError if no server can be started.
        """
        order = Order(request, fit.device, fit.ranks, fit.env, host_group or HostGroup())
        with self._lock, in_memory(pickle.dumps(order)) as order_file:
            return self._start(request.run, (parcel, order_file), fit.imports, waiting)

    def _start(
        self, run: str, files: tuple[int, int], imports: tuple[str, ...], waiting: OnWait
    ) -> socket.socket:
        for attempt in (1, 2):
            server = self._warm(imports)
            server.wait_until_ready(waiting)
            ours, theirs = channel.pair()
            try:
                server.child.send({"do": "launch", "run": run}, theirs.fileno(), *files)
                server.wait_until_taken()
            except OSError as problem:  # it died since the last launch
                ours.close()
                server.close()
                del self._servers[imports]
                if attempt == 2:
                    raise LaunchError(
                        f"Could not reach the fork server: {problem}. Run the cell again."
                    ) from None
            else:
                return ours
            finally:
                theirs.close()
        raise AssertionError("the second attempt returns or raises")

    def interrupt(self, run: str, pids: Mapping[str, Iterable[int]]) -> None:
        """Stop ranks, given by their hosts' names, at their next line of Python."""
        for pid in (pid for host in pids.values() for pid in host):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)

    def kill(self, run: str) -> None:
        """Kill every process of a run now."""
        for server in list(self._servers.values()):
            with contextlib.suppress(OSError):
                server.child.send({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """Nothing to do: the ranks watch `Record.stacks_request` themselves."""

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """None: the record has all of a run's files."""
        return None

    def look(self, waiting: OnWait) -> list[Seat]:
        """None: ranks are on this machine."""
        return []

    def why_lost(self) -> str:
        """Empty: the end of a fork server is reported by the ends of its ranks."""
        return ""

    def close(self) -> None:
        """End the servers and every run."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()

    def pid(self, imports: Sequence[str]) -> int | None:
        """The process id of the fork server with these modules, None if there is none."""
        server = self._servers.get(tuple(imports))
        return None if server is None else server.child.process.pid


def provider() -> LocalEngine:
    """The one engine of this process."""
    return LocalEngine()


class _Server:
    """A fork server, and whether it is ready."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self._package = imports[0].partition(".")[0]
        self._ready = False
        try:
            self._scratch = Scratch.create()
        except OSError as problem:
            raise LaunchError(no_temporary(problem)) from None
        arguments = [list(imports), str(self._scratch.path)]
        try:
            self.child = Child("xla_nb.engines.forkserver", arguments, _environment())
        except BaseException:
            self._scratch.remove()
            raise

    def wait_until_ready(self, waiting: OnWait) -> None:
        if self._ready:
            return
        began = time.monotonic()
        what = "importing the ranks' packages, once per session …"
        reply = self.child.receive(lambda: waiting(time.monotonic() - began, what))
        if reply is None:
            raise LaunchError(
                "The process that starts the ranks ended with status "
                f"{self.child.process.returncode} while importing {self._package}. Its last "
                f"output: {self.child.last_output() or 'none'}"
            )
        if not reply["ready"]:
            self.child.process.wait()
            raise LaunchError(_import_failed(reply["kind"], reply["problem"]))
        self._ready = True

    def wait_until_taken(self) -> None:
        """Wait for the reply that the server sends before it forks; a dead one sends none."""
        if self.child.receive() is None:
            raise ConnectionResetError("it ended")

    def close(self) -> None:
        """End it; at once if it is still importing, since it has no jobs yet."""
        try:
            self.child.close(now=not self._ready and not self.child.has_news)
        finally:
            self._scratch.remove()


def _environment() -> dict[str, str]:
    env = dict(os.environ)
    env.pop("XLA_USE_SPMD", None)
    # JAX reads its variables on import; a job sets those of its own launch.
    env = {name: value for name, value in env.items() if not name.startswith("JAX_")}
    env.setdefault("PJRT_DEVICE", "CPU")  # avoids a warning; each job sets its own
    # torch_tpu, if installed without libtpu, would end the interpreter on import.
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return env


#: What the dynamic linker and the system say.
_NO_MEMORY = ("Cannot allocate memory", "failed to map segment")


def _import_failed(kind: str, problem: str) -> str:
    fix = (
        "Run `pip install 'xla_nb[xla]'` in the notebook's environment "
        f"({sys.executable}), then run the cell again."
    )
    if kind == "ModuleNotFoundError" and "'torch" in problem:
        return f"The ranks need torch_xla, which is not installed here ({problem}). {fix}"
    if kind == "MemoryError" or any(sign in problem for sign in _NO_MEMORY):
        return (
            f"The ranks' packages do not fit into memory here ({kind}: {problem}). Free memory, or "
            "raise its limit (`ulimit -v`, the container's), then run the cell again."
        )
    return f"The ranks' packages cannot be imported here ({kind}: {problem}). {fix}"
