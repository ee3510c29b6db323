"""A run from the notebook's side: followed, stopped, read.

However a run ends (all returned, one failed or died, stopped, timed out, fork server lost), it
passes through one state and one ladder of signals: KeyboardInterrupt in the ranks, `grace` seconds
later SIGTERM, then SIGKILL to every process of the run. Stop would not reach a second way to end.
Every rung has a time limit, so that no rank can keep a cell from ending; stopping the run again
skips the rest of it.
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
from xla_nb.monitor.conclusions import at_end, at_stop, conclude
from xla_nb.monitor.hang import HangWatch
from xla_nb.monitor.nonfinite import FigureWatch
from xla_nb.monitor.sentences import changes
from xla_nb.monitor.stacks import alike
from xla_nb.monitor.state import ENDED, RankState
from xla_nb.old_names import first_time
from xla_nb.record import private
from xla_nb.record.files import Losses, Record
from xla_nb.run.failed import RunFailed, as_raised
from xla_nb.run.options import Options, duration
from xla_nb.run.recorded import RecordedRun
from xla_nb.wording import in_one_line, listed, ranks

#: Seconds that processes have to exit after every rank has stopped; also seconds that ranks have to
#: stop before those that have not are named.
STOP_PATIENCE = 1.0
_REPEAT_DELAY = 0.8  # seconds until an interrupt that a rank did not report is repeated
#: Seconds that processes have to exit after every rank has returned.
EXIT_PATIENCE = 3.0
#: Seconds that a process has to end after SIGTERM; and until what is left is killed once more.
TERM_PATIENCE, KILL_PATIENCE = 1.0, 5.0
_MAX_KILLS = 3  # kills, after which the process that should have killed them is killed
#: The signal after another one; None: there was none. After these it is SIGKILL.
_NEXT = {None: signal.SIGINT, signal.SIGINT: signal.SIGTERM}
#: Seconds that live ranks have to become ready for the next program after one has ended.
LIVE_PATIENCE = 30.0
_TICK, _SOON = 0.1, 0.2  # seconds between looks; until the first at ranks, which delays no cell
_SAME = 2.0  # seconds between two stops that may be the same one
_DRAWING = 0.05  # seconds that a view has to show that all ranks have ended
_SHOW_TIMEOUT = 5.0  # seconds that a view in the background has to show the end
_MAX_AGE = 2.0  # seconds for which the last place of a rank counts as current
_MOST = 4  # places in one sentence
_SIGTERM = (
    "Sent SIGTERM to {}, which did not exit within {:g} s of the interrupt (--grace). Some "
    "finally blocks may not have finished."
)
_LINGERING = (
    "The ranks left threads, processes or `atexit` handlers running; they were killed after "
    "{seconds:g} s. Wait for them in the function (`thread.join()`, `process.wait()`)."
)
_NOT_READY = (
    "{ranks} finished the cell but did not become ready for the next one within {seconds:g} s, so "
    "the live ranks were ended."
)
_NOT_FOLLOWED = "the notebook's thread for this run failed ({}), so the run was ended"
_NOT_WATCHED = (
    "xla_nb has stopped looking for problems of this run such as hangs and slow steps, because "
    "that failed ({}). The run continues."
)


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
        self._processes = group or name  # the run that the engine knows its processes by
        self._engine = engine
        self._feed = feed
        self._options = options
        self._began_at = time.monotonic()
        self._settled_at: float | None = None
        self._trouble_at: float | None = None
        self._sent: signal.Signals | None = None
        self._due: float | None = None  # time of the next rung of the ladder
        self._kill_count = 0
        self._stopped_at: float | None = None
        self._has_reported = self._has_repeated = self._is_unwatched = False
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
        return bool(self._group) and self.state.settled and not self._is_killing

    @property
    def _is_killing(self) -> bool:
        return self._sent == signal.SIGKILL

    # ------------------------------------------------------------ steering

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended. Raises RunFailed, or TimeoutError after `timeout` seconds
        (None: no limit)."""
        seconds = None if timeout is None else duration("timeout", timeout)
        try:
            ended = self._ended.wait(seconds)
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
            if self.state.ended is not None or self._is_killing or self._is_leaving:
                return  # stopping again must not use stronger means
            now, is_repeated = time.monotonic(), bool(self.state.stopping)
            is_recent = self._stopped_at is not None and now - self._stopped_at < _SAME
            if same and self.state.stopping == same and is_recent:
                return
            if not settled and not is_repeated:  # else only processes are left
                if not (self._options.hang_stop and self.state.hang):  # its report says so
                    self._watch(lambda: conclude(self, self.label, at_stop))
                self._stopped_at = now
                self.take(events.StopRequested(why=str(why)))
            staying = self._running()
            sent = self._climb(now, settled)
            if is_repeated and staying:
                self._has_reported = True  # "may take" would promise time that they do not have
                self._notify(f"Stopped again: sent {sent.name} to {_described(staying)}.")

    def stops_because(self, why: str) -> None:
        """Set the reason of a stop that its caller does not know. Stops nothing."""
        self.take(events.StopRequested(why=why))

    def _notify(self, text: str, *, passing: bool = False) -> None:
        self.take(events.Notice(text=text, passing=passing))

    def _running(self) -> list[RankState]:
        """The ranks whose functions run."""
        return [r for r in self.state.ranks.values() if r.pid and r.phase not in ENDED]

    def _climb(self, now: float, settled: bool) -> signal.Signals:
        """Take the next rung of the ladder and return its signal. If no rank runs, the remaining
        processes are killed. `settled`: as the state was when that was decided. The caller holds
        `_stop_lock`."""
        running, of_group = self._running(), bool(self._group)
        some_run = not settled and bool(running or of_group)  # one may be about to run
        sent = _NEXT.get(self._sent, signal.SIGKILL) if some_run else signal.SIGKILL
        if (some_run or of_group) and sent != signal.SIGINT:  # else StopRequested says it
            if self._stopped_at is not None:
                self._note_places(running)
            self.take(events.SignalSent(number=sent, of_group=of_group))
            self.before_force(self, sent)
        self._sent = sent
        patience = {signal.SIGINT: self._options.grace, signal.SIGTERM: TERM_PATIENCE}
        self._due = now + patience.get(sent, KILL_PATIENCE)
        if not self._is_killing:
            self._engine.signal(self._processes, _by_host(running), sent)
        elif self._kill_count < _MAX_KILLS:
            self._kill_count += 1
            self._engine.kill(self._processes)
        else:
            self._feed.kill()
        return sent

    def _note_places(self, running: Iterable[RankState]) -> None:
        """Note where these ranks are by their samples, if that is news since the interrupt."""
        for rank in running:
            sample = self.sample(rank.rank)
            if sample is None or rank.phase == "starting":
                continue
            if sample.at > (rank.located or 0.0) and rank.is_news(sample.at, sample.place):
                stack = rank.stack if rank.place == sample.place else ""
                at, place = sample.at, sample.place
                self.take(events.RankAt(rank=rank.rank, place=place, stack=stack, at=at))

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
            self._engine.kill(self._processes)
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
                self._act(time.monotonic())
        except BaseException as fault:  # a patched module, say
            self._engine.kill(self._processes)
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
            self._watch(lambda: conclude(self, self.label, at_end))
        if isinstance(event, events.RankStarted | events.JobStarted):
            with self._stop_lock:  # else a stop might send the signal to it as well
                self.take(event)
                started = event.live if isinstance(event, events.JobStarted) else (event,)
                if started and self._sent is not None and not self._is_killing:
                    pids = [rank.pid for rank in started]
                    self._engine.signal(self._processes, {event.host: pids}, self._sent)
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
        self._climb_if_due(now)
        is_over = self._settled_at is not None and not self._is_leaving
        if not (is_over or self.state.stopping) and now - self._began_at >= _SOON:
            self._watch(lambda: self._hangs.act(now))
        grace, timeout = self._options.grace, self._options.timeout
        if self._settled_at is not None:
            self._kill_lingering(now)
        elif self._stopped_at is not None:
            self._handle_staying(now)
        elif (
            self._trouble_at is not None
            and self.state.group is None  # other live ranks may hold values that the user wants
            and now - self._trouble_at >= grace
        ):
            self.stop(f"Stopped {grace:g} s after the first failure (grace)")
        elif timeout is not None and now - self._began_at >= timeout:
            self.stop(f"Timed out after {timeout:g} s (timeout)")

    def _watch(self, look: Callable[[], None]) -> None:
        """Look for problems of the run; if that fails, this is no reason to end it."""
        if self._is_unwatched:
            return
        try:
            look()
        except Exception as fault:
            self._is_unwatched = True
            self._notify(_NOT_WATCHED.format(in_one_line(f"{type(fault).__name__}: {fault}", 300)))

    def _climb_if_due(self, now: float) -> None:
        with self._stop_lock:  # another thread may be stopping the run again
            if self._due is None or now < self._due or self._is_leaving:
                return
            staying = self._running()
            if self._climb(now, self.state.settled) == signal.SIGTERM and staying:
                self._notify(_SIGTERM.format(_described(staying), self._options.grace))

    def _handle_staying(self, now: float) -> None:
        """Interrupt staying ranks once more that have not reacted, and report once that they stay;
        kill the ranks that have not begun when all others have ended."""
        assert self._stopped_at is not None
        staying, grace = self._running(), self._options.grace
        if not staying and not self._is_killing and not self._group:
            with self._stop_lock:
                self._climb(now, self.state.settled)
            return
        if staying and not self._has_repeated and now >= self._stopped_at + _REPEAT_DELAY:
            self._has_repeated = True
            if self._sent == signal.SIGINT and (deaf := _by_host(filter(self._is_deaf, staying))):
                self._engine.signal(self._processes, deaf, signal.SIGINT)
        if now >= self._stopped_at + STOP_PATIENCE and not self._has_reported:
            self._has_reported = True
            if staying and grace > STOP_PATIENCE:
                who, advice = ranks(rank.rank for rank in staying), "Another stop ends them now."
                if self._group:
                    advice = "After that, or at another stop, SIGTERM ends "
                    advice += f"{who}, and the values there are lost."
                text = (
                    f"Sent an interrupt to {who}, which may take up to {grace:g} s to clean up "
                    f"(grace). {advice}"
                )
                self._notify(text, passing=True)

    def _is_deaf(self, rank: RankState) -> bool:
        """Whether the rank reported no interrupt, although its program has no SIGINT handler:
        Python misses a signal that arrives just as it begins a blocking system call (its handler
        runs afterwards)."""
        sample = self.sample(rank.rank)
        return rank.interrupted is None and sample is not None and sample.heeds

    def _kill_lingering(self, now: float) -> None:
        """Kill processes that have not exited some time after the ranks ended."""
        assert self._settled_at is not None
        if self._is_killing or now < self._settled_at + self._patience:
            return
        states = self.state.ranks
        # A killed rank could not wait for the processes that it had started; others never began.
        began = [rank for rank in states.values() if rank.pid]
        is_expected = not began or any(rank.death is not None for rank in began)
        if not self.state.stopping and (self._group or not is_expected):
            text = _NOT_READY if self._group else _LINGERING
            self._notify(text.format(ranks=ranks(states).capitalize(), seconds=self._patience))
        with self._stop_lock:
            self._climb(now, self.state.settled)


def _by_host(running: Iterable[RankState]) -> dict[str, list[int]]:
    """The processes of ranks, by host."""
    pids_by_host: dict[str, set[int]] = {}
    for rank in running:
        pids_by_host.setdefault(rank.host, set()).add(rank.pid or 0)
    return {host: sorted(pids) for host, pids in pids_by_host.items()}


def _described(staying: Iterable[RankState]) -> str:
    """Ranks that do not stop, and where they are, in parentheses."""
    where = places(staying, time.time())
    return f"{ranks(rank.rank for rank in staying)}{where and f' ({where})'}"


def places(staying: Iterable[RankState], now: float) -> str:
    """The noted places of ranks at `now`, on the clock of events: `at Cell In[3], line 7`. Empty if
    none is known."""
    known = alike({rank.rank: _last_seen(rank, now) for rank in staying})
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
