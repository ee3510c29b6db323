"""Programs for live ranks on this machine: sent to each rank over its own line, and followed until
all ranks that run one have left it.

Every rank gets every program, even one that it does not run: when it is free, it takes the values
that the programs bring from the notebook, in order.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from xla_nb.engines.child import Child, Feed
from xla_nb.errors import LaunchError
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import Turn
from xla_nb.runtimes.fit import Fit

NO_GROUP = "These live ranks have ended. Start new ones: %xla_restart."
_BUSY = (
    "Rank {} is busy and has not yet read what cells on other ranks have sent since its own cell "
    "began. Wait for that cell to end."
)
_END_TIMEOUT = 5.0  # seconds to receive the end of live ranks' job: the server tidies up first


class LiveFeed(Feed):
    """The events of a job; the live ranks' programs look here for its start and their deaths."""

    #: The start of the job, once known; `ranks` are the ranks by number.
    began: events.JobStarted | None = None

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.ranks: dict[int, events.RankStarted] = {}
        self.deaths: list[events.ProcessDied] = []

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        for event in super().wait(seconds):
            if isinstance(event, events.JobStarted):
                self.began = event
            elif isinstance(event, events.RankStarted):
                self.ranks[event.rank] = event
            elif isinstance(event, events.ProcessDied):
                self.deaths.append(event)
            yield event


class ProgramFeed(Feed):
    """The events of one program, which ends once the `ranks` that run it have left it, or died."""

    def __init__(self, child: Child, live: LiveRanks, ranks: Iterable[events.RankStarted]) -> None:
        reader, self.theirs = channel.pair()
        super().__init__(reader, child, live.why_ended)
        self._live, self._pids = live, {event.rank: event.pid for event in ranks}

    def wait(self, seconds: float) -> Iterator[events.Event | None]:
        if self._live.feed.is_over:  # no rank is left, so only what they have sent remains
            self.theirs.close()
        deaths = [*self._live.feed.deaths]  # before the look: what the dead had sent comes first
        for event in super().wait(seconds):
            if isinstance(event, events.RankLeft):
                self._pids.pop(event.rank, None)
            elif event is not None:
                yield event
        for death in deaths:
            if death.pid in self._pids.values():
                self._pids = {rank: pid for rank, pid in self._pids.items() if pid != death.pid}
                yield death
        if self.is_over:
            yield None
        elif not self._pids:
            end = events.JobEnded(status=0)
            self._note(end)
            yield end

    def close(self) -> None:
        self.theirs.close()
        super().close()


class LiveRanks:
    """Live ranks of one job. `control` receives our ends of their lines, which they open
    themselves: on a TPU of several hosts only they know their numbers. `feed` has the ranks' own
    events, `fit` the resources that they got on the machine."""

    def __init__(self, control: socket.socket, child: Child, fit: Fit, feed: LiveFeed) -> None:
        self._control, self._child = control, child
        self.fit, self.feed = fit, feed
        self._lines: dict[int, socket.socket] = {}

    def why_ended(self) -> str:
        """How their job, or the fork server, ended; empty if neither is known to have ended."""
        end = self.feed.end_within(_END_TIMEOUT)
        return self.feed.why_ended() if end is None else end.reason

    def hand(self, turn: Turn, parcel: int, order: int) -> ProgramFeed:
        """Give them a program, as files; return its events. Raises LaunchError."""
        self._accept_lines()
        began = self.feed.began
        if began is None or self.feed.is_over:
            raise LaunchError(NO_GROUP)
        ranks = tuple(self.feed.ranks[n] for n in sorted(self._lines) if turn.is_for(n))
        program = ProgramFeed(self._child, self, ranks)
        try:
            started = replace(began, ranks=len(ranks), live=ranks, at=time.time())
            Sender(program.theirs).send(started)
            for number in sorted(self._lines, key=turn.is_for):  # first those not running it
                self._send_files(number, program.theirs.fileno(), parcel, order)
        except BaseException:
            program.close()
            raise
        return program

    def _send_files(self, number: int, *files: int) -> None:
        try:
            socket.send_fds(self._lines[number], [b"go"], files)
        except (BrokenPipeError, ConnectionResetError):  # its death is or will be reported
            return
        except OSError as problem:
            raise LaunchError(f"{_BUSY.format(number)} ({problem})") from None

    def _accept_lines(self) -> None:
        """Accept the lines that ranks have opened, which they do before they report their start."""
        while channel.ready(self._control, 0):
            message, fds = channel.take(self._control, 64, 1)
            if not message:
                return
            line = self._lines[int(message)] = socket.socket(fileno=fds[0])
            line.setblocking(False)

    def close(self) -> None:
        """Close the lines: no more programs will follow."""
        with contextlib.suppress(OSError):
            self._accept_lines()
        for sock in [self._control, *self._lines.values()]:
            with contextlib.suppress(OSError):  # they have ended
                sock.shutdown(socket.SHUT_RDWR)  # a process forked here may hold a copy
            sock.close()
