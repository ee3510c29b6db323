"""What live ranks have been given to run: the newest programs, and how many there were in all."""

from __future__ import annotations

from dataclasses import dataclass, field

from xla_nb.protocol import events

#: Programs that have ended, and are remembered.
KEPT = 100


@dataclass
class ProgramState:
    """A program of live ranks, the `place`-th from 1; `ended` is how, once it has."""

    place: int
    began: events.ProgramBegan
    ended: events.ProgramEnded | None = None


@dataclass
class Programs:
    """`count` is how many have begun, `lost` how many of them have ended without finishing."""

    count: int = 0
    lost: int = 0
    _known: dict[int, ProgramState] = field(default_factory=dict)  # by number, as they began
    _rested: dict[int, float] = field(default_factory=dict)  # when a rank's last one ended

    def begin(self, event: events.ProgramBegan) -> None:
        self.count += 1
        self._known[event.number] = ProgramState(self.count, event)

    def end(self, event: events.ProgramEnded) -> None:
        program = self._known.get(event.number)
        if program is None:
            return
        told, program.ended = program.ended is not None, event
        if told:
            return
        self.lost += event.outcome != "finished"
        self._rested |= dict.fromkeys(program.began.ranks, event.at)
        over = [number for number, one in self._known.items() if one.ended is not None]
        for number in over[:-KEPT]:
            del self._known[number]

    @property
    def newest(self) -> list[ProgramState]:
        """Those that are remembered, the newest first."""
        return list(reversed(list(self._known.values())))

    @property
    def running(self) -> list[ProgramState]:
        """Those that run now, the oldest first."""
        return [one for one in list(self._known.values()) if one.ended is None]

    def now(self, rank: int) -> events.ProgramBegan | None:
        """What a rank has been given and has not ended; None between two programs."""
        return next((one.began for one in self.running if rank in one.began.ranks), None)

    def rested(self, rank: int) -> float | None:
        """When the last program of a rank ended; None if it has had none."""
        return self._rested.get(rank)
