"""Events folded into a run's state.

Pure, and the only place that decides on a run's state, so that a live run, a reopened one and a
thousand simulated ranks cannot differ.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages import events

Phase = Literal["starting", "running", "finished", "failed", "died", "stopped"]
Outcome = Literal["running", "finished", "failed", "stopped"]
#: Phases a rank does not leave.
ENDED: frozenset[Phase] = frozenset({"finished", "failed", "died", "stopped"})
_REACTION = 0.05  # seconds from an interrupt until the rank continues, wherever that is


@dataclass
class RankState:
    """One rank. `place` is the notebook line at which it failed or was last seen, with `stack`:
    where an interrupt reached it (`interrupted`), or where it was when asked later, at the time
    `located`; if an interrupt ended it, where that reached it. `lost` names the other process whose
    end ended it, if any. `devices` are named if one process drives several."""

    rank: int
    phase: Phase = "starting"
    host: str = ""
    pid: int | None = None
    device: str = ""
    started: float | None = None
    ended: float | None = None
    returned: events.RankFinished | None = None
    place: str = ""
    stack: str = ""
    located: float | None = None
    interrupted: events.RankInterrupted | None = None
    failure: events.RankFailed | None = None
    death: events.ProcessDied | None = None
    lost: str = ""
    devices: tuple[str, ...] = ()

    @property
    def follows(self) -> bool:
        """It failed because another rank had ended."""
        return self.failure is not None and self.failure.follows

    @property
    def only_interrupted(self) -> bool:
        """Nothing is known of its place since an interrupt reached it."""
        return self.interrupted is not None and not self.is_news(self.located or 0.0, self.place)

    def is_news(self, at: float, place: str) -> bool:
        """Whether it was seen there after an interrupt reached it, and not at that moment."""
        event = self.interrupted
        return event is None or at > event.at + (_REACTION if place == event.place else 0.0)

    def end(self, phase: Phase, at: float) -> None:
        if self.phase not in ENDED:
            self.phase, self.ended = phase, at


@dataclass
class HostState:
    """One machine of the run. `lost` says why it was gone before its job ended, if it was."""

    name: str
    started: float | None = None
    ended: float | None = None
    lost: str = ""


@dataclass
class ProgramState:
    """A program of live ranks, the `place`-th from 1; `ended` is its end event, if it has ended."""

    place: int
    began: events.ProgramBegan
    ended: events.ProgramEnded | None = None


class Programs(list[ProgramState]):
    """The programs that live ranks were given, in order of their begin."""

    @property
    def running(self) -> list[ProgramState]:
        """The programs in progress, oldest first."""
        return [program for program in self if program.ended is None]

    def now(self, rank: int) -> events.ProgramBegan | None:
        """The program that a rank is running; None between two programs."""
        return next((p.began for p in self.running if rank in p.began.ranks), None)

    def rested(self, rank: int, idle: float | None = None) -> float | None:
        """When the last program of a rank ended: for that rank, if a sample taken after the
        program's begin says since when it is `idle`. None if it has had none."""
        spans = ((p.began.at, p.ended) for p in reversed(self) if rank in p.began.ranks)
        began, end = next(((at, end) for at, end in spans if end is not None), (0.0, None))
        if end is None:
            return None
        return min(idle, end.at) if idle is not None and idle >= began else end.at


@dataclass
class RunState:
    """A whole run.

    launched       the launch, once it was ordered
    first_trouble  the rank that failed or died first, if any
    sent           signals sent to the ranks since `stopping`, except SIGINT
    lost_group     live ranks lost by these; all of them by SIGKILL
    hang           the last report of a hang; `hang_over`: what ended it, empty while it lasts
    asked          questions of ranks that have no answer yet
    bound          names that a program of live ranks bound there
    unopened       ranks that could not open what the program sent
    group          the event that made these live ranks; None if they are not
    programs       the programs of live ranks
    ending         why live ranks end, once they are to; `cut`: what they ran then
    conclusions    what the run suffers from, by kind
    changed        values of the notebook that a rank changed and does not return
    """

    ranks: dict[int, RankState] = field(default_factory=dict)
    hosts: dict[str, HostState] = field(default_factory=dict)
    simulated: bool = False
    launched: events.Launched = field(default_factory=events.Launched)
    started: float | None = None
    ended: float | None = None
    refused: events.JobFailed | None = None
    first_trouble: int | None = None
    strays: list[events.ProcessDied] = field(default_factory=list)
    notices: list[events.Notice] = field(default_factory=list)
    stopping: str = ""
    sent: set[int] = field(default_factory=set)
    lost_group: tuple[int, ...] = ()
    hang: events.HangReported | None = None
    hang_over: str = ""
    asked: list[events.Asked] = field(default_factory=list)
    bound: list[events.NamesBound] = field(default_factory=list)
    unopened: set[int] = field(default_factory=set)
    group: events.GroupBegan | None = None
    programs: Programs = field(default_factory=Programs)
    ending: str = ""
    cut: list[ProgramState] = field(default_factory=list)
    conclusions: dict[str, events.Concluded] = field(default_factory=dict)
    changed: events.Changed | None = None

    def apply(self, event: events.Event) -> None:  # noqa: PLR0912, PLR0915
        """Fold in one event."""
        match event:
            case events.HostsPlaced():
                self.hosts = {name: HostState(name) for name in event.names}
            case events.HostLost():
                self._lose_host(event)
            case events.JobFailed():
                self.refused = self.refused or event
            case events.ProcessDied():
                self._end_dead(event)
            case events.StopRequested():
                self.stopping = event.why
            case events.SignalSent():
                self.sent.add(event.number)
                staying = [r.rank for r in self.ranks.values() if r.phase not in ENDED]
                if event.of_group:
                    self.lost_group = tuple(sorted({*self.lost_group, *staying})) or tuple(
                        self.ranks
                    )
            case events.HangReported():
                self.hang, self.hang_over = event, ""
            case events.HangOver():
                self.hang_over = self.hang_over or event.why
            case events.Notice():
                self._add_notice(event)
            case events.GroupBegan():
                self.group = event
            case events.GroupEnding():
                if not self.ending:
                    self.ending, self.cut = event.why, self.programs.running
                self.conclusions.clear()
            case events.ProgramBegan():
                self.programs.append(ProgramState(len(self.programs) + 1, event))
                self.conclusions.clear()  # they belong to the previous cell
            case events.ProgramEnded():
                newest = reversed(self.programs)  # of perhaps thousands
                same = (one for one in newest if one.began.number == event.number)
                if (program := next(same, None)) is not None:
                    program.ended = event
            case events.NamesBound():
                self.bound.append(event)
            case events.NotOpened():
                self.unopened.add(event.rank)
            case events.Launched():
                self.started = event.at
                self.launched = event
            case events.JobStarted():
                self._start_job(event)
            case events.JobEnded():
                self._end_job(event)
            case events.Concluded():
                self.conclusions[event.kind] = event
            case events.RankStarted():
                self._start_rank(event, event.host, event.at)
            case events.RankFinished():
                rank = self._rank(event.rank)
                rank.returned = event
                rank.end("finished", event.at)
                if self.hang is not None and event.rank in self.hang.ranks:
                    self.hang_over = self.hang_over or f"Rank {event.rank} returned"
            case events.Changed():
                self.changed = event
            case events.RankFailed():
                rank = self._find_failed(event)
                if event.follows and self.stopping:  # a consequence of the stop
                    rank.end("stopped", event.at)
                    return
                rank.failure, rank.place = event, event.place
                rank.end("failed", event.at)
                self._note_failure(rank.rank)
            case events.RankStopped():
                self._end_interrupted(event)
            case events.Asked():
                self.asked.append(event)
            case events.Answered():
                self.asked = [
                    one for one in self.asked if (one.pid, one.fd) != (event.pid, event.fd)
                ]
            case events.RankInterrupted():
                rank = self._rank(event.rank)
                rank.interrupted = event
                if event.at >= (rank.located or 0.0):  # it may arrive late
                    rank.place, rank.stack = event.place, event.stack
            case events.RankAt():
                rank = self._rank(event.rank)
                rank.place, rank.stack, rank.located = event.place, event.stack, event.at

    @property
    def conclusion(self) -> events.Concluded | None:
        """The strongest conclusion; why a run was slow does not matter if it failed."""
        candidates = (
            c for c in self.conclusions.values() if c.sentence and (c.wrong or not self.troubled)
        )
        return max(candidates, key=lambda c: (c.wrong, not c.calm, c.strength), default=None)

    @property
    def current_hang(self) -> events.HangReported | None:
        """The report of a hang that is not over."""
        return None if self.hang_over else self.hang

    @property
    def questions(self) -> list[events.Asked]:
        """Questions of running ranks to the person at the notebook, in order."""
        return [question for question in self.asked if self._rank(question.rank).phase not in ENDED]

    @property
    def has_all_ranks(self) -> bool:
        """Every host has reported its ranks, or no longer will."""
        is_waiting = any(host.started is None and not host.lost for host in self.hosts.values())
        return self.ended is not None or (bool(self.ranks) and not is_waiting)

    @property
    def settled(self) -> bool:
        """Every rank has ended, or the ranks were refused: nothing more will be computed."""
        if self.ended is not None or self.refused is not None:
            return True
        return self.has_all_ranks and all(r.phase in ENDED for r in self.ranks.values())

    @property
    def troubled(self) -> bool:
        """Something went wrong that ends the run after the grace period."""
        lost = any(host.lost for host in self.hosts.values())
        wrong = self.refused is not None or bool(self.strays) or lost
        return wrong or self.first_trouble is not None

    @property
    def ok(self) -> bool:
        """Every rank returned its value."""
        ranks = self.ranks.values()
        is_whole = self.refused is None and not any(host.lost for host in self.hosts.values())
        return is_whole and bool(ranks) and all(r.phase == "finished" for r in ranks)

    @property
    def outcome(self) -> Outcome:
        """How the run went; `stopped` if nothing went wrong before it was asked to stop."""
        if self.ended is None:
            return "running"
        if self.ok:
            return "stopped" if self.cut else "finished"
        return "stopped" if self.stopping and not self.troubled else "failed"

    def _add_notice(self, event: events.Notice) -> None:
        """Add a notice once: processes that a rank has forked may all send the same."""
        if all((notice.text, notice.rank) != (event.text, event.rank) for notice in self.notices):
            self.notices.append(event)

    def _rank(self, rank: int) -> RankState:
        if rank not in self.ranks:  # a new dict: threads iterate over the old one
            self.ranks = {**self.ranks, rank: RankState(rank)}
        return self.ranks[rank]

    def _start_job(self, event: events.JobStarted) -> None:
        self._host(event.host).started = event.at
        self.simulated, self.started = event.simulated, self.started or event.at
        for rank_event in event.live:
            self._start_rank(rank_event, event.host, event.at)
        for number in () if event.live else range(event.first, event.first + event.ranks):
            if self._rank(number).pid is None:  # else RankStarted named its host
                self._rank(number).host = event.host

    def _start_rank(self, event: events.RankStarted, host: str, at: float) -> None:
        rank = self._rank(event.rank)
        rank.phase, rank.started, rank.host = "running", at, host or rank.host
        rank.pid, rank.device, rank.devices = event.pid, event.device, event.devices

    def _find_failed(self, event: events.RankFailed) -> RankState:
        """The rank that failed. A rank that did not join knows only its number on its own host; if
        another host has that number, it is one of the ranks that have not begun."""
        rank = self._rank(event.rank)
        if rank.pid is None or event.host in ("", rank.host):
            return rank
        waiting = [r for r in self.ranks.values() if r.pid is None]
        return min(waiting, key=lambda r: (r.host != event.host, r.rank), default=rank)

    def _end_interrupted(self, event: events.RankStopped) -> None:
        """End an interrupted rank: with the whole run, or alone by somebody else's signal."""
        rank = self._rank(event.rank)
        if rank.interrupted is not None and rank.phase not in ENDED:
            rank.place, rank.stack = rank.interrupted.place, rank.interrupted.stack
        if not self.stopping and rank.phase not in ENDED:
            pid = rank.pid or 0
            rank.death = events.ProcessDied(at=event.at, pid=pid, status=-signal.SIGINT)
            rank.end("died", event.at)
            self._note_failure(rank.rank)
        rank.end("stopped", event.at)

    def _host(self, name: str) -> HostState:
        if name not in self.hosts:
            self.hosts = {**self.hosts, name: HostState(name)}
        return self.hosts[name]

    def _note_failure(self, rank: int) -> None:
        """Note a failure; a consequence gives way to its cause, whose event may arrive later."""
        if self.stopping:
            return
        if self.first_trouble is None or (self._lacks_cause and not self.ranks[rank].follows):
            self.first_trouble = rank

    @property
    def first_failure(self) -> events.RankFailed | None:
        """The exception that ended the run; None if a process died first."""
        return None if self.first_trouble is None else self.ranks[self.first_trouble].failure

    @property
    def _lacks_cause(self) -> bool:
        """The first failure is a consequence of something not known yet."""
        return self.first_trouble is not None and self.ranks[self.first_trouble].follows

    def _end_dead(self, event: events.ProcessDied) -> None:
        dead = [r for r in self.ranks.values() if r.pid == event.pid and event.host in ("", r.host)]
        if not dead and not self.stopping:
            self.strays.append(event)
        for rank in dead:
            if rank.phase in ENDED:
                continue
            rank.death = event
            rank.place = event.place or rank.place
            rank.end("stopped" if self._is_from_stop(event.status) else "died", event.at)
            self._note_failure(rank.rank)

    def _is_from_stop(self, status: int) -> bool:
        """Whether a process with this exit status ended because it was asked to. A crash during
        cleanup, or somebody else's signal, does not count."""
        if not self.stopping:
            return False
        if status < 0:
            return -status in {signal.SIGINT, *self.sent}
        return bool(self.sent) or status in (0, 128 + signal.SIGINT)

    def _lose_host(self, event: events.HostLost) -> None:
        host = self._host(event.host)
        if host.ended is not None:
            return
        host.ended = event.at
        ranks = self._ranks_on(event.host)
        running = [rank for rank in ranks if rank.phase not in ENDED]
        if running or not ranks:  # else all its events have arrived
            host.lost = event.why
        # The run may have been stopped for a consequence of the loss, before the loss was known.
        is_cause = self._lacks_cause
        for rank in running:
            rank.lost = event.why
            rank.end("died" if is_cause or not self.stopping else "stopped", event.at)
            self._note_failure(rank.rank)
        if is_cause and running:
            self.first_trouble = running[0].rank
        self._end_if_over(event.at)

    def _end_job(self, event: events.JobEnded) -> None:
        """Close one host's job; without a name, those of all hosts."""
        reason = event.reason
        if reason and not event.host and len(self.hosts) > 1:
            for name in list(self.hosts):
                self._lose_host(events.HostLost(at=event.at, host=name, why=reason))
        for host in self.hosts.values():
            if event.host in ("", host.name) and host.ended is None:
                host.ended = event.at
        for rank in self._ranks_on(event.host):
            if reason and self.group is not None and not self.ending and rank.phase == "finished":
                rank.phase = "running"  # until its job ended: nobody ended these live ranks
            if rank.pid is None and self.refused is not None:  # by another host's job
                self.ranks = {n: other for n, other in self.ranks.items() if other is not rank}
            elif rank.phase not in ENDED:
                rank.lost = "" if self.stopping else reason
                rank.end("stopped" if self.stopping else "died", event.at)
                if event.host:  # the other hosts' ranks still run, and must not for long
                    self._note_failure(rank.rank)
        if reason and not self.ranks and not self.stopping and self.refused is None:
            message = f"No rank was started: {reason.replace('their job', 'the job')}"
            self.refused = events.JobFailed(kind="LaunchError", message=message, text="")
        self._end_if_over(event.at)

    def _ranks_on(self, host: str) -> list[RankState]:
        return [rank for rank in self.ranks.values() if host in ("", rank.host)]

    def _end_if_over(self, at: float) -> None:
        if all(host.ended is not None for host in self.hosts.values()):
            self.ended = at
            outcome = self.outcome
            assert outcome != "running"
            for p in self.programs.running:  # its own end event arrives too late, if at all
                number = p.began.number
                p.ended = events.ProgramEnded(at=at, number=number, outcome=outcome, headline="")
