"""Ranks on this machine: the client of the fork server.

The rule: nothing listens. The server inherits one socket pair; closing our end, however that
comes about, ends it and everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from xla_nb import wire
from xla_nb.errors import LaunchError

# xla_nb is the one that runs here, wherever it lies; the rest of its folder comes in its turn.
_BOOT = """
import json, sys
home, *sys.path[:] = json.loads(sys.argv[2])
sys.path.insert(0, home)
import xla_nb
del sys.path[0]
from xla_nb.engines import forkserver
forkserver.main(int(sys.argv[1]), json.loads(sys.argv[3]))
"""


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
        if server is None or not server.alive:
            server = self._servers[imports] = _Server(imports)
        return server

    def start(
        self, run: str, parcel: int, imports: Sequence[str], waiting: Callable[[float], None]
    ) -> socket.socket:
        """Start a job whose processes have these modules; gives the socket its events come from.

        `waiting` is called every 0.1 s, with the seconds so far, until the server is warm.
        Raises LaunchError when it cannot be had.
        """
        with self._lock:
            return self._start(run, parcel, tuple(imports), waiting)

    def _start(
        self, run: str, parcel: int, imports: tuple[str, ...], waiting: Callable[[float], None]
    ) -> socket.socket:
        for attempt in (1, 2):
            server = self._warm(imports)
            server.wait_until_ready(waiting)
            ours, theirs = wire.pair()
            try:
                server.send({"do": "launch", "run": run}, theirs.fileno(), parcel)
                server.wait_until_taken()
            except OSError as problem:  # it died since the last launch
                ours.close()
                # Its socket closes before it is a zombie: asking whether it lives is too early.
                server.close()
                del self._servers[imports]
                if attempt == 2:
                    raise LaunchError(f"the fork server cannot be reached: {problem}") from None
            else:
                return ours
            finally:
                theirs.close()
        raise AssertionError("the second attempt returns or raises")

    def interrupt(self, pids: Iterable[int]) -> None:
        """Ask ranks to stop at the next line of Python."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)

    def kill(self, run: str) -> None:
        """End every process of a run now."""
        for server in list(self._servers.values()):
            with contextlib.suppress(OSError):
                server.send({"do": "kill", "run": run})

    def close(self) -> None:
        """End the servers, and with them every run."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()

    def pid(self, imports: Sequence[str]) -> int | None:
        """The process id of the fork server with these modules, None where there is none."""
        server = self._servers.get(tuple(imports))
        return None if server is None else server.process.pid


class _Server:
    def __init__(self, imports: tuple[str, ...]) -> None:
        self._what = imports[0].partition(".")[0]
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # closed by close()
        self._control, theirs = wire.pair()
        self._ready = False
        # Without the notebook's own folder: a local random.py is not for torch to import.
        path = [entry for entry in sys.path if entry not in ("", str(Path.cwd()))]
        path.insert(0, str(Path(__file__).parents[2]))
        arguments = [json.dumps(path), json.dumps(imports)]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=_environment(),
                cwd="/",
                start_new_session=True,  # the notebook's Ctrl-C is not for it
            )
        except OSError as problem:
            self._control.close()
            raise LaunchError(f"the fork server could not be started: {problem}") from None
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self, waiting: Callable[[float], None]) -> None:
        if not self._ready:
            said = self._answer(waiting)
            if not said["ready"]:
                self.process.wait()
                raise LaunchError(_what_to_install(said["kind"], said["problem"]))
            self._ready = True

    def send(self, request: dict[str, str], *fds: int) -> None:
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)

    def wait_until_taken(self) -> None:
        """The server answers a launch before it forks; silence is that of a dead one."""
        if not self._control.recv(1 << 10):
            self.process.wait()
            raise ConnectionResetError("it ended")

    def close(self) -> None:
        importing = not self._ready and not wire.ready(self._control, 0)
        self._control.close()
        if importing:  # which it would finish first; it has no jobs
            self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._words.close()

    def _answer(self, waiting: Callable[[float], None]) -> dict[str, Any]:
        """What the server says next."""
        began = time.monotonic()
        while not wire.ready(self._control, 0.1):
            waiting(time.monotonic() - began)
        answer = self._control.recv(1 << 16)
        if not answer:
            self.process.wait()
            raise LaunchError(
                f"the process that starts the ranks ended with status {self.process.returncode} "
                f"while it imported {self._what}. Its last words: {self._last_words()}"
            )
        said: dict[str, Any] = json.loads(answer)
        return said

    def _last_words(self) -> str:
        self._words.seek(0)
        return self._words.read().decode(errors="replace").strip()[-2000:] or "none"


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
