"""Questions of a rank to the person at the notebook (`input()`), and how they are answered.

The question is an event, `Asked`. The answer goes into a pipe of the asking process, opened by its
descriptor there: it is never in a file, and the pipe ends with the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any, Self

from xla_nb.messages.events import Asked


class Refused(Exception):
    """Nobody will answer; the message says why."""


class Pipe:
    """The asker's pipe, for a `with` statement. `ino` is its inode number."""

    def __enter__(self) -> Self:
        self._reader, self.fd = os.pipe()
        self.ino = os.fstat(self.fd).st_ino
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        os.close(self.fd)

    def answer(self) -> str:
        """Wait for the answer. Raises Refused."""
        data = b""
        while not data.endswith(b"\n"):
            data += os.read(self._reader, 1 << 16)
        body = json.loads(data)
        if body["refusal"]:
            raise Refused(body["refusal"])
        return str(body["text"])


def is_open(asked: Asked) -> bool:
    """True if the asker is still waiting."""
    with contextlib.suppress(OSError):
        return os.stat(_path(asked)).st_ino == asked.ino  # noqa: PTH116 # of /proc
    return False


def answer(asked: Asked, text: str = "", *, refusal: str = "") -> None:
    """Send an answer, or why there is none, to an asker on this machine. Does nothing if the asker
    is gone."""
    body: dict[str, Any] = {"text": text, "refusal": refusal}
    data = json.dumps(body).encode() + b"\n"
    with contextlib.suppress(OSError):
        fd = os.open(_path(asked), os.O_WRONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if stat.S_ISFIFO(status.st_mode) and status.st_ino == asked.ino:
                while data:
                    data = data[os.write(fd, data) :]
        finally:
            os.close(fd)


def _path(asked: Asked) -> str:
    return f"/proc/{asked.pid}/fd/{asked.fd}"
