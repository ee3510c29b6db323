"""The job of live ranks: hands each program to the ranks that are to run it, and tells when all of
them have ended it.

A thread, started once the ranks are forked. Ranks open their lines themselves: on a TPU of several
hosts only they know their numbers.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from xla_nb.protocol import channel, events
from xla_nb.protocol.channel import Sender
from xla_nb.rank import cells

_CONTROL, _GATE, _BELL = "control", "gate", "bell"


@dataclass
class _Open:
    """A program that `waiting` ranks have not ended yet."""

    sender: Sender
    waiting: set[int]


@dataclass
class _Line:
    rank: int
    pid: int
    sock: socket.socket


class Dispatcher:
    """Made before the ranks are forked. `control` brings the notebook's programs; when its other
    end is shut down, the ranks are told to end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._arrivals, self._gate = channel.pair()
        self._lock = threading.RLock()  # deaths are told by another thread
        self._lines: dict[int, _Line] = {}  # of ranks that live, by rank
        self._open: list[_Open] = []
        self._first, self._ranks, self._simulated = 0, 0, False
        self._selector = selectors.DefaultSelector()

    # In a rank

    def connect(self, rank: int) -> cells.Line:
        """Open the calling rank's line."""
        self._control.close()
        self._arrivals.close()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = b"%d %d" % (rank, os.getpid())
            socket.send_fds(self._gate, [number], [theirs.fileno()])
        return cells.Line(mine)

    # In the job

    def serve(self, first: int, ranks: int, simulated: bool) -> None:
        """Start, once the ranks are forked: `ranks` of them here, from `first` on."""
        self._first, self._ranks, self._simulated = first, ranks, simulated
        self._selector.register(self._control, selectors.EVENT_READ, _CONTROL)
        self._selector.register(self._arrivals, selectors.EVENT_READ, _GATE)
        threading.Thread(target=self._serve, name="xla_nb-dispatch", daemon=True).start()

    def died(self, event: events.ProcessDied) -> None:
        """A rank's process has ended: tell the programs that it was to end."""
        with self._lock:
            gone = [line for line in self._lines.values() if line.pid == event.pid]
            for line in gone:
                for program in [one for one in self._open if line.rank in one.waiting]:
                    program.sender.send(event)
                self._leave(line)

    def close(self) -> None:
        """All ranks have ended."""
        with self._lock:
            for line in list(self._lines.values()):
                self._leave(line)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.data == _CONTROL:
                        self._take()
                    elif key.data == _GATE:
                        self._meet()
                    elif key.data in self._lines.values():
                        self._hear(key.data)

    def _take(self) -> None:
        """A program from the notebook, or the end."""
        message, fds, _, _ = socket.recv_fds(self._control, 1 << 10, 3)
        if not message:
            self._selector.unregister(self._control)
            for line in self._lines.values():
                line.sock.shutdown(socket.SHUT_WR)
            return
        try:
            self._start(fds)
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _start(self, fds: list[int]) -> None:
        turn = cells.read_order(fds[2]).request.turn
        here = range(self._first, self._first + self._ranks)
        members = here if turn is None or turn.members is None else turn.members
        taking_part = [rank for rank in members if rank in self._lines]
        sender = Sender(socket.socket(fileno=fds[0]))
        sender.send(
            events.JobStarted(
                pid=os.getpid(),
                host=socket.gethostname(),
                ranks=len(taking_part),
                first=self._first,
                simulated=self._simulated,
                members=tuple(taking_part),
            )
        )
        program = _Open(sender, set(taking_part))
        self._open.append(program)
        for rank in taking_part:
            with contextlib.suppress(OSError):  # its death will be told
                cells.send(self._lines[rank].sock, fds)
        self._end_those_over([program])

    def _meet(self) -> None:
        """A rank opens its line."""
        message, fds, _, _ = socket.recv_fds(self._arrivals, 64, 1)
        rank, pid = map(int, message.split())
        line = _Line(rank, pid, socket.socket(fileno=fds[0]))
        self._lines[rank] = line
        self._selector.register(line.sock, selectors.EVENT_READ, line)

    def _hear(self, line: _Line) -> None:
        """A rank has ended a program, or has closed its line: then its death will be told."""
        if line.sock.recv(64):
            self._ended(line.rank)
        else:
            self._selector.unregister(line.sock)

    def _leave(self, line: _Line) -> None:
        del self._lines[line.rank]
        with contextlib.suppress(KeyError):  # it has closed its line before
            self._selector.unregister(line.sock)
        line.sock.close()
        self._ended(line.rank)

    def _ended(self, rank: int) -> None:
        for program in self._open:
            program.waiting.discard(rank)
        self._end_those_over(self._open)

    def _end_those_over(self, programs: Iterable[_Open]) -> None:
        for program in [one for one in programs if not one.waiting]:
            self._open.remove(program)
            program.sender.send(events.JobEnded(status=0))
            program.sender.sock.close()
