"""The channel of events: one inherited socket, written by every process of a run.

A message arrives whole or not at all (SOCK_SEQPACKET), so writers need no lock, and the reader sees
the end when the last writer is gone.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

from xla_nb.messages.events import Event, Notice, decode, encode

#: The same text for all such data, so that it is shown once.
_NOT_AN_EVENT = (
    "A rank wrote to a socket of xla_nb, through a file descriptor that it had not opened. That "
    "data is lost."
)
_LARGEST = 1 << 18  # bytes; more than `encode` can produce from shortened texts


def pair() -> tuple[socket.socket, socket.socket]:
    """A reading end and a writing end; the caller closes both."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def ready(file: int | socket.socket, seconds: float | None, *others: int) -> bool:
    """Wait until one of them has data to read, or its end; False after `seconds`, if not None."""
    # Not select(), which refuses descriptors from 1,024 up: many files or ranks reach that.
    poller = select.poll()
    for descriptor in (file, *others):
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if seconds is None else seconds * 1000))


def take(sock: socket.socket, size: int, fds: int = 0) -> tuple[bytes, list[int]]:
    """The next message, with its file descriptors; an empty one if the other end is gone.

    If the other end died with unread data, the system first raises ECONNRESET once, and then
    returns the messages that it had sent.
    """
    try:
        message, descriptors, _, _ = socket.recv_fds(sock, size, fds)
    except ConnectionResetError:
        message, descriptors, _, _ = socket.recv_fds(sock, size, fds)
    return message, descriptors


class Sender:
    """The writing end, in any process of the run."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, event: Event) -> None:
        """Send an event, or drop it if the reader is gone because the run is being torn down."""
        try:
            self.sock.send(encode(event))
        except (BrokenPipeError, ConnectionResetError):
            return


def receive(sock: socket.socket) -> Iterator[Event | None]:
    """Yield the events that are ready, then None if every writer is gone. Never blocks."""
    while True:
        try:
            data = sock.recv(_LARGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            yield None
            return
        yield _decode(data)


def _decode(data: bytes) -> Event:
    """Decode an event; other data becomes a notice, since a program may write to any descriptor."""
    try:
        return decode(data)
    except ValueError:
        return Notice(text=_NOT_AN_EVENT)
