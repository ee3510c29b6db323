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
from xla_nb.monitor import stacks
from xla_nb.monitor.stacks import InProgress, Inquiry, alike
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

_ASK_DELAY = 0.3  # seconds from the interrupt until ranks are first asked where they are
_REPEAT_DELAY = 0.8  # seconds until an interrupt that a rank did not report is repeated
_ASK_LEAD = stacks.PATIENCE + 0.1  # seconds before they are killed, when they are asked again
_MAX_LINES = 8  # lines of a stack
_MAX_AGE = 2.0  # seconds for which the last place of a rank counts as current
_MOST = 4  # places in one sentence


class Staying:
    """Places of ranks that do not stop. They are asked soon after the interrupt, and again in time
    before they are ended by force, which never waits. The run was stopped at `stopped`, from
    `time.monotonic()`, like `now`."""

    def __init__(self, run: InProgress, stopped: float) -> None:
        self._run, self._stopped_at = run, stopped
        self._asked_at = float("-inf")  # when the last inquiry was made
        self._inquiry: Inquiry | None = None
        self._has_repeated = False

    def unheard(self, now: float, numbers: Iterable[int]) -> list[int]:
        """Once, after enough time: those of these ranks that reported no interrupt, although their
        programs have no SIGINT handler."""
        if self._has_repeated or now < self._stopped_at + _REPEAT_DELAY:
            return []
        self._has_repeated = True
        silent = [n for n in numbers if self._run.state.ranks[n].interrupted is None]
        return [n for n in silent if (sample := self._run.sample(n)) is not None and sample.heeds]

    def ask_if_due(self, now: float, due: float | None) -> None:
        """Ask the ranks where they are, if it is time. `due`: time of the next signal, if any."""
        if self._inquiry is None:
            is_due = now >= self._stopped_at + _ASK_DELAY
        else:
            is_due = due is not None and self._asked_at < due - _ASK_LEAD <= now
        if is_due:
            self._asked_at, self._inquiry = now, Inquiry(self._run)

    def note(self, numbers: Iterable[int]) -> None:
        """Note where these ranks are, from samples newer than their own answers."""
        for number in numbers:
            rank, sample = self._run.state.ranks[number], self._run.sample(number)
            if sample is None or rank.phase == "starting":
                continue
            if sample.at > (rank.located or 0.0) and rank.is_news(sample.at, sample.place):
                stack = rank.stack if rank.place == sample.place else ""
                event = events.RankAt(rank=number, place=sample.place, stack=stack, at=sample.at)
                self._run.take(event)

    def with_stacks(self, numbers: Iterable[int]) -> str:
        """Lines with the places of these ranks and the innermost frames of their stacks; only the
        stack if all are at one place."""
        if self._inquiry is not None and self._inquiry.settled:
            answers = self._inquiry.answers()
        else:
            self.note(numbers)
            answers = {n: stacks.told(self._run.state.ranks[n]) for n in numbers}
        known = stacks.grouped({n: answers[n] for n in numbers if n in answers})
        groups = [stacks.short(group, _MAX_LINES) for group in known]
        if len(groups) == 1 and groups[0].stack and not groups[0].note:
            return groups[0].stack
        return stacks.text(groups)


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
