"""A process of ours beside the notebook's, and the socket that it is told by.

The rule: nothing listens. The process inherits one end of a socket pair; closing the other, however
that comes about, ends it and everything it started.
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

# xla_nb is the one that runs here, wherever it lies; the rest of its folder comes in its turn.
_BOOT = """
import importlib, json, sys
home, *sys.path[:] = json.loads(sys.argv[2])
sys.path.insert(0, home)
import xla_nb
del sys.path[0]
importlib.import_module(sys.argv[3]).main(int(sys.argv[1]), *json.loads(sys.argv[4]))
"""
_LARGEST = 1 << 16  # bytes of one message
_WORDS = 8000  # bytes at the end of what it printed


class Child:
    """`module.main(fd, *arguments)` in a process of its own. The caller closes it.

    Raises LaunchError when it cannot be started.
    """

    def __init__(self, module: str, arguments: list[Any], env: Mapping[str, str]) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # closed by close()
        self._control, theirs = channel.pair()
        # Without the notebook's own folder: a local random.py is not for torch to import.
        path = [entry for entry in sys.path if entry not in ("", str(Path.cwd()))]
        path.insert(0, str(Path(__file__).parents[2]))
        command = [str(theirs.fileno()), json.dumps(path), module, json.dumps(arguments)]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=dict(env),
                cwd="/",
                start_new_session=True,  # the notebook's Ctrl-C is not for it
            )
        except OSError as problem:
            self._control.close()
            self._words.close()
            raise LaunchError(f"a process of xla_nb's could not be started: {problem}") from None
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_news(self) -> bool:
        """It has said something, or has ended."""
        return channel.ready(self._control, 0)

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so now: its sockets close before it can be seen."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.alive

    def send(self, request: Mapping[str, Any], *fds: int) -> None:
        """Tell it something. Raises OSError when it is gone."""
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)

    def receive(self, waiting: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """What it says next, None if it has ended; `waiting` is called every 0.1 s meanwhile."""
        while not channel.ready(self._control, 0.1):
            waiting()
        answer = self._control.recv(_LARGEST)
        if not answer:
            # Its socket closes before it is a zombie: asking whether it lives is too early.
            self.process.wait()
            return None
        said: dict[str, Any] = json.loads(answer)
        return said

    def last_words(self) -> str:
        """The end of what it printed."""
        fd = self._words.fileno()  # not read(): the process has the same place in the file
        end = os.pread(fd, _WORDS, max(0, os.fstat(fd).st_size - _WORDS))
        return end.decode(errors="replace").strip()[-2000:]

    def close(self, *, now: bool = False) -> None:
        """End it; `now` is for one that would otherwise finish what it does first."""
        self._control.close()
        if now:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._words.close()


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """A file with this content that is nowhere on disk."""
    fd = os.memfd_create("xla_nb-told", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:  # a descriptor, not a path
            file.write(content)
        yield fd
    finally:
        os.close(fd)
