"""A run from the notebook's side: followed, stopped, read.

However a run ends (all returned, one failed or died, stopped, timed out, fork server lost), it
passes through one state and one ladder. Stop would not reach a second way to end.
"""

from __future__ import annotations

import errno
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping

from xla_nb.engines import Engine
from xla_nb.engines.child import Feed
from xla_nb.errors import Interrupted, LaunchError
from xla_nb.linux import shortage
from xla_nb.messages import events
from xla_nb.monitor import conclusions
from xla_nb.monitor.hang import HangWatch
from xla_nb.monitor.nonfinite import FigureWatch
from xla_nb.monitor.sentences import changes
from xla_nb.monitor.state import ENDED, RankState
from xla_nb.old_names import first_time
from xla_nb.record import private
from xla_nb.record.files import Losses, Record
from xla_nb.run.failed import RunFailed, as_raised
from xla_nb.run.options import Options, duration
from xla_nb.run.recorded import RecordedRun
from xla_nb.run.stopping import Ladder, in_words, left_running, may_take, note_places, unheard
from xla_nb.wording import in_one_line, ranks

#: Seconds that processes have to exit after every rank has stopped; also seconds that ranks have to
#: stop before those that have not are named.
STOP_PATIENCE = 1.0
_REPEAT_DELAY = 0.8  # seconds until an interrupt that a rank did not report is repeated
#: Seconds that processes have to exit after every rank has returned.
EXIT_PATIENCE = 3.0
#: Seconds that live ranks have to become ready for the next program after one has ended.
LIVE_PATIENCE = 30.0
_TICK, _SOON = 0.1, 0.2  # seconds between looks; until the first at ranks, which delays no cell
_SAME = 2.0  # seconds between two stops that may be the same one
_DRAWING = 0.05  # seconds that a view has to show that all ranks have ended
_SHOW_TIMEOUT = 5.0  # seconds that a view in the background has to show the end
_SIGTERM = (
    "Sent SIGTERM to {}{}, which did not exit within {:g} s of the interrupt (--grace). Some "
    "finally blocks may not have finished."
)
_NOT_FOLLOWED = "the notebook's thread for this run failed ({}), so the run was ended"


class Run(RecordedRun):
    """One launch, in progress or ended: a RecordedRun with

    wait(), stop(), ask_stacks()
    done      all its processes are gone
    changed   a Condition that is notified at every event
    urgent    an Event, set when a view must not wait: all ranks or all processes have ended, or a
              rank asks a question
    drawn     an Event, cleared while a view has yet to show that all ranks have ended: the run's
              remaining work would delay that
    shown_in  the number of the notebook's cell whose view shows it, if any
    """

    def __init__(
        self,
        name: str,
        label: str,
        record: Record,
        engine: Engine,
        feed: Feed,
        options: Options,
        definitions: Mapping[int, object],
        group: str = "",
    ) -> None:
        """group: the live ranks' run whose processes run it; empty if it has its own processes."""
        super().__init__(name, label, record, definitions)
        self._group = group
        self._engine = engine
        self._feed = feed
        self._options = options
        self._began_at = time.monotonic()
        self._settled_at: float | None = None
        self._trouble_at: float | None = None
        self._ladder = Ladder(group or name, engine, options.grace)
        self._stopped_at: float | None = None
        self._has_reported = self._has_repeated = False
        self._stop_lock = threading.Lock()
        self._take_lock = threading.Lock()  # a stop is taken in the thread that asks for it
        # Into the state alone: the record cannot be written.
        # A run does not refer to itself: its files stay while anything refers to it (api.keep).
        state = self.state
        self._losses = Losses(record.path, lambda text: state.apply(events.Notice(text=text)))
        self.changed, self.urgent = threading.Condition(), threading.Event()
        self.drawn, self.is_followed = threading.Event(), False
        self.drawn.set()
        self.shown_in: int | None = None
        self._hangs = HangWatch(weakref.proxy(self), options.hang_after, stops=options.hang_stop)
        self._figures = FigureWatch(weakref.proxy(self), stops=options.stop_on_nan)
        self._ended = threading.Event()
        self._at_end: list[Callable[[Run], None]] = []
        #: Called before ranks that do not stop get a signal that ends them.
        self.before_force: Callable[[Run, signal.Signals], None] = lambda run, sent: None
        #: Cleared while a view in the background has yet to show the end.
        self.shown = threading.Event()
        self.shown.set()

    @property
    def done(self) -> bool:
        """All processes of the run are gone."""
        return self._ended.is_set()

    @property
    def elapsed(self) -> float:
        if self._settled_at is None:
            return time.monotonic() - self._began_at
        # Live ranks may have begun before the notebook followed them.
        shortest = self._lasted() if self._engine.here else 0.0
        return max(shortest, round(self._settled_at - self._began_at, 3))  # as the record has it

    @property
    def _patience(self) -> float:
        """Seconds that processes have to exit once the ranks have ended."""
        if self._group:
            return LIVE_PATIENCE
        return STOP_PATIENCE if self.state.stopping else EXIT_PATIENCE

    @property
    def _is_leaving(self) -> bool:
        """Live ranks have ended it, and will soon be ready for another program."""
        return bool(self._group) and self.state.settled and not self._ladder.is_killing

    # ------------------------------------------------------------ steering

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended. Raises RunFailed, or TimeoutError after `timeout` seconds
        (None: no limit)."""
        seconds = None if timeout is None else duration("timeout", timeout)
        try:
            ended = self._ended.wait(seconds and min(seconds, threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            raise Interrupted(f"{self.name} is still running; run.stop() stops it.") from None
        if not ended:
            raise TimeoutError(f"{self.name} is still running after {timeout} s")
        self.shown.wait(_SHOW_TIMEOUT)  # else its last lines would appear below later output
        self.check()
        return self

    def join(self, timeout: float | None = None) -> bool:
        """`wait` for programs that join the result of torch_xla's `spawn(join=False)`: returns
        whether it ended within `timeout` seconds, like `torch.multiprocessing.ProcessContext.join`.
        Raises RunFailed, which is also an instance of the exception that ended the run."""
        try:
            self.wait(timeout)
        except TimeoutError:
            return False
        except RunFailed as failed:
            raise as_raised(failed) from None
        return True

    def check(self) -> None:
        """Raise RunFailed unless every rank returned its value."""
        if not self.ok:
            raise RunFailed(self)

    def join_end(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended, however; False if it has not after `timeout` seconds."""
        return self._ended.wait(timeout)

    def at_end(self, callback: Callable[[Run], None]) -> None:
        """Call `callback` when the run has ended, before waiting threads continue."""
        with self._stop_lock:
            if not self._ended.is_set():
                self._at_end.append(callback)
                return
        callback(self)

    def stop(self, why: str = "Stopped by run.stop()", *, same: str = "") -> None:
        """Stop every rank: KeyboardInterrupt in its function; SIGTERM when the grace period
        (`--grace`) is over, then SIGKILL. Stopping again skips the rest of the current period.

        why: a headline for people, without a full stop. same: do nothing if the run was stopped
        for this reason less than 2 s ago: a busy kernel gets the same stop in two ways."""
        with self._stop_lock:
            settled = self.state.settled  # another thread may change it later
            if self.state.ended is not None or self._ladder.is_killing or self._is_leaving:
                return  # stopping again must not use stronger means
            now, is_repeated = time.monotonic(), bool(self.state.stopping)
            is_recent = self._stopped_at is not None and now - self._stopped_at < _SAME
            if same and self.state.stopping == same and is_recent:
                return
            if not settled and not is_repeated:  # else only processes are left
                if not (self._options.hang_stop and self.state.hang):  # its report says so
                    conclusions.conclude(self, self.label, conclusions.at_stop)
                self._stopped_at = now
                self.take(events.StopRequested(why=str(why)))
            staying = self._running()
            sent = self._climb(now, settled)
            if is_repeated and staying:
                self._has_reported = True  # `may_take` would promise time that they do not have
                text = f"Stopped again: sent {sent.name} to {''.join(self._name_staying(staying))}."
                self.take(events.Notice(text=text))

    def _name_staying(self, staying: list[int]) -> tuple[str, str]:
        """Ranks that do not stop, and where they are, in parentheses."""
        where = in_words(self.state, staying, time.time())
        return ranks(staying), where and f" ({where})"

    def stops_because(self, why: str) -> None:
        """Set the reason of a stop that its caller does not know. Stops nothing."""
        self.take(events.StopRequested(why=why))

    def _running(self) -> list[int]:
        """The ranks whose functions run."""
        return [r.rank for r in self.state.ranks.values() if r.pid and r.phase not in ENDED]

    def _climb(self, now: float, settled: bool) -> signal.Signals:
        """Take the next rung of the ladder and return its signal. `settled`: as the state was when
        that was decided. The caller holds `_stop_lock`."""
        running = [self.state.ranks[number] for number in self._running()]
        pids = _by_host(running)
        of_group = bool(self._group)
        some_run = not settled and bool(pids or of_group)  # one may be about to run
        by_host = pids if some_run else None
        sent = self._ladder.next_signal(some_run)
        if (some_run or of_group) and sent != signal.SIGINT:  # else StopRequested says it
            if self._stopped_at is not None:
                note_places(self, [rank.rank for rank in running])
            self.take(events.SignalSent(number=sent, of_group=of_group))
            self.before_force(self, sent)
        self._ladder.climb(now, self._feed, by_host)
        return sent

    def ask_stacks(self) -> None:
        """Ask each rank where it is; the answers are in the state's ranks within a second."""
        try:
            private.touch(self.record.stacks_request)
        except OSError as problem:  # its folder is gone, say: the run continues
            self._losses.note("the request for stacks", problem)
        self._engine.ask(self.name)

    # ------------------------------------------------------------ following

    def follow(self) -> None:
        """Take events in a thread of its own until the run has ended. Raises LaunchError, and
        leaves no ranks, if no thread can be started."""
        try:
            threading.Thread(target=self._follow, name=self.name, daemon=True).start()
        except RuntimeError as problem:
            self._engine.kill(self._group or self.name)
            self.take(events.JobEnded(status=None))
            self._conclude()
            advice = shortage(errno.EAGAIN)
            raise LaunchError(f"Cannot follow the run: {problem}. {advice}") from None

    def _follow(self) -> None:
        try:
            while self.state.ended is None:
                for event in self._feed.wait(_TICK):
                    self.drawn.wait(_DRAWING)
                    self._take_or_end(event)
                self._climb_if_due(time.monotonic())
                self._act(time.monotonic())
        except BaseException as fault:  # a patched module, say
            self._engine.kill(self._group or self.name)
            message = in_one_line(f"{type(fault).__name__}: {fault}", 300)
            self.take(events.JobEnded(status=None, why=_NOT_FOLLOWED.format(message)))
            raise  # threading shows where
        finally:
            self._conclude()

    def _conclude(self) -> None:
        """Close the record and release all waiting threads, whatever fails here."""
        try:
            with self._stop_lock:  # `stop` uses it
                self._feed.close()
            self.record.close(self.summary())
            for callback in self._at_end:
                callback(self)
        finally:
            self._ended.set()
            self.urgent.set()
            with self.changed:
                self.changed.notify_all()

    def _take_or_end(self, event: events.Event | None) -> None:
        """Take an event; None: no more events can arrive."""
        if self.state.ended is not None:
            return
        event = event or events.JobEnded(status=None, why=self._feed.why_ended())
        if isinstance(event, events.JobEnded):  # all other events have arrived
            if sentence := changes(self.state):
                self.take(events.Notice(text=sentence))
            conclusions.conclude(self, self.label, conclusions.at_end)
        if isinstance(event, events.RankStarted | events.JobStarted):
            with self._stop_lock:  # else a stop might send it the signal before `meet` does
                self.take(event)
                for rank in event.live if isinstance(event, events.JobStarted) else (event,):
                    self._ladder.meet(event.host, rank.pid)
        else:
            self.take(event)

    def take(self, event: events.Event) -> None:
        """Fold one event into the state and the record."""
        with self._take_lock:
            if self.state.ended is not None:
                return
            if isinstance(event, events.Notice) and event.once and not first_time(event.text):
                return
            try:
                self.record.add(event)
            except OSError as problem:  # a full disk: the notebook continues without
                self._losses.note("all of the saved record", problem)
            self.state.apply(event)
        self._figures.take(event)
        now = time.monotonic()
        if self._settled_at is None and self.state.settled:
            self._settled_at = now
            if self.is_followed:
                self.drawn.clear()
            self.urgent.set()
        if isinstance(event, events.Asked):
            self.urgent.set()
        if self._trouble_at is None and self.state.troubled:
            self._trouble_at = now
        with self.changed:
            self.changed.notify_all()

    def _act(self, now: float) -> None:
        """Do what is due now."""
        is_over = self._settled_at is not None and not self._is_leaving
        if not (is_over or self.state.stopping) and now - self._began_at >= _SOON:
            self._hangs.act(now)
        if self._settled_at is not None:
            self._kill_lingering(now)
        elif self._stopped_at is not None:
            self._handle_staying(now)
        elif (
            self._trouble_at is not None
            and self.state.group is None  # other live ranks may hold values that the user wants
            and now - self._trouble_at >= self._options.grace
        ):
            self.stop(f"Stopped {self._options.grace:g} s after the first failure (grace)")
        elif self._options.timeout is not None and now - self._began_at >= self._options.timeout:
            self.stop(f"Timed out after {self._options.timeout:g} s (timeout)")

    def _climb_if_due(self, now: float) -> None:
        with self._stop_lock:  # another thread may be stopping the run again
            due = None if self._is_leaving else self._ladder.due
            if due is not None and now >= due:
                staying = self._running()
                if self._climb(now, self.state.settled) == signal.SIGTERM and staying:
                    text = _SIGTERM.format(*self._name_staying(staying), self._options.grace)
                    self.take(events.Notice(text=text))

    def _handle_staying(self, now: float) -> None:
        """Interrupt staying ranks once more that have not reacted, and report once that they stay;
        kill the ranks that have not begun when all others have ended."""
        assert self._stopped_at is not None
        staying = self._running()
        if not staying and not self._ladder.is_killing and not self._group:
            with self._stop_lock:
                self._climb(now, self.state.settled)
            return
        if staying and not self._has_repeated and now >= self._stopped_at + _REPEAT_DELAY:
            self._has_repeated = True
            self._ladder.repeat(_by_host(unheard(self, staying)))
        if now >= self._stopped_at + STOP_PATIENCE and not self._has_reported:
            self._has_reported = True
            if staying and self._options.grace > STOP_PATIENCE:
                self.take(may_take(staying, self._options.grace, bool(self._group)))

    def _kill_lingering(self, now: float) -> None:
        """Kill processes that have not exited some time after the ranks ended."""
        assert self._settled_at is not None
        if not self._ladder.is_killing and now >= self._settled_at + self._patience:
            text = left_running(self.state, self._patience, lives=bool(self._group))
            if text and not self.state.stopping:
                self.take(events.Notice(text=text))
            with self._stop_lock:
                self._climb(now, self.state.settled)


def _by_host(running: Iterable[RankState]) -> dict[str, list[int]]:
    """The processes of ranks, by host."""
    pids_by_host: dict[str, set[int]] = {}
    for rank in running:
        pids_by_host.setdefault(rank.host, set()).add(rank.pid or 0)
    return {host: sorted(pids) for host, pids in pids_by_host.items()}
