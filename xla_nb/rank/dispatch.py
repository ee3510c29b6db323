"""The job of live ranks: hands each program to the ranks that are to run it, and tells when all of
them have ended it.

A thread, started once the ranks are forked. Ranks open their lines themselves: on a TPU of several
hosts only they know their numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
from collections import deque
from dataclasses import dataclass, field

from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.rank import cells

_CONTROL, _GATE = "control", "gate"
_LARGEST = 1 << 16  # bytes of the numbers of ranks


@dataclass(eq=False)
class _Open:
    """A program that ranks have not ended yet: `waiting` are those that run it, `taking` also those
    that take what it brings of the notebook; for them its files are kept."""

    sender: Sender
    files: list[int]
    waiting: set[int]
    taking: set[int]

    def leave(self, rank: int) -> None:
        self.waiting.discard(rank)
        self.taking.discard(rank)
        if not self.taking:
            while self.files:
                os.close(self.files.pop())


@dataclass(eq=False)
class _Line:
    """`given` are the programs that the rank has not ended, oldest first: it has that one, and gets
    the others in turn. `death` says how its process ended, where that was not by itself."""

    rank: int
    pid: int
    sock: socket.socket
    given: deque[_Open] = field(default_factory=deque)
    death: events.ProcessDied | None = None


class Dispatcher:
    """Made before the ranks are forked. `control` brings the notebook's programs; when its other
    end is shut down, the ranks are told to end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._arrivals, self._gate = channel.pair()
        self._lock = threading.RLock()  # deaths are told by another thread
        self._lines: dict[int, _Line] = {}  # of ranks that live, by rank
        self._gone: dict[int, _Line] = {}
        self._open: list[_Open] = []
        self._first, self._simulated = 0, False
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

    def serve(self, first: int, simulated: bool) -> None:
        """Start, once the ranks are forked; `first` is the first of this host."""
        self._first, self._simulated = first, simulated
        self._selector.register(self._control, selectors.EVENT_READ, _CONTROL)
        self._selector.register(self._arrivals, selectors.EVENT_READ, _GATE)
        threading.Thread(target=self._serve, name="xla_nb-dispatch", daemon=True).start()

    def died(self, event: events.ProcessDied) -> list[int]:
        """A process has ended: tell the programs that its ranks, which this gives, were to end."""
        with self._lock:
            self._meet()
            gone = [line for line in self._lines.values() if line.pid == event.pid]
            for line in gone:
                for program in [one for one in self._open if line.rank in one.waiting]:
                    program.sender.send(event)
                line.death = event
                self._leave(line)
            return [line.rank for line in gone]

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
        """A program from the notebook, or the end, for all ranks that it knows to have begun: their
        lines have arrived by now."""
        self._meet()
        message, fds = channel.take(self._control, _LARGEST, 3)
        if not message:
            self._selector.unregister(self._control)
            for line in self._lines.values():
                line.sock.shutdown(socket.SHUT_WR)
            return
        chosen, every = json.loads(message), {**self._lines, **self._gone}
        members = {n: every[n] for n in sorted(every) if chosen is None or n in chosen}
        sender = Sender(socket.socket(fileno=os.dup(fds[0])))
        sender.send(
            events.JobStarted(
                pid=os.getpid(),
                host=socket.gethostname(),
                ranks=len(members),
                first=self._first,
                simulated=self._simulated,
                members=tuple(members),
                pids=tuple(line.pid for line in members.values()),
            )
        )
        for rank in members.keys() - self._lines.keys():  # the notebook did not know yet
            sender.send(self._gone[rank].death or _ended_before(rank))
        program = _Open(sender, fds, members.keys() & self._lines.keys(), set(self._lines))
        self._open.append(program)
        for line in self._lines.values():
            line.given.append(program)
            if len(line.given) == 1:
                self._hand(line)
        self._end_those_over()

    def _hand(self, line: _Line) -> None:
        """Give a rank its next program."""
        with contextlib.suppress(OSError):  # its death will be told
            cells.send(line.sock, line.given[0].files)

    def _meet(self) -> None:
        """Ranks open their lines: all that have arrived."""
        while channel.ready(self._arrivals, 0):
            message, fds = channel.take(self._arrivals, 64, 1)
            rank, pid = map(int, message.split())
            line = _Line(rank, pid, socket.socket(fileno=fds[0]))
            self._lines[rank] = line
            self._selector.register(line.sock, selectors.EVENT_READ, line)

    def _hear(self, line: _Line) -> None:
        """A rank has ended a program, or has closed its line: then its death will be told."""
        if channel.take(line.sock, 64)[0]:
            line.given.popleft().leave(line.rank)
            if line.given:
                self._hand(line)
            self._end_those_over()
        else:
            self._selector.unregister(line.sock)

    def _leave(self, line: _Line) -> None:
        self._gone[line.rank] = self._lines.pop(line.rank)
        with contextlib.suppress(KeyError):  # it has closed its line before
            self._selector.unregister(line.sock)
        line.sock.close()
        for program in line.given:
            program.leave(line.rank)
        self._end_those_over()

    def _end_those_over(self) -> None:
        for program in [one for one in self._open if not one.waiting]:
            self._open.remove(program)
            program.sender.send(events.JobEnded(status=0))
            program.sender.sock.close()


def _ended_before(rank: int) -> events.RankFailed:
    told = "The rank had ended before the cell began."
    return events.RankFailed(
        rank=rank, kind="LaunchError", message=told, text=told, place="", where=told
    )
