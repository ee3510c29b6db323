"""End ranks that do not end on their own: interrupt, terminate, kill; and report ranks that stay,
and whatever they leave running.

Every rung has a time limit, so that no rank can keep a cell from ending; stopping the run again
skips the rest of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence

from xla_nb.engines import Engine
from xla_nb.engines.child import Feed
from xla_nb.messages import events
from xla_nb.monitor.stacks import InProgress, alike
from xla_nb.monitor.state import RankState, RunState
from xla_nb.wording import listed, ranks

#: Seconds that a process has to end after SIGTERM.
TERM_PATIENCE = 1.0
#: Seconds until what is left of a run is killed once more.
KILL_PATIENCE = 5.0
_MAX_KILLS = 3  # kills, after which the process that should have killed them is killed
#: The signal after another one; None: there was none. After these it is SIGKILL.
_NEXT = {None: signal.SIGINT, signal.SIGINT: signal.SIGTERM}


class Ladder:
    """KeyboardInterrupt in the ranks, `grace` seconds later SIGTERM, then SIGKILL to every process
    of the run. `due` is the time of the next rung, None before the first."""

    def __init__(self, run: str, engine: Engine, grace: float) -> None:
        self._run, self._engine = run, engine
        self._patience = {signal.SIGINT: grace, signal.SIGTERM: TERM_PATIENCE}
        self._sent: signal.Signals | None = None
        self._kill_count = 0
        self.due: float | None = None

    @property
    def is_killing(self) -> bool:
        return self._sent == signal.SIGKILL

    def next_signal(self, some_run: bool) -> signal.Signals:
        """The signal of the next rung. If no rank runs, the remaining processes are killed."""
        return _NEXT.get(self._sent, signal.SIGKILL) if some_run else signal.SIGKILL

    def climb(self, now: float, feed: Feed, pids: Mapping[str, Sequence[int]] | None) -> None:
        """Take the next rung, at `now`. `pids` are the processes of running ranks, by host; None:
        none runs."""
        self._sent = self.next_signal(pids is not None)
        self.due = now + self._patience.get(self._sent, KILL_PATIENCE)
        if pids is not None and not self.is_killing:
            self._engine.signal(self._run, pids, self._sent)
        elif self._kill_count < _MAX_KILLS:
            self._kill_count += 1
            self._engine.kill(self._run)
        else:
            feed.kill()

    def repeat(self, pids: Mapping[str, Sequence[int]]) -> None:
        """Interrupt processes again that did not react to the first interrupt: Python misses a
        signal that arrives just as it begins a blocking system call (its handler runs afterwards).
        """
        if self._sent == signal.SIGINT and pids:
            self._engine.signal(self._run, pids, signal.SIGINT)

    def meet(self, host: str, pid: int) -> None:
        """Send a rank that has just begun the signal that the others got."""
        if self._sent is not None and not self.is_killing:
            self._engine.signal(self._run, {host: [pid]}, self._sent)


# ---------------------------------------------------------------- ranks that stay

_MAX_AGE = 2.0  # seconds for which the last place of a rank counts as current
_MOST = 4  # places in one sentence


def unheard(run: InProgress, numbers: Iterable[int]) -> list[RankState]:
    """Those of these ranks that reported no interrupt, although their programs have no SIGINT
    handler."""
    silent = [n for n in numbers if run.state.ranks[n].interrupted is None]
    heeding = [n for n in silent if (sample := run.sample(n)) is not None and sample.heeds]
    return [run.state.ranks[number] for number in heeding]


def note_places(run: InProgress, numbers: Iterable[int]) -> None:
    """Note where these ranks are by their samples, if that is news since the interrupt."""
    for number in numbers:
        rank, sample = run.state.ranks[number], run.sample(number)
        if sample is None or rank.phase == "starting":
            continue
        if sample.at > (rank.located or 0.0) and rank.is_news(sample.at, sample.place):
            stack = rank.stack if rank.place == sample.place else ""
            run.take(events.RankAt(rank=number, place=sample.place, stack=stack, at=sample.at))


def in_words(state: RunState, numbers: Iterable[int], now: float) -> str:
    """The noted places of ranks at `now`, on the clock of events: `at Cell In[3], line 7`. Empty if
    none is known."""
    known = alike({number: _last_seen(state.ranks[number], now) for number in numbers})
    if len(known) == 1:
        return next(iter(known))
    return listed([f"{ranks(group)} {at}" for at, group in known.items() if at], most=_MOST)


def _last_seen(rank: RankState, now: float) -> str:
    if not rank.place:
        return ""
    if rank.only_interrupted:
        return f"interrupted at {rank.place}"
    age = now - (rank.located or now)
    return f"at {rank.place}" if age < _MAX_AGE else f"last seen at {rank.place}, {age:.0f} s ago"


def may_take(numbers: list[int], grace: float, lives: bool) -> events.Notice:
    """A notice that these ranks may take up to `grace` seconds, and what another stop does; lives:
    they are live ranks."""
    subject, advice = f"Interrupted; {ranks(numbers)}", "Stop again to end them now."
    if lives:
        lost = "the values there are lost"
        advice = f"After that, or if you stop again, SIGTERM ends {ranks(numbers)}, and {lost}."
    text = f"{subject} may take up to {grace:g} s to clean up (grace). {advice}"
    return events.Notice(text=text, passing=True)


# ---------------------------------------------------------------- what they leave running

_LINGERING = (
    "The ranks left threads, processes or `atexit` handlers running; they were killed after "
    "{seconds:g} s. Wait for them in the function (`thread.join()`, `process.wait()`)."
)
_NOT_READY = (
    "{ranks} finished the cell but did not become ready for the next one within {seconds:g} s, so "
    "the live ranks were ended."
)


def left_running(state: RunState, seconds: float, *, lives: bool) -> str:
    """The sentence on anything still running `seconds` after the ranks ended; empty if not needed.

    lives: they are live ranks, which should have been ready for another program.
    """
    if lives:
        return _NOT_READY.format(ranks=ranks(state.ranks).capitalize(), seconds=seconds)
    # A killed rank could not wait for the processes that it had started.
    was_killed = any(rank.death is not None for rank in state.ranks.values())
    return "" if was_killed or not state.ranks else _LINGERING.format(seconds=seconds)
