"""The bytes between ranks: one stream to every other rank, and a swap over all of them.

On one host the streams are socket pairs made before the fork, so nothing listens and a launch
without collectives costs almost nothing; between hosts they are TCP connections made at start.
Every wait has a time limit.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Protocol

from xla_nb.protocol import channel
from xla_nb.wording import ranks

_CHUNK = 1 << 16  # bytes read at once
_GATE = 60.0  # seconds for all ranks of a host to begin
_GREETING = 5.0  # seconds for a connecting rank to send its number
_SLICE = 0.1  # seconds per system call while waiting


class StreamClosed(ConnectionError):
    """The other rank's process ended: its stream is closed."""

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

        Views are flat bytes of sizes that both sides know. Raises StreamClosed or SwapTimeout.
        """
        out = {rank: view for rank, view in outgoing.items() if len(view)}
        into = {rank: view for rank, view in incoming.items() if len(view)}
        try:
            while out or into:
                moved = self._move(out, "push") + self._move(into, "pull")
                if not moved:
                    self._await(out, into, timeout)
        except BaseException:  # half a message may be in transit: the streams are unusable
            self.close()
            raise

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

    def close(self) -> None:
        _close_all(self.streams.values())


class SocketPairs:
    """The socket pairs between one host's ranks, made before the fork; each rank keeps its ends."""

    def __init__(self, members: range) -> None:
        self._ends: dict[tuple[int, int], socket.socket] = {}
        for one, other in combinations(members, 2):
            self._ends[one, other], self._ends[other, one] = socket.socketpair()
        self._gate, self._gate_holder = os.pipe()  # reads end of file once no process holds it
        self._ranks = len(members)
        self._owner = os.getpid()
        self._forks_left = 0
        # A dead rank's streams close only when no other process holds its ends, this one included.
        os.register_at_fork(after_in_parent=self._count_fork)

    def expect_ranks(self) -> None:
        """Tell the pairs that the next forks of this process are the ranks."""
        self._forks_left = self._ranks

    def _count_fork(self) -> None:
        if os.getpid() == self._owner and self._forks_left:
            self._forks_left -= 1
            if self._forks_left == 0:
                self._close()
                os.close(self._gate)

    def claim(self, rank: int) -> dict[int, Stream]:
        """In a rank: keep its own ends, close the others, and wait until every rank has done so.

        Without the wait, a pool process that finishes before another has begun would get a second
        rank.
        """
        mine = {
            other: Stream(other, self._ends.pop((rank, other)))
            for one, other in list(self._ends)
            if one == rank
        }
        self._close()
        # A rank's own children must not hold its ends either.
        os.register_at_fork(after_in_child=lambda: _close_all(mine.values()))
        channel.ready(self._gate, _GATE)
        os.close(self._gate)
        return mine

    def _close(self) -> None:
        for end in self._ends.values():
            end.close()
        self._ends.clear()
        os.close(self._gate_holder)


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
