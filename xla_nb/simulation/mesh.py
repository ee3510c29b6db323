"""Byte streams between ranks: one to every other rank.

On one host the streams are socket pairs, which ranks send to each other through mailboxes created
before the fork, so nothing listens and a launch without collectives costs almost nothing; between
hosts they are TCP connections made at start. A stream never blocks, and no exception, not even an
interrupt at any moment, makes it lose or repeat a byte: ranks outlive their failed programs.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from xla_nb.messages import channel
from xla_nb.wording import ranks, several

_CHUNK = 1 << 18  # bytes read at once
_JOIN_TIMEOUT = 60.0  # seconds until all ranks of a host must have begun
_PAUSE = 0.005  # seconds to wait for others to empty their mailboxes of descriptors
_GREETING = 5.0  # seconds for a connecting rank to send its number


class StreamClosed(ConnectionError):
    """The other rank's stream is closed: its process ended."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"The stream to rank {rank} is closed.")


@dataclass(frozen=True)
class _Sending:
    """Data being sent, and how many bytes the socket has accepted, call by call."""

    data: bytes = b""
    accepted: list[int] = field(default_factory=list)

    def rest(self) -> memoryview:
        return memoryview(self.data)[sum(self.accepted) :]


class Stream:
    """A byte stream to one rank, usable from several threads.

    The result of a system call is recorded by `extend`, in C: between the two, Python cannot raise
    an interrupt. Other changes that belong together are one assignment.
    """

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.guard = threading.RLock()  # hold it for several calls that belong together
        self._sending = _Sending()
        self._chunks = [b""]  # read and not yet dropped

    def send(self, message: bytes) -> None:
        """Send a message, after unsent earlier ones: as much as the socket accepts now. `flush`
        sends the rest."""
        with self.guard:
            unsent = self._sending.rest()
            self._sending = _Sending(b"".join((unsent, message)) if unsent else message)
            self.flush()

    def flush(self) -> bool:
        """Send unsent data, as much as the socket accepts now; returns whether all is sent."""
        with self.guard:
            accepted = self._sending.accepted
            while rest := self._sending.rest():
                try:
                    accepted.extend(map(self.sock.send, (rest,), (socket.MSG_DONTWAIT,)))
                except BlockingIOError:
                    return False
                except OSError as error:
                    self._sending = _Sending()
                    raise StreamClosed(self.rank) from error
            self._sending = _Sending()
            return True

    @property
    def is_sending(self) -> bool:
        """Whether there may be unsent data."""
        return bool(self._sending.data)

    @property
    def inbox(self) -> bytes:
        """Data that has been read and not yet dropped."""
        with self.guard:
            if len(self._chunks) > 1:
                self._chunks = [b"".join(self._chunks)]
            return self._chunks[0]

    def drop(self, count: int) -> None:
        """Drop the first `count` bytes of the inbox."""
        with self.guard:
            self._chunks = [self.inbox[count:]]

    def fill(self) -> bool:
        """Read available data into the inbox; returns False if there is none."""
        with self.guard:
            try:
                self._chunks.extend(map(self.sock.recv, (_CHUNK,), (socket.MSG_DONTWAIT,)))
            except BlockingIOError:
                return False
            except OSError as error:
                raise StreamClosed(self.rank) from error
            if not self._chunks[-1]:
                raise StreamClosed(self.rank)
            return True


def _close_all(streams: Iterable[Stream]) -> None:
    for stream in streams:
        stream.sock.close()


class Mesh:
    """The streams of one rank to all others."""

    def __init__(self, rank: int, size: int, streams: Mapping[int, Stream]) -> None:
        self.rank = rank
        self.size = size
        self.streams = dict(streams)

    def poll(self, wanted: Collection[int], seconds: float) -> list[int]:
        """Wait until at least one of these ranks' streams is readable; returns the ranks. Continues
        to send unsent data to any rank."""
        self._flush_all()
        by_fd, poller = {}, select.poll()
        for rank, stream in self.streams.items():
            events = select.POLLIN * (rank in wanted) | select.POLLOUT * stream.is_sending
            if events:
                by_fd[stream.sock.fileno()] = rank
                poller.register(stream.sock, events)
        ready = [by_fd[fd] for fd, _ in poller.poll(seconds * 1000)]
        return [rank for rank in ready if rank in wanted]

    @property
    def is_sending(self) -> bool:
        """Whether there is unsent data."""
        return any(stream.is_sending for stream in self.streams.values())

    def flush(self) -> None:
        """Send unsent data; returns when the sockets have accepted all of it."""
        while unsent := self._flush_all():
            poller = select.poll()
            for stream in unsent:
                poller.register(stream.sock, select.POLLOUT)
            poller.poll()

    def _flush_all(self) -> list[Stream]:
        """Try again to send; returns the streams that still have unsent data."""
        unsent = []
        for stream in self.streams.values():
            with suppress(StreamClosed):  # raised to callers that read from it
                if stream.is_sending and not stream.flush():
                    unsent.append(stream)
        return unsent


class Mailboxes:
    """Give every two ranks of one host a socket pair: each rank has a mailbox, created before the
    fork, to which ranks with lower numbers send the other ends of their pairs.

    So a process holds two descriptors per rank; pairs created before the fork would take the square
    of the number of ranks.
    """

    def __init__(self, members: range) -> None:
        kind = socket.SOCK_SEQPACKET
        boxes = {rank: socket.socketpair(socket.AF_UNIX, kind) for rank in members}
        self._boxes = {rank: box for rank, (box, _) in boxes.items()}
        self._slots = {rank: slot for rank, (_, slot) in boxes.items()}

    def claim(self, rank: int) -> dict[int, Stream]:
        """In a rank: open a stream to every other rank. The stream to a rank that ended before it
        sent its end is closed."""
        streams: dict[int, Stream] = {}
        # A rank's own children must not hold its ends.
        os.register_at_fork(after_in_child=lambda: _close_all(streams.values()))
        for other in self._slots:
            if other > rank:
                end, peer_end = socket.socketpair()
                streams[other] = Stream(other, end)
                with peer_end:
                    _post(self._slots[other], rank, peer_end)
        box = self._boxes.pop(rank)
        lower_count = len(self._slots) - 1 - len(streams)
        ranks_here = list(self._slots)
        self.close()
        with box:
            for sender, sock in _receive_sockets(box, lower_count):
                streams[sender] = Stream(sender, sock)
        for other in ranks_here:
            if other != rank and other not in streams:
                streams[other] = _closed_stream(other)
        return streams

    def close(self) -> None:
        """Called once all ranks have been forked: a rank is seen to be dead only when no process,
        including the one that forked it, holds its descriptors."""
        for sock in (*self._boxes.values(), *self._slots.values()):
            sock.close()
        self._boxes.clear()
        self._slots.clear()


def _post(slot: socket.socket, sender: int, end: socket.socket) -> None:
    """Send an end to a mailbox. The number of descriptors that a user may have in flight is limited
    (unix(7), ETOOMANYREFS), so this waits for others to take theirs out."""
    while True:
        try:
            socket.send_fds(slot, [sender.to_bytes(4, "little")], [end.fileno()])
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                return  # that rank has ended; so will the stream to it
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _receive_sockets(box: socket.socket, count: int) -> Iterator[tuple[int, socket.socket]]:
    """The sockets that `count` ranks send, with their senders; fewer if some have ended. Raises
    TimeoutError."""
    for index in range(count):
        if not channel.ready(box, _JOIN_TIMEOUT):
            missing = several(count - index, "rank")
            raise TimeoutError(f"{missing} did not join within {_JOIN_TIMEOUT:g} s.")
        number, fds, _, _ = socket.recv_fds(box, 4, 1)
        if not number:
            return
        yield int.from_bytes(number, "little"), socket.socket(fileno=fds[0])


def _closed_stream(rank: int) -> Stream:
    end, peer_end = socket.socketpair()
    peer_end.close()
    return Stream(rank, end)


def connect_hosts(
    store: Any, own_address: str, rank: int, remote: Iterable[int], timeout: float
) -> dict[int, Stream]:
    """Connect this rank to those of other hosts: the higher rank connects, the lower one accepts.

    Connections from anything else are closed. Raises TimeoutError.
    """
    streams = {}
    with socket.create_server((own_address, 0)) as listener:
        host, port = listener.getsockname()[:2]
        store.set(f"mesh/{rank}", f"{host} {port}")
        lower = [other for other in remote if other < rank]
        higher = {other for other in remote if other > rank}
        for other in lower:
            streams[other] = Stream(other, _connect(store, other, rank, timeout))
        deadline = time.monotonic() + timeout
        while missing := higher - streams.keys():
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not channel.ready(listener, remaining):
                raise TimeoutError(f"{ranks(missing)} did not connect within {timeout:g} s.")
            sock, _ = listener.accept()
            caller = _read_greeting(sock)
            if caller in missing:
                streams[caller] = Stream(caller, sock)
            else:
                sock.close()
    for stream in streams.values():
        stream.sock.settimeout(None)
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return streams


def _connect(store: Any, other: int, rank: int, timeout: float) -> socket.socket:
    host, port = store.get(f"mesh/{other}").decode().split()
    sock = socket.create_connection((host, int(port)), timeout)
    sock.sendall(rank.to_bytes(4, "little"))
    return sock


def _read_greeting(sock: socket.socket) -> int:
    """The number of the connecting rank; -1 if it sends none in time."""
    sock.settimeout(_GREETING)
    try:
        number = sock.recv(4, socket.MSG_WAITALL)
    except OSError:
        return -1
    return int.from_bytes(number, "little") if len(number) == 4 else -1
