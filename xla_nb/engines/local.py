"""Ranks on this machine: the client of the fork servers.

The rule: a job is started by a server that has imported what it needs, and by nothing else.
"""

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

from xla_nb.engines.child import Child, in_memory
from xla_nb.errors import LaunchError
from xla_nb.protocol import channel
from xla_nb.protocol.order import Order
from xla_nb.runtimes.fit import Fit, OnWait, fit_to_machine


class LocalEngine:
    """Starts jobs through fork servers, and starts a server again when it died.

    There is one for each set of modules that jobs need, and it imports nothing later: what one
    runtime's imports do to a process is not another's.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._lock = threading.RLock()  # one launch at a time talks to the servers

    def warm(self, imports: Sequence[str]) -> None:
        """Have a server import these modules meanwhile; returns at once."""
        with self._lock:
            self._warm(tuple(imports))

    def _warm(self, imports: tuple[str, ...]) -> _Server:
        server = self._servers.get(imports)
        if server is None or not server.child.alive:
            server = self._servers[imports] = _Server(imports)
        return server

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """What a launch of `n` ranks gets from this machine. Raises XlaNbError."""
        return fit_to_machine(runtime, n, user_env, dict(os.environ))

    def start(
        self, order: Order, parcel: int, imports: Sequence[str], waiting: OnWait
    ) -> socket.socket:
        """Start a job whose processes have these modules; gives the socket its events come from.

        `parcel` is the file of its values. Raises LaunchError when the server cannot be had.
        """
        with self._lock, in_memory(pickle.dumps(order)) as told:
            return self._start(order.run, (parcel, told), tuple(imports), waiting)

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
                    raise LaunchError(f"the fork server cannot be reached: {problem}") from None
            else:
                return ours
            finally:
                theirs.close()
        raise AssertionError("the second attempt returns or raises")

    def interrupt(self, run: str, pids: Mapping[str, Iterable[int]]) -> None:
        """Ask ranks, here by their host's name, to stop at the next line of Python."""
        for pid in (pid for host in pids.values() for pid in host):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)

    def kill(self, run: str) -> None:
        """End every process of a run now."""
        for server in list(self._servers.values()):
            with contextlib.suppress(OSError):
                server.child.send({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """The ranks see by themselves that they are asked where they are."""

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """Nothing: a run's files are in its record."""
        return None

    def why_lost(self) -> str:
        """Nothing: what a fork server's end did to its ranks is told of each."""
        return ""

    def close(self) -> None:
        """End the servers, and with them every run."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()

    def pid(self, imports: Sequence[str]) -> int | None:
        """The process id of the fork server with these modules, None where there is none."""
        server = self._servers.get(tuple(imports))
        return None if server is None else server.child.process.pid


class _Server:
    """A fork server, and whether it has said that it is ready."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self._what = imports[0].partition(".")[0]
        self._ready = False
        self.child = Child("xla_nb.engines.forkserver", [list(imports)], _environment())

    def wait_until_ready(self, waiting: OnWait) -> None:
        if self._ready:
            return
        began = time.monotonic()
        what = "importing what the ranks need, once for this session …"
        said = self.child.receive(lambda: waiting(time.monotonic() - began, what))
        if said is None:
            raise LaunchError(
                "the process that starts the ranks ended with status "
                f"{self.child.process.returncode} while it imported {self._what}. Its last "
                f"words: {self.child.last_words() or 'none'}"
            )
        if not said["ready"]:
            self.child.process.wait()
            raise LaunchError(_what_to_install(said["kind"], said["problem"]))
        self._ready = True

    def wait_until_taken(self) -> None:
        """The server answers a launch before it forks; silence is that of a dead one."""
        if self.child.receive() is None:
            raise ConnectionResetError("it ended")

    def close(self) -> None:
        """One that still imports would do that first; it has no jobs yet."""
        self.child.close(now=not self._ready and not self.child.has_news)


def _environment() -> dict[str, str]:
    env = dict(os.environ)
    env.pop("XLA_USE_SPMD", None)
    # JAX reads its variables when it is imported; a job takes on those of its own launch.
    env = {name: value for name, value in env.items() if not name.startswith("JAX_")}
    env.setdefault("PJRT_DEVICE", "CPU")  # only stops a warning: each job sets its own
    # torch_tpu, where it is installed without libtpu, would end the interpreter on import.
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return env


def _what_to_install(kind: str, problem: str) -> str:
    how = (
        "What to do: `pip install 'xla_nb[xla]'` into the notebook's environment "
        f"({sys.executable}), then run the cell again."
    )
    if kind == "ModuleNotFoundError" and "'torch" in problem:
        return f"the ranks need torch_xla, which is not installed here ({problem}). {how}"
    return f"what the ranks need cannot be imported here ({kind}: {problem}). {how}"
