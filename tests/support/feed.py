"""Events of a run from a test's own socket, in place of an engine's."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from xla_nb.messages import channel
from xla_nb.messages.events import Event


class Feed:
    """`why` tells how the process that looks after the run has ended; it never does by itself."""

    def __init__(self, sock: socket.socket, why: Callable[[], str] = lambda: "") -> None:
        self._sock = sock
        self.why_ended = why
        self.ended = False

    def wait(self, seconds: float) -> Iterator[Event | None]:
        if channel.ready(self._sock, seconds):
            yield from channel.receive(self._sock)

    def kill(self) -> None:
        self.ended = True

    def close(self) -> None:
        self._sock.close()
