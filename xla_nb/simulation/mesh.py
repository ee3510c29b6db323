"""The bytes between ranks: one stream to every other rank, and a swap over all of them.

On one host the streams are socket pairs, which ranks send to each other through mailboxes made
before the fork, so nothing listens and a launch without collectives costs almost nothing; between
hosts they are TCP connections made at start. Every wait has a time limit.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from xla_nb.protocol import channel
from xla_nb.wording import ranks

_CHUNK = 1 << 16  # bytes read at once
_GATE = 60.0  # seconds for all ranks of a host to begin
_PAUSE = 0.005  # seconds until others have taken descriptors out of their mailboxes
_GREETING = 5.0  # seconds for a connecting rank to send its number
_SLICE = 0.1  # seconds per system call while waiting


class StreamClosed(ConnectionError):
    """The other rank's stream is closed: its process ended, or has left another collective."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"The stream to rank {rank} is closed.")
        self.rank = rank


class SwapTimeout(TimeoutError):
    """Some ranks neither sent nor received their bytes in time."""

    def __init__(self, missing: tuple[int, ...]) -> None:
        super().__init__(f"No bytes from {ranks(missing)} in time.")
        self.ranks = missing


class Stream:
    """A stream of bytes to one rank; bytes read too early wait in `inbox`."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.inbox = bytearray()

    def send(self, data: bytes) -> None:
        """Send a few kilobytes, which fit the socket's buffer, so this does not wait."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise StreamClosed(self.rank) from error

    def push(self, view: memoryview) -> int:
        """Send what the socket accepts now; returns the number of bytes."""
        try:
            return self.sock.send(view, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamClosed(self.rank) from error

    def pull(self, view: memoryview) -> int:
        """Read what is available now into `view`; returns the number of bytes."""
        if self.inbox:
            count = min(len(view), len(self.inbox))
            view[:count] = self.inbox[:count]
            del self.inbox[:count]
            return count
        try:
            count = self.sock.recv_into(view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamClosed(self.rank) from error
        if not count:
            raise StreamClosed(self.rank)
        return count

    def fill(self) -> bool:
        """Read what is available now into `inbox`; False if that is nothing."""
        try:
            data = self.sock.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StreamClosed(self.rank) from error
        if not data:
            raise StreamClosed(self.rank)
        self.inbox += data
        return True

    def is_closed(self) -> bool:
        """Whether there is nothing more to read, and the other end is closed."""
        try:
            return not self.inbox and not self.sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
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

    def swap(
        self,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
        timeout: float,
    ) -> None:
        """Send to and receive from several ranks at once.

        Views are flat bytes of sizes that both sides know. Raises StreamClosed or SwapTimeout; half
        a message may be in transit then.
        """
        out = {rank: view for rank, view in outgoing.items() if len(view)}
        into = {rank: view for rank, view in incoming.items() if len(view)}
        while out or into:
            moved = self._move(out, "push") + self._move(into, "pull")
            if not moved:
                self._await(out, into, timeout)

    def _move(self, views: dict[int, memoryview], direction: str) -> int:
        moved = 0
        for rank, view in list(views.items()):
            count: int = getattr(self.streams[rank], direction)(view)
            moved += count
            if count == len(view):
                del views[rank]
            else:
                views[rank] = view[count:]
        return moved

    def _await(self, out: Iterable[int], into: Iterable[int], timeout: float) -> None:
        wanted = dict.fromkeys(into, select.POLLIN)
        for rank in out:
            wanted[rank] = wanted.get(rank, 0) | select.POLLOUT
        if not self.poll(wanted, timeout):
            raise SwapTimeout(tuple(sorted(wanted)))

    def poll(self, wanted: Mapping[int, int], timeout: float) -> list[int]:
        """Wait until at least one of the ranks' streams is ready; returns their ranks."""
        poller = select.poll()
        by_fd = {}
        for rank, events in wanted.items():
            sock = self.streams[rank].sock
            if sock.fileno() < 0:
                raise StreamClosed(rank)
            by_fd[sock.fileno()] = rank
            poller.register(sock, events)
        end = time.monotonic() + timeout
        while not (ready := poller.poll(min(max(end - time.monotonic(), 0), _SLICE) * 1000)):
            # Between two waits Python can deliver the KeyboardInterrupt that stops a run.
            if time.monotonic() >= end:
                break
        return [by_fd[fd] for fd, _ in ready]

    def closed(self) -> list[int]:
        """The ranks from which there is nothing more to read: ended, or alive with their streams
        closed."""
        return [rank for rank, stream in sorted(self.streams.items()) if stream.is_closed()]

    def close(self) -> None:
        _close_all(self.streams.values())


class Mailboxes:
    """How the ranks of one host get a socket pair for every two of them: each has a mailbox, made
    before the fork, to which those with lower numbers send their pairs' other ends.

    So a process holds two descriptors per rank, where pairs made before the fork are as many as
    the square of the ranks.
    """

    def __init__(self, members: range) -> None:
        kind = socket.SOCK_SEQPACKET
        boxes = {rank: socket.socketpair(socket.AF_UNIX, kind) for rank in members}
        self._boxes = {rank: box for rank, (box, _) in boxes.items()}
        self._slots = {rank: slot for rank, (_, slot) in boxes.items()}
        self._gate, self._gate_holder = os.pipe()  # reads end of file once no process holds it
        self._owner = os.getpid()
        self._forks_left = 0
        # A rank is known to be dead once no other process holds its descriptors, this one included.
        os.register_at_fork(after_in_parent=self._count_fork)

    def expect_ranks(self) -> None:
        """Tell the mailboxes that the next forks of this process are the ranks."""
        self._forks_left = len(self._boxes)

    def _count_fork(self) -> None:
        if os.getpid() == self._owner and self._forks_left:
            self._forks_left -= 1
            if self._forks_left == 0:
                self._close()
                os.close(self._gate_holder)
                os.close(self._gate)

    def claim(self, rank: int) -> dict[int, Stream]:
        """In a rank: a stream to every other one, once each of them has begun.

        Without that wait, a pool process that finishes before another has begun would get a second
        rank. The stream to a rank that ended before it sent its end is a closed one.
        """
        os.close(self._gate_holder)
        channel.ready(self._gate, _GATE)
        os.close(self._gate)
        mine: dict[int, Stream] = {}
        # A rank's own children must not hold its ends.
        os.register_at_fork(after_in_child=lambda: _close_all(mine.values()))
        for other in self._slots:
            if other > rank:
                own, theirs = socket.socketpair()
                mine[other] = Stream(other, own)
                with theirs:
                    _post(self._slots[other], rank, theirs)
        box = self._boxes.pop(rank)
        lower = len(self._slots) - 1 - len(mine)
        everyone = list(self._slots)
        self._close()
        with box:
            for sender, sock in _received(box, lower):
                mine[sender] = Stream(sender, sock)
        for other in everyone:
            if other != rank and other not in mine:
                mine[other] = _closed(other)
        return mine

    def _close(self) -> None:
        for each in (*self._boxes.values(), *self._slots.values()):
            each.close()
        self._boxes.clear()
        self._slots.clear()


def _post(slot: socket.socket, sender: int, end: socket.socket) -> None:
    """Send an end to a mailbox. A user may have only so many descriptors on their way as open
    (unix(7), ETOOMANYREFS), until others have taken theirs out."""
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


def _received(box: socket.socket, count: int) -> Iterator[tuple[int, socket.socket]]:
    """What so many ranks send, and its senders; less where some have ended. Raises TimeoutError."""
    for received in range(count):
        if not channel.ready(box, _GATE):
            raise TimeoutError(f"{count - received} ranks did not join within {_GATE:g} s.")
        number, fds, _, _ = socket.recv_fds(box, 4, 1)
        if not number:
            return
        yield int.from_bytes(number, "little"), socket.socket(fileno=fds[0])


def _closed(rank: int) -> Stream:
    own, theirs = socket.socketpair()
    theirs.close()
    return Stream(rank, own)


class Addresses(Protocol):
    """The part of torch's TCPStore that is used here."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...


def connect_hosts(
    store: Addresses, own_address: str, rank: int, remote: Iterable[int], timeout: float
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
            streams[other] = Stream(other, _call(store, other, rank, timeout))
        deadline = time.monotonic() + timeout
        while missing := higher - streams.keys():
            left = deadline - time.monotonic()
            if left <= 0 or not channel.ready(listener, left):
                raise TimeoutError(f"{ranks(missing)} did not connect within {timeout:g} s.")
            sock, _ = listener.accept()
            caller = _greeting(sock)
            if caller in missing:
                streams[caller] = Stream(caller, sock)
            else:
                sock.close()
    for stream in streams.values():
        stream.sock.settimeout(None)
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return streams


def _call(store: Addresses, other: int, rank: int, timeout: float) -> socket.socket:
    host, port = store.get(f"mesh/{other}").decode().split()
    sock = socket.create_connection((host, int(port)), timeout)
    sock.sendall(rank.to_bytes(4, "little"))
    return sock


def _greeting(sock: socket.socket) -> int:
    """The number of the connecting rank; -1 if it sends none in time."""
    sock.settimeout(_GREETING)
    try:
        number = sock.recv(4, socket.MSG_WAITALL)
    except OSError:
        return -1
    return int.from_bytes(number, "little") if len(number) == 4 else -1
