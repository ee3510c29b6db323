"""Programs for live ranks on this machine: handed to each rank over a line of its own, and followed
until all that run one have left it.

Every rank gets every program, also one that it does not run: it takes what that brings of the
notebook, in turn, when it is free.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from xla_nb.engines.child import Child, Feed
from xla_nb.errors import LaunchError
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import Turn
from xla_nb.runtimes.fit import Fit

NO_GROUP = "The live ranks for this cell have ended. Start new ones: %xla_restart."
_BEHIND = (
    "Rank {} is busy and has not yet read what cells on other ranks have sent since its own cell "
    "began. Wait for that cell to end."
)
_HEARD = 5.0  # seconds for the end of live ranks' job to be heard of: the server tidies up first


class LiveFeed(Feed):
    """The events of a job. What ends its live ranks' processes is told to their programs."""

    #: How their job began, once that is known, and the ranks, by number.
    began: events.JobStarted | None = None

    def __init__(self, *about: object) -> None:
        super().__init__(*about)  # type: ignore[arg-type]
        self.ranks: dict[int, events.RankStarted] = {}
        self._deaths: list[events.ProcessDied] = []
        self._programs: list[ProgramFeed] = []
        self._lock = threading.Lock()

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        for event in super().wait(seconds):
            with self._lock:
                self._take(event)
            yield event

    def _take(self, event: events.Event | None) -> None:
        if isinstance(event, events.JobStarted):
            self.began = event
        elif isinstance(event, events.RankStarted):
            self.ranks[event.rank] = event
        elif isinstance(event, events.ProcessDied):
            self._deaths.append(event)
            for program in self._programs:
                program.tell_death(event)
        elif event is None or isinstance(event, events.JobEnded):
            for program in self._programs:
                program.give_up()

    def add(self, program: ProgramFeed) -> None:
        """Have a program told what ends its ranks, or has."""
        with self._lock:
            for death in self._deaths:
                program.tell_death(death)
            if self.is_over:
                program.give_up()
            self._programs.append(program)

    def remove(self, program: ProgramFeed) -> None:
        with self._lock:
            if program in self._programs:
                self._programs.remove(program)


class ProgramFeed(Feed):
    """The events of one program, over once the `ranks` that run it have left it."""

    def __init__(self, child: Child, live: LiveRanks, ranks: Iterable[events.RankStarted]) -> None:
        ours, self.theirs = channel.pair()
        super().__init__(ours, child, live.why_ended)
        self._live, self._pids = live, {one.rank: one.pid for one in ranks}

    def tell_death(self, event: events.ProcessDied) -> None:
        if event.pid in self._pids.values():
            Sender(self.theirs).send(event)

    def give_up(self) -> None:
        """No rank is there any more: what they have sent is all."""
        self.theirs.close()

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        for event in super().wait(seconds):
            if isinstance(event, events.RankLeft):
                self._pids.pop(event.rank, None)
                continue
            if isinstance(event, events.ProcessDied):
                left = {rank: pid for rank, pid in self._pids.items() if pid != event.pid}
                self._pids = left
            yield event
        if not self._pids and not self.is_over:
            end = events.JobEnded(status=0)
            self._note(end)
            yield end

    def close(self) -> None:
        self._live.feed.remove(self)
        self.theirs.close()
        super().close()


class LiveRanks:
    """Live ranks of one job. `control` brings the ends of their lines, which they open themselves:
    on a TPU of several hosts only they know their numbers. `feed` has their own events, `fit` is
    what they got of the machine."""

    def __init__(self, control: socket.socket, child: Child, fit: Fit, feed: LiveFeed) -> None:
        self._control, self._child = control, child
        self.fit, self.feed = fit, feed
        self._lines: dict[int, socket.socket] = {}

    def why_ended(self) -> str:
        """How their job ended, or the fork server; empty if neither is known to have."""
        end = self.feed.end_within(_HEARD)
        return self.feed.why_ended() if end is None else end.reason

    def hand(self, turn: Turn, parcel: int, order: int) -> ProgramFeed:
        """Give them a program, by its files; returns its events. Raises LaunchError."""
        self._meet()
        began = self.feed.began
        if began is None or self.feed.is_over:
            raise LaunchError(NO_GROUP)
        chosen = tuple(self.feed.ranks[n] for n in sorted(self._lines) if turn.is_for(n))
        program = ProgramFeed(self._child, self, chosen)
        try:
            started = replace(began, ranks=len(chosen), live=chosen, at=time.time())
            Sender(program.theirs).send(started)
            with program.theirs.dup() as theirs:  # the ranks may end meanwhile
                self.feed.add(program)
                for number in sorted(self._lines, key=turn.is_for):  # those that only take it first
                    self._give(number, theirs.fileno(), parcel, order)
        except BaseException:
            program.close()
            raise
        return program

    def _give(self, number: int, *files: int) -> None:
        try:
            socket.send_fds(self._lines[number], [b"go"], files)
        except (BrokenPipeError, ConnectionResetError):  # its death is told, or will be
            return
        except OSError as problem:
            raise LaunchError(f"{_BEHIND.format(number)} ({problem})") from None

    def _meet(self) -> None:
        """Take the lines that have been opened: before a rank says that it has begun."""
        while channel.ready(self._control, 0):
            message, fds = channel.take(self._control, 64, 1)
            if not message:
                return
            line = self._lines[int(message)] = socket.socket(fileno=fds[0])
            line.setblocking(False)

    def close(self) -> None:
        """There is nothing more to come for them."""
        with contextlib.suppress(OSError):
            self._meet()
        for sock in [self._control, *self._lines.values()]:
            with contextlib.suppress(OSError):  # they have ended
                sock.shutdown(socket.SHUT_RDWR)  # a process forked here may hold a copy
            sock.close()
