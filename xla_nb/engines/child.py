"""A helper process of the notebook, driven over an inherited socket.

Nothing listens on a port: the process inherits one end of a socket pair. It ends, with everything
it started, when the other end is closed or this process ends. Each watches the other process rather
than the socket, which processes forked by the user's code may keep open.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xla_nb import linux
from xla_nb.errors import LaunchError
from xla_nb.messages import channel
from xla_nb.messages.events import Event

# Import the xla_nb that runs here first; other modules of its folder keep their place on the path.
_BOOT = """
import importlib, json, sys
home, *sys.path[:] = json.loads(sys.argv[2])
sys.path.insert(0, home)
import xla_nb
del sys.path[0]
control, parent = int(sys.argv[1]), int(sys.argv[5])
importlib.import_module(sys.argv[3]).main(control, parent, *json.loads(sys.argv[4]))
"""
_LARGEST = 1 << 16  # bytes of one message
_TAIL = 8000  # bytes read from the end of a child's output


class Child:
    """A process that runs `module.main(fd, parent, *arguments)`; `parent` is the pid of this one.
    The caller closes it.

    Raises LaunchError if it cannot be started.
    """

    def __init__(self, module: str, arguments: list[Any], env: Mapping[str, str]) -> None:
        self._output = os.fdopen(os.memfd_create("xla_nb-output", os.MFD_CLOEXEC), "w+b")
        self._control, child_end = channel.pair()
        path = [str(Path(__file__).parents[2]), *_search_path()]
        command = [str(child_end.fileno()), json.dumps(path), module, json.dumps(arguments)]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *_interpreter_options(), "-c", _BOOT, *command, str(os.getpid())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=env,
                cwd="/",
                # The notebook's Ctrl-C does not reach it, and `sweep` finds its descendants.
                start_new_session=True,
            )
        except OSError as problem:
            self._control.close()
            self._output.close()
            advice = linux.shortage(problem.errno)
            raise LaunchError(f"Could not start an xla_nb process: {problem}. {advice}") from None
        finally:
            child_end.close()
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_news(self) -> bool:
        """True if it has sent a message or ended."""
        return channel.ready(self._control, 0)

    def ended_within(self, seconds: float) -> bool:
        """True if it ends within so many seconds: its sockets close before it can be reaped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.alive

    def send(self, request: Mapping[str, Any], *fds: int) -> None:
        """Send it a request and file descriptors; if stopped (SIGSTOP), it is continued first.
        Raises OSError if it has ended."""
        signal_to(self.pidfd, signal.SIGCONT)
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)

    def receive(self, waiting: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """Its next message, None if it has ended; `waiting` is called every 0.1 s meanwhile."""
        while not channel.ready(self._control, 0.1, self.pidfd):
            waiting()
        # A process that it has forked may hold the other end of the socket.
        data = channel.take(self._control, _LARGEST)[0] if self.has_news else b""
        if not data:
            # Its socket closes before it is a zombie: poll() could still report it as alive.
            self.process.wait()
            return None
        message: dict[str, Any] = json.loads(data)
        return message

    def sweep(self) -> None:
        """End every process that it started and that is still in its session, once it has ended
        itself."""
        linux.end_all(lambda: linux.in_session(self.process.pid))

    def last_output(self) -> str:
        """The end of its output; empty once it is closed."""
        if self._output.closed:
            return ""
        fd = self._output.fileno()  # not read(): the process shares the file's offset
        end = os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
        return end.decode(errors="replace").strip()[-2000:]

    def close(self, *, now: bool = False) -> None:
        """End it; with `now` even if it is busy."""
        self._control.shutdown(socket.SHUT_RDWR)  # a process forked here may hold a copy
        self._control.close()
        signal_to(self.pidfd, signal.SIGCONT)
        if now:
            signal_to(self.pidfd, signal.SIGTERM)
        if not self.ended_within(10):
            self.process.kill()
            self.process.wait()
        if self.process.returncode < 0:
            self.sweep()
        os.close(self.pidfd)
        self._output.close()


class Feed:
    """The events of a run, and the child that looks after its ranks; closed after use.

    It takes ownership of `sock`, and outlives the closing of the child. `why_ended` returns why
    the events of an unfinished run stopped; empty if unknown.
    """

    def __init__(self, sock: socket.socket, child: Child, why: Callable[[], str]) -> None:
        self.why_ended = why
        self._sock, self._child = sock, child
        self._pidfd = os.dup(child.pidfd)

    def wait(self, seconds: float) -> Iterator[Event | None]:
        """Wait up to so many seconds; yield the events that are ready, then None if no more will
        arrive because every sender, or the child, has ended."""
        if not channel.ready(self._sock, seconds, self._pidfd):
            return
        ended = channel.ready(self._pidfd, 0)
        if ended:  # nobody else ends the processes that it leaves, which might still write
            self._child.sweep()
        yield from channel.receive(self._sock)
        if ended:
            yield None

    def kill(self) -> None:
        """Kill the child, since otherwise nobody would end the ranks."""
        signal_to(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close its files. Calling it again does nothing."""
        if self._sock.fileno() >= 0:
            self._sock.close()
            os.close(self._pidfd)


def signal_to(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        signal.pidfd_send_signal(pidfd, number)


def _search_path() -> list[str]:
    """The module search path of this process without the notebook's folder, from which torch would
    import a local random.py. Python ignores entries that are not strings, such as a Path."""
    try:
        cwd = str(Path.cwd())
    except FileNotFoundError:  # it has been deleted
        cwd = ""
    return [entry for entry in sys.path if isinstance(entry, str) and entry not in ("", cwd)]


def _interpreter_options() -> list[str]:
    """This interpreter's options, as multiprocessing passes them on, except those for warnings: `-W
    error` would break the imports of a process whose warnings nobody sees."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [option for option in options if not option.startswith("-W")]


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """The descriptor of an in-memory file with this content."""
    fd = os.memfd_create("xla_nb-memory", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:  # a descriptor, not a path
            file.write(content)
        yield fd
    finally:
        os.close(fd)
