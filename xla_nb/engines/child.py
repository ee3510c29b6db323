"""A helper process of the notebook's, driven over an inherited socket.

Nothing listens: the process inherits one end of a socket pair. Closing the other end, for whatever
reason, ends the process and everything it started.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from xla_nb.errors import LaunchError
from xla_nb.protocol import channel

# Import the xla_nb that runs here first; the rest of its folder keeps its turn on the path.
_BOOT = """
import importlib, json, sys
home, *sys.path[:] = json.loads(sys.argv[2])
sys.path.insert(0, home)
import xla_nb
del sys.path[0]
importlib.import_module(sys.argv[3]).main(int(sys.argv[1]), *json.loads(sys.argv[4]))
"""
_LARGEST = 1 << 16  # bytes of one message
_TAIL = 8000  # bytes read from the end of its output


class Child:
    """`module.main(fd, *arguments)` in a process of its own. The caller closes it.

    Raises LaunchError if it cannot be started.
    """

    def __init__(self, module: str, arguments: list[Any], env: Mapping[str, str]) -> None:
        self._output = _temporary_file()
        self._control, theirs = channel.pair()
        path = [str(Path(__file__).parents[2]), *_search_path()]
        command = [str(theirs.fileno()), json.dumps(path), module, json.dumps(arguments)]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *_options(), "-c", _BOOT, *command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=dict(env),
                cwd="/",
                start_new_session=True,  # the notebook's Ctrl-C does not reach it
            )
        except OSError as problem:
            self._control.close()
            self._output.close()
            raise LaunchError(f"Could not start a process of xla_nb: {problem}") from None
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_news(self) -> bool:
        """Whether it has sent a message or ended."""
        return channel.ready(self._control, 0)

    def ended_within(self, seconds: float) -> bool:
        """Whether it ends within so many seconds: its sockets close before it can be reaped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.alive

    def send(self, request: Mapping[str, Any], *fds: int) -> None:
        """Send it a request and file descriptors. Raises OSError if it has ended."""
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)

    def receive(self, waiting: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """Its next message, None if it has ended; `waiting` is called every 0.1 s until then."""
        while not channel.ready(self._control, 0.1):
            waiting()
        data = self._control.recv(_LARGEST)
        if not data:
            # Its socket closes before it is a zombie: poll() could still say that it lives.
            self.process.wait()
            return None
        message: dict[str, Any] = json.loads(data)
        return message

    def last_output(self) -> str:
        """The end of what it printed."""
        fd = self._output.fileno()  # not read(): the process shares the file's offset
        end = os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
        return end.decode(errors="replace").strip()[-2000:]

    def close(self, *, now: bool = False) -> None:
        """End it. `now` ends it even if it is busy."""
        self._control.close()
        if now:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()  # closed by close()
    except OSError as problem:
        raise LaunchError(no_temporary(problem)) from None


def no_temporary(problem: OSError) -> str:
    """What to do where no temporary file can be made."""
    return (
        f"xla_nb cannot write a temporary file: {problem}. Set TMPDIR to a folder that exists "
        "and has free space, and restart the kernel."
    )


def _search_path() -> list[str]:
    """Where this process finds modules, without the notebook's own folder: torch would import a
    local random.py. Python looks at no entry that is not text, such as a Path."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:  # it has been deleted
        here = ""
    return [entry for entry in sys.path if isinstance(entry, str) and entry not in ("", here)]


def _options() -> list[str]:
    """This interpreter's options, as multiprocessing passes them on. Not those of warnings: `-W
    error` would end the imports of a process that shows its warnings to nobody."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [option for option in options if not option.startswith("-W")]


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """The descriptor of a file with this content that is not on disk."""
    fd = os.memfd_create("xla_nb-memory", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:  # a descriptor, not a path
            file.write(content)
        yield fd
    finally:
        os.close(fd)
