"""Run events from a test's own socket instead of an engine's."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from xla_nb.messages import channel
from xla_nb.messages.events import Event


class Feed:
    """`why` says how the process that supervises the run ended; it ends only if killed."""

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
