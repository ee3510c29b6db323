"""Kernels that are forked from a process which has imported torch_xla.

The import takes seven seconds of CPU, and each kernel that tests have for themselves would do it
again. Such a kernel is as one whose first cell was `import torch_xla`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

LAUNCH = "jupyter_client.provisioning.local_provisioner.launch_kernel"
MODULE = "ipykernel_launcher"


class Forked:
    """A process that another one has forked, as jupyter_client uses a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if self._fd < 0 or select.select([self._fd], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if self._fd >= 0:
            select.select([self._fd], [], [], timeout)
            os.close(self._fd)
            self._fd = -1
        return 0

    def send_signal(self, number: int) -> None:
        if self._fd >= 0:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WarmKernels:
    """The process that forks them. The caller closes it."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", __name__]
        self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Kernels that jupyter_client starts meanwhile are forked."""
        with mock.patch(LAUNCH, self._launch):
            yield

    def _launch(
        self, command: list[str], *, env: dict[str, str], cwd: str | None = None, **_: Any
    ) -> Forked:
        assert command[:3] == [sys.executable, "-m", MODULE], command
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([command[3:], env, cwd or str(Path.cwd())]), file=self._server.stdin)
        self._server.stdin.flush()
        return Forked(int(self._server.stdout.readline()))

    def close(self) -> None:
        with self._server as server:
            assert server.stdin is not None
            server.stdin.close()


def _serve() -> None:
    given = dict(os.environ)
    import ipykernel.kernelapp  # noqa: F401
    import torch_xla.core.xla_model
    import torch_xla.distributed.parallel_loader
    import torch_xla.distributed.xla_multiprocessing  # noqa: F401

    sets = {name: value for name, value in os.environ.items() if name not in given}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the kernels
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' process closes the pipe
    for line in sys.stdin:
        if os.fork() == 0:
            _become_kernel(*json.loads(line), sets)


def _become_kernel(
    arguments: list[str], env: dict[str, str], cwd: str, sets: dict[str, str]
) -> None:
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()  # before anybody knows of it, and signals its group
    print(os.getpid(), flush=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(sets | env | {"JPY_PARENT_PID": str(parent)})
    # ipykernel has read it already, and ends with that process.
    arguments = [*arguments, f"--IPKernelApp.parent_handle={parent}"]
    os.chdir(cwd)
    tempfile.tempdir = None
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.argv[1:] = arguments
    status = 1
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.exit(status)


if __name__ == "__main__":
    _serve()
