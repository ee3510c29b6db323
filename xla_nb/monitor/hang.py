"""Watch a run for hangs: report ranks that make no progress, and when they progress again.

The run's own thread calls `act`, which never waits: stacks are requested, and reported in a later
call. A report is an event, so that every view, the record and a reopened run have it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace

from xla_nb.messages import events
from xla_nb.monitor import waits
from xla_nb.monitor.activity import RankStatus
from xla_nb.monitor.stacks import InProgress, Inquiry
from xla_nb.monitor.state import ENDED, RankState
from xla_nb.record.files import partial

_INTERVAL, _SHORTEST = 1.0, 0.2  # seconds between two looks at the ranks
_MANY_RANKS = 256  # ranks, for which a look takes about 20 ms; for more, looks are rarer
_NEAR = 0.8  # share of the time without progress from which a rank is reported with hung ones
_LOCK_WAIT = 1.0  # seconds of a wait for an ended rank's lock until it is reported
_FREE, _MAX_GAP = 10, 3600.0  # reports, after which each interval doubles, up to _MAX_GAP


class HangWatch:
    """Watches one run.

    after  seconds without progress after which a rank counts as hung; 0: never
    stops  a report stops the run
    """

    def __init__(self, run: InProgress, after: float, *, stops: bool) -> None:
        self._run, self._after, self._stops = run, after, stops
        self._looked_at = self._reported_at = float("-inf")  # last look and last report
        self._report_count = 0
        self._reported: set[int] = set()  # the ranks in a report that is not over
        self._inquiry: Inquiry | None = None

    def act(self, now: float) -> None:
        """Do what is due at `now` (`time.monotonic()`); called often until the run is stopped."""
        if self._inquiry is not None:
            if self._inquiry.settled:
                answers, self._inquiry = self._inquiry.answers(), None
                self._report(answers, now)
        elif now - self._looked_at >= self._pause():
            self._look(now)

    def _pause(self) -> float:
        """Seconds between two looks: each costs a read and a few calls for every rank."""
        pause = _INTERVAL * max(1.0, len(self._run.state.ranks) / _MANY_RANKS)
        return min(pause, max(_SHORTEST, self._after / 5)) if self._after else pause

    def _look(self, now: float) -> None:
        statuses = self._statuses(now)
        age = now - self._reported_at
        moved = {s.rank for s in statuses if s.phase in ENDED or s.quiet < age}
        if over := self._reported & moved:
            self._reported = set()
            if self._run.state.current_hang is not None:
                self._run.take(events.HangOver(why=waits.why_over(sorted(over), statuses)))
        new = self._stuck(statuses) - self._reported
        if new and age >= self._gap(bool(new & _locked_out(statuses))):
            self._inquiry = Inquiry(self._run)

    def _gap(self, certain: bool) -> float:
        """Seconds from the last report to the next one: a slow run must not fill the record.

        `certain`: the new problem does not depend on elapsed time."""
        if self._report_count < _FREE:
            return 0.0 if certain else self._after
        doublings = min(self._report_count - _FREE, 20)
        return min(_MAX_GAP, (60 if certain else self._after) * 2.0**doublings)

    def _report(self, answers: Mapping[int, events.StackGroup], now: float) -> None:
        statuses = [_with_answer(s, answers.get(s.rank)) for s in self._statuses(now)]
        if not self._stuck(statuses) - self._reported:
            return  # they have made progress since
        # Ranks begin to wait one after the other: put all of them into one report.
        self._reported, self._reported_at = self._stuck(statuses, _NEAR), now
        self._report_count += 1
        verdict = waits.verdict(statuses, _NEAR * self._after)
        concerned = self._reported.union(*(s.missing for s in statuses if s.rank in self._reported))
        free = [s.rank for s in statuses if s.phase not in ENDED and s.activity != "waiting"]
        self._run.take(
            events.HangReported(
                verdict=verdict,
                ranks=tuple(sorted(self._reported)),
                groups=tuple(waits.groups(statuses, answers)),
                culprits=tuple(rank for rank in free if rank in concerned),
            )
        )
        if self._stops:
            self._run.stop(f"Stopped at a hang: {verdict}")  # with the times at the stop

    def _stuck(self, statuses: list[RankStatus], share: float = 1.0) -> set[int]:
        """Ranks that wait for an ended rank's lock, or had no progress for `share` of the time."""
        after = share * self._after or math.inf
        quiet = {s.rank for s in statuses if s.phase not in ENDED and s.quiet >= after}
        return quiet | _locked_out(statuses)

    def _statuses(self, now: float) -> list[RankStatus]:
        self._looked_at = now
        state, tracks = self._run.state, self._run.tracks
        ended = {rank.rank: rank.ended for rank in state.ranks.values() if rank.ended is not None}
        statuses = []
        for rank in sorted(state.ranks.values(), key=lambda rank: rank.rank):
            with tracks.lock:
                if rank.phase not in ENDED:
                    tracks.look(rank, self._run.sample)
                    written = self._bytes_written(rank)
                    tracks[rank.rank].watch(rank, written, now)
                statuses.append(tracks[rank.rank].status(rank, now, ended))
        return statuses

    def _bytes_written(self, rank: RankState) -> int:
        """Bytes that a rank has written, reported, displayed, and sent of its result."""
        record, size = self._run.record, 0
        for path in (
            record.log(rank.rank),
            record.log(rank.rank, "err"),
            record.history(rank.rank),
            record.displays(rank.rank),
            partial(record.result(rank.rank)),
        ):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        return size


def _locked_out(statuses: list[RankStatus]) -> set[int]:
    """Ranks that wait for the lock of an ended rank."""
    known = {status.rank: status for status in statuses}
    waiting = (s for s in statuses if s.waits_for_lock and s.lasting >= _LOCK_WAIT)
    return {s.rank for s in waiting if waits.for_ended(s, known)}


def _with_answer(status: RankStatus, answer: events.StackGroup | None) -> RankStatus:
    """The status at the place that the rank answered; a rank that answers is not unheard."""
    if answer is None or not answer.stack:
        return status
    place = answer.place or status.place
    call = status.call if place == status.place else ""
    return replace(status, place=place, call=call, unheard=False)
