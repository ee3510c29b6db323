"""A run from the notebook's side: followed, stopped, read.

However a run ends (all returned, one failed or died, stopped, timed out, fork server lost), it
goes through one state and one ladder: ask the ranks to stop, then kill what is left. A second way
to end would be one that Stop does not reach.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from xla_nb.engines.base import Engine
from xla_nb.errors import XlaNbError
from xla_nb.protocol import channel, events
from xla_nb.record.files import Record, tidy
from xla_nb.run import sentences
from xla_nb.run.hang import HangWatch
from xla_nb.run.options import Options, duration
from xla_nb.run.recorded import RecordedRun
from xla_nb.run.state import ENDED

#: Seconds between the request to stop and the kill.
STOP_PATIENCE = 1.0
#: Seconds that processes have to exit after every rank has returned.
EXIT_PATIENCE = 3.0
#: The same, where what the cell's module has bound has not been kept yet.
KEEP_PATIENCE = 60.0
#: The same, where it has not been found out yet what the cell changed of the notebook's objects.
COMPARE_PATIENCE = 10.0
_TICK = 0.1
_KEEPING = (
    "The ranks have ended; what the cell's top level has computed is still being pickled. "
    "Interrupt the cell to give it up."
)
_NOT_COMPARED = (
    "Whether the cell's top level changed objects of the notebook was not found out in time. What "
    "it changed is so on the ranks, not in the notebook."
)


class RunFailed(XlaNbError):
    """A run that did not return every rank's value. `run` holds what there is.

    brief: the tracebacks of its ranks have been shown already, by the panel.
    """

    def __init__(self, run: Run, brief: bool = False) -> None:
        self.run = run
        shown = brief and run.state.refused is None
        lines = [sentences.headline(run.state), *([] if shown else sentences.details(run.state))]
        super().__init__("\n\n".join([*lines, f"Output and files: {run.record.path}"]))


class Run(RecordedRun):
    """One launch, running or ended: what RecordedRun has, and

    wait(), stop(), ask_stacks()
    done      all its processes are gone
    changed   a Condition that is notified at every event
    """

    def __init__(
        self,
        name: str,
        label: str,
        record: Record,
        engine: Engine,
        options: Options,
        resolve: Callable[[str], object],
        named: Mapping[str, object] = MappingProxyType({}),
        keeps: bool = False,
    ) -> None:
        super().__init__(name, label, record, resolve, named)
        self._engine = engine
        self._options = options
        self._began = time.monotonic()
        self._settled: float | None = None
        self._trouble: float | None = None
        self._kill_at: float | None = None
        self._lingering = False  # the ranks are done, their processes have had time to go
        self._keeps = keeps
        self._told_of_keeping = False
        self._stop_lock = threading.Lock()
        self._take_lock = threading.Lock()  # a stop is taken in the thread that asks for it
        self.changed = threading.Condition()
        self._hangs = HangWatch(self, options.hang_after, stops=options.hang_stop, here=engine.here)
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        """All processes of the run are gone."""
        return self._ended.is_set()

    @property
    def elapsed(self) -> float:
        return (self._settled or time.monotonic()) - self._began

    @property
    def _patience(self) -> float:
        """Seconds that processes have to exit once the ranks have ended."""
        if self._is_keeping:
            return KEEP_PATIENCE
        return COMPARE_PATIENCE if self._is_comparing else EXIT_PATIENCE

    @property
    def _is_keeping(self) -> bool:
        return self._keeps and not self.state.kept

    @property
    def _is_comparing(self) -> bool:
        return self._keeps and self.state.kept and not self.state.compared

    # ------------------------------------------------------------ steering

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run has ended. Raises RunFailed, or TimeoutError after `timeout` seconds
        (None: no limit)."""
        seconds = None if timeout is None else duration("timeout", timeout)
        if not self._ended.wait(seconds and min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"{self.name} is still running after {timeout} s")
        self.check()
        return self

    def check(self, brief: bool = False) -> None:
        """Raise RunFailed unless every rank returned its value."""
        if not self.ok:
            raise RunFailed(self, brief)

    def stop(self, why: str = "Stopped by run.stop()") -> None:
        """Stop every rank: KeyboardInterrupt in its function, and the end a second later.

        why: a headline for people, without a full stop."""
        with self._stop_lock:
            if self.state.stopping or self.done:
                return
            if self.state.settled:  # there is nothing left to stop but processes on their way out
                self._engine.kill(self.name)
                return
            self.take(events.StopRequested(why=why))
            self._kill_at = time.monotonic() + STOP_PATIENCE
        pids: dict[str, set[int]] = {}
        for rank in self.state.ranks.values():
            if rank.pid and rank.phase not in ENDED:
                pids.setdefault(rank.host, set()).add(rank.pid)
        if pids:
            self._engine.interrupt(self.name, {host: sorted(pids[host]) for host in pids})
        else:
            self._engine.kill(self.name)

    def ask_stacks(self) -> None:
        """Ask each rank where it is; the answers are in the state's ranks within a second."""
        self.record.stacks_request.touch()
        self._engine.ask(self.name)

    def output(self, rank: int, stream: str = "out") -> str:
        """What a rank wrote to stdout so far (`stream="err"`: to stderr), whole: from its own
        host if that can be reached, else as far as it has been received here."""
        host = self.state.ranks[rank].host if rank in self.state.ranks else ""
        content = self._engine.fetch(self.name, host, self.record.log(rank, stream).name)
        if content is None:
            return super().output(rank, stream)
        return content.decode(errors="replace")

    # ------------------------------------------------------------ following

    def follow(self, sock: socket.socket) -> None:
        """Take events from `sock` in a thread of the run's own, until the run has ended."""
        threading.Thread(target=self._follow, args=(sock,), name=self.name, daemon=True).start()

    def _follow(self, sock: socket.socket) -> None:
        with sock:
            while self.state.ended is None:
                if channel.ready(sock, _TICK):
                    for event in channel.receive(sock):
                        self._take_or_end(event)
                self._act(time.monotonic())
        self.record.close(self.summary())
        tidy()
        self._ended.set()
        with self.changed:
            self.changed.notify_all()

    def _take_or_end(self, event: events.Event | None) -> None:
        """An event; None is the end of all that could tell."""
        if event is not None or self.state.ended is not None:
            self.take(event or events.JobEnded(status=None))
            return
        why = self._engine.why_lost()
        for host in list(self.state.hosts) if why else []:
            self.take(events.HostLost(host=host, why=why))
        if why and not self.state.hosts:  # nobody has named them yet
            self.take(events.JobFailed(kind="LaunchError", message=why, text=""))
        self.take(events.JobEnded(status=None))

    def take(self, event: events.Event) -> None:
        """Fold one event into the state and the record."""
        with self._take_lock:
            if self.state.ended is not None:
                return
            self.record.add(event)
            self.state.apply(event)
            self._hangs.take(event)
        now = time.monotonic()
        if self._settled is None and self.state.settled:
            self._settled = now
        if self._trouble is None and self.state.troubled:
            self._trouble = now
        with self.changed:
            self.changed.notify_all()

    def _act(self, now: float) -> None:
        """The ladder: what is due at this moment."""
        if self._settled is None and not self.state.stopping:
            self._hangs.act(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._engine.kill(self.name)
            self._kill_at = None
        elif self._settled is not None:
            if not self._lingering and now >= self._settled + self._patience:
                self._lingering = True
                if self._is_comparing:
                    self.take(events.Notice(text=_NOT_COMPARED))
                self._engine.kill(self.name)
            elif not self._told_of_keeping and now >= self._settled + EXIT_PATIENCE:
                self._told_of_keeping = True
                if self._is_keeping and self.state.refused is None:
                    self.take(events.Notice(text=_KEEPING))
        elif self._trouble is not None and now - self._trouble >= self._options.grace:
            self.stop(f"Stopped {self._options.grace:g} s after the first failure (grace)")
        elif self._options.timeout is not None and now - self._began >= self._options.timeout:
            self.stop(f"Timed out after {self._options.timeout:g} s (timeout)")

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """The repr, and the same as data: rank, device, phase and result's preview."""
        return {"text/plain": repr(self), "application/vnd.xla-nb.run+json": self.summary()}
