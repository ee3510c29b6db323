"""Kernels and their fork servers, forked from a process that has imported torch_xla.

The import takes seven seconds of CPU, and each kernel of the tests would need it at least once. A
forked kernel (`Notebook(warm=…)`) is like one whose first cell was `import torch_xla`. A forked
fork server is like any other, except that its imports take no time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

ROOT = Path(__file__).parents[2]
LAUNCH = "jupyter_client.provisioning.local_provisioner.launch_kernel"
KERNEL = "ipykernel_launcher"
SERVER = "xla_nb.engines.forkserver"
TORCH_XLA = (
    "torch_xla.core.xla_model",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.xla_multiprocessing",
)
#: Start-up code of a kernel in a new Python process whose fork servers are forked.
BOOT = """
import sys
sys.path.insert(0, {root!r})
from tests.support import warm
sys.path.remove({root!r})
for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
    del sys.modules[name]
warm.fork_servers_from({path!r})
warm.run_kernel(sys.argv[1:])
"""
LARGEST = 1 << 18
_PR_SET_PDEATHSIG = 1


class Forked:
    """A process forked by another, with the interface of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, path: str, request: dict[str, Any], *fds: int) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.connect(path)
        socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
        self.pid = int(self._sock.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._sock], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            status = self._sock.recv(64)  # empty if the process that waits for it was killed
            self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -9
            self._sock.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


# ---------------------------------------------------------------- in a test


class Warm:
    """The process that forks them. It imports torch_xla on the first request. The caller closes
    it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="xla-nb-")
        self._path = str(Path(self._folder.name) / "warm")
        # Unbuffered, because `xm.master_print` keeps the stdout of the time of its import.
        command = [sys.executable, "-u", "-m", __name__, self._path]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._server.stdout is not None
        self._server.stdout.readline()  # wait until it listens

    def command(self) -> list[str]:
        """The command for a kernel in a new Python, instead of `python -m ipykernel_launcher`."""
        return [sys.executable, "-c", BOOT.format(root=str(ROOT), path=self._path)]

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Have jupyter_client fork the kernels that it starts in this context."""
        with mock.patch(LAUNCH, self._launch):
            yield

    def _launch(
        self, command: list[str], *, env: dict[str, str], cwd: str | None = None, **_: Any
    ) -> Forked:
        assert command[:3] == [sys.executable, "-m", KERNEL], command
        about = {"arguments": command[3:], "env": env, "cwd": cwd or str(Path.cwd())}
        return Forked(self._path, {"do": "kernel", **about})

    def close(self) -> None:
        with self._server as server:
            assert server.stdin is not None
            server.stdin.close()
        self._folder.cleanup()


# ---------------------------------------------------------------- in a kernel


def fork_servers_from(path: str) -> None:
    """Have this process fork its fork servers for torch_xla instead of starting them."""
    child = importlib.import_module("xla_nb.engines.child")
    shown = {name: getattr(subprocess, name) for name in dir(subprocess)}
    child.subprocess = types.SimpleNamespace(**shown | {"Popen": functools.partial(_popen, path)})


def _popen(path: str, command: list[str], **options: Any) -> Forked | subprocess.Popen[bytes]:
    control, search, module, arguments, parent = command[command.index("-c") + 2 :]
    if module != SERVER or not {*TORCH_XLA} <= {*json.loads(arguments)[0]}:
        return subprocess.Popen(command, **options)
    about = {"path": json.loads(search), "arguments": json.loads(arguments), "parent": int(parent)}
    about["env"] = dict(options["env"])
    return Forked(path, {"do": "server", **about}, int(control), options["stdout"].fileno())


def run_kernel(arguments: list[str]) -> NoReturn:
    sys.argv[:] = ["", *arguments]
    status = 1
    try:
        runpy.run_module(KERNEL, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.exit(status)


# ---------------------------------------------------------------- the process that forks


def _serve(path: str) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    print("listens", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for the keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends when the tests close the pipe
    given, sets = dict(os.environ), dict[str, str]()
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        asked, _ = listening.accept()
        for name in TORCH_XLA:
            importlib.import_module(name)
        sets = sets or {n: value for n, value in os.environ.items() if given.get(n) != value}
        if os.fork() == 0:
            listening.close()
            _fork(asked, path, sets)
            return
        asked.close()


def _fork(asked: socket.socket, path: str, sets: dict[str, str]) -> None:
    """Start the requested process, and report its exit status."""
    message, fds, _, _ = socket.recv_fds(asked, LARGEST, 2)
    request, keeper = json.loads(message), os.getpid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # its child ends by itself
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    begin, told = os.pipe()
    if pid := os.fork():
        os.close(told)
        os.read(begin, 1)  # the child has its own session, whose group can be signalled
        asked.send(str(pid).encode())
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):
            asked.send(str(os.waitpid(pid, 0)[1]).encode())
        os._exit(0)
    os.setsid()
    os.close(told)
    os.close(begin)
    asked.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    tempfile.tempdir = None
    random.seed()
    sys.modules["numpy"].random.seed()
    (_become_kernel if request["do"] == "kernel" else _become_server)(
        request, fds, path, sets, keeper
    )


def _become_kernel(
    request: dict[str, Any], _: list[int], path: str, sets: dict[str, str], keeper: int
) -> NoReturn:
    os.dup2(2, 1)
    os.environ.update(sets | request["env"] | {"JPY_PARENT_PID": str(keeper)})
    os.chdir(request["cwd"])
    fork_servers_from(path)
    run_kernel([*request["arguments"], f"--IPKernelApp.parent_handle={keeper}"])


def _become_server(
    request: dict[str, Any], fds: list[int], _: str, sets: dict[str, str], __: int
) -> None:
    control, output = fds
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(request["env"])
    os.chdir("/")
    sys.path[:], sys.argv[:] = request["path"], ["-c"]
    importlib.import_module("xla_nb")  # the version under test
    del sys.path[0]
    server: Any = importlib.import_module(SERVER)

    def imported(name: str) -> types.ModuleType:
        """Import a module, and set the variables that its import sets."""
        if name in TORCH_XLA:
            os.environ.update({n: sets[n] for n in sets.keys() - os.environ.keys()})
            sys.modules["torch_xla"]._setup_xla_flags()
        return importlib.import_module(name)

    server.importlib = types.SimpleNamespace(import_module=imported)
    server.linux.watch_parent = os.pidfd_open  # the kernel is not its parent
    server.main(control, request["parent"], *request["arguments"])
    sys.exit()


if __name__ == "__main__":
    _serve(sys.argv[1])
