"""A run from the notebook's side: launched, followed, stopped, read.

One thread per run takes its events, and nothing else does. The rule: every way a run can end
(all returned, one failed, one died, stopped, timed out, the fork server lost) goes through the
same state and the same ladder: ask the ranks to stop, then end what is left.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from xla_nb import sentences
from xla_nb.errors import LaunchError, XlaNbError
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.protocol import channel, events, pickling
from xla_nb.protocol.order import ARGUMENTS, Order
from xla_nb.protocol.random_state import Inheritance
from xla_nb.record.files import Record, tidy
from xla_nb.recorded import RecordedRun
from xla_nb.runtimes.fit import Fit, Waiting
from xla_nb.state import ENDED

#: Seconds that a rank has between being asked to stop and being ended.
STOP_PATIENCE = 1.0
#: Seconds that processes have to go after every rank has returned.
EXIT_PATIENCE = 3.0
_TICK = 0.1


class Engine(Protocol):
    """Where ranks are started: `engines.local` on this machine, `engines.ray` on others."""

    def fit(self, runtime: str, n: int | None, asked: Mapping[str, str]) -> Fit:
        """What a launch gets there. Raises XlaNbError where that will not do."""

    def start(
        self, order: Order, parcel: int, imports: Sequence[str], waiting: Waiting
    ) -> socket.socket:
        """Start it; gives the socket that its events come from. Raises LaunchError."""

    def interrupt(self, run: str, pids: Mapping[str, Sequence[int]]) -> None:
        """Stop these processes of each host at their next line of Python."""

    def kill(self, run: str) -> None:
        """End all processes of the run."""

    def ask(self, run: str) -> None:
        """Somebody has asked the run's ranks where they are (`Record.asked`)."""

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """A file of the run's as it lies on a host; None where the record has all of it."""

    def why_lost(self) -> str:
        """Why there are no more events of a run that has not ended; empty if nobody knows."""


@dataclass(frozen=True)
class Options:
    """How a run is to go. Times are in seconds; `timeout` None is no limit.

    n: ranks (devices, for `spmd`); None is all of a TPU's, or those of a simulated host.
    runtime: what the ranks join, one of `runtimes.NAMES`.
    grace: how long the others may go on once a rank has failed.
    on: where the ranks are: "local", this machine; "ray", a Ray cluster (RAY_ADDRESS);
    "ray://HOST:PORT", one that is reached through its client server.
    hosts: how many of the cluster's machines, with `n` ranks on each; None is all that are free.
    slices: how many TPU slices the hosts are in. wait: how long to wait for free hosts.
    """

    n: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    grace: float = 5.0
    runtime: str = "xla"
    on: str = "local"
    hosts: int | None = None
    slices: int | None = None
    wait: float = 0.0


class RunFailed(XlaNbError):
    """A run that did not return every rank's value. `run` holds what there is.

    brief: its tracebacks have been shown already, by the panel.
    """

    def __init__(self, run: Run, brief: bool = False) -> None:
        self.run = run
        lines = [sentences.headline(run.state), *([] if brief else sentences.details(run.state))]
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
    ) -> None:
        super().__init__(name, label, record, resolve)
        self._engine = engine
        self._options = options
        self._began = time.monotonic()
        self._settled: float | None = None
        self._trouble: float | None = None
        self._kill_at: float | None = None
        self._lingering = False  # the ranks are done, their processes have been given time to go
        self._stop_lock = threading.Lock()
        self.changed = threading.Condition()
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        """All processes of the run are gone."""
        return self._ended.is_set()

    @property
    def elapsed(self) -> float:
        return (self._settled or time.monotonic()) - self._began

    # ------------------------------------------------------------ steering

    def wait(self, timeout: float | None = None) -> Run:
        """Until the run has ended. Raises RunFailed, or TimeoutError after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.name} still runs after {timeout} s")
        self.check()
        return self

    def check(self, brief: bool = False) -> None:
        """Raise RunFailed unless every rank returned its value."""
        if not self.ok:
            raise RunFailed(self, brief)

    def stop(self, why: str = "you asked for it") -> None:
        """Stop every rank: KeyboardInterrupt in its function, and the end a second later."""
        with self._stop_lock:
            if self.state.stopping or self.done:
                return
            if self.state.settled:  # there is nothing left to stop but processes on their way out
                self._engine.kill(self.name)
                return
            self.state.stopping = why
            self._kill_at = time.monotonic() + STOP_PATIENCE
        pids: dict[str, set[int]] = {}
        for rank in self.state.ranks.values():
            if rank.pid and rank.phase not in ENDED:
                pids.setdefault(rank.host, set()).add(rank.pid)
        if pids:
            found = {host: sorted(numbers) for host, numbers in pids.items()}
            self._engine.interrupt(self.name, found)
        else:
            self._engine.kill(self.name)

    def ask_stacks(self) -> None:
        """Ask each rank where it is; the answers are in the state's ranks within a second."""
        self.record.asked.touch()
        self._engine.ask(self.name)

    def output(self, rank: int, stream: str = "out") -> str:
        """What a rank wrote to stdout so far (`stream="err"`: to stderr), whole: from its own
        host if that can be reached, else as far as it has been received here."""
        host = self.state.ranks[rank].host if rank in self.state.ranks else ""
        found = self._engine.fetch(self.name, host, self.record.log(rank, stream).name)
        if found is None:
            return super().output(rank, stream)
        return found.decode(errors="replace")

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
        if why and not self.state.hosts:  # they were still to be told
            self.take(events.JobFailed(kind="LaunchError", message=why, text=""))
        self.take(events.JobEnded(status=None))

    def take(self, event: events.Event) -> None:
        """Fold one event into the state and the record."""
        if self.state.ended is not None:
            return
        self.record.add(event)
        self.state.apply(event)
        now = time.monotonic()
        if self._settled is None and self.state.settled:
            self._settled = now
        if self._trouble is None and self.state.troubled:
            self._trouble = now
        with self.changed:
            self.changed.notify_all()

    def _act(self, now: float) -> None:
        """The ladder: what is due at this moment."""
        if self._kill_at is not None and now >= self._kill_at:
            self._engine.kill(self.name)
            self._kill_at = None
        elif self._settled is not None:
            if self._kill_at is None and not self._lingering:
                self._lingering = True
                self._kill_at = self._settled + EXIT_PATIENCE
        elif self._trouble is not None and now - self._trouble >= self._options.grace:
            self.stop(f"{self._options.grace:g} s after the first failure")
        elif self._options.timeout is not None and now - self._began >= self._options.timeout:
            self.stop(f"its time limit of {self._options.timeout:g} s is over")

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """The repr, and the same as data: rank, device, phase and result's preview."""
        return {"text/plain": repr(self), "application/vnd.xla-nb.run+json": self.summary()}


# ---------------------------------------------------------------- launching


def launch(
    what: Program,
    args: tuple[object, ...],
    options: Options,
    engine: Engine,
    resolve: Callable[[str], object],
    waiting: Waiting = lambda seconds, what: None,
) -> Run:
    """Start a program on every rank; gives the run at once.

    Raises UsageError, ShippingError or LaunchError, each before any rank has started.
    """
    fit = engine.fit(options.runtime, options.n, options.env)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    try:
        files = Record.create(name)
        path = files.program(what.name)
        module_file.write(what, path)
    except OSError as problem:
        raise LaunchError(
            f"the run's files cannot be written: {problem}. What to do: set XLA_NB_HOME to a "
            "folder of yours that has space"
        ) from None
    order = Order(
        run=name,
        runtime=options.runtime,
        program=str(path),
        record=str(files.path),
        entry=what.entry,
        takes_lock=what.takes_lock,
        by_name=frozenset(what.defines),
        n=options.n,
        asked=options.env,
        ranks=fit.ranks,
        device=fit.device,
        env=fit.env,
        cwd=_directory(),
        sys_path=tuple(sys.path),
        authkey=bytes(multiprocessing.current_process().authkey),
        inheritance=Inheritance.of_this_process(),
    )
    try:
        sock = _start(what, args, order, fit, engine, waiting)
    except BaseException:
        files.close({"run": name, "ok": False, "headline": "not started", "ranks": []})
        raise
    run = Run(name, what.label, files, engine, options, resolve)
    for text in [*what.notes, *fit.notices]:
        run.take(events.Notice(text=text))
    run.follow(sock)
    return run


def _start(
    what: Program,
    args: tuple[object, ...],
    order: Order,
    fit: Fit,
    engine: Engine,
    waiting: Waiting,
) -> socket.socket:
    parcel = _pack(what, args)
    try:
        return engine.start(order, parcel, fit.imports, waiting)
    finally:
        os.close(parcel)


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise LaunchError(
            "the notebook's working directory no longer exists. What to do: go to one that does, "
            "`import os; os.chdir('/a/folder')`, and run the cell again"
        ) from None


def _pack(what: Program, args: tuple[object, ...]) -> int:
    groups = [*what.groups, {ARGUMENTS: args}]
    try:
        return pickling.send(groups, what.defines)
    except Exception as problem:
        named = [*what.groups, {f"--args[{n}]": value for n, value in enumerate(args)}]
        raise pickling.explain(named, what.defines, what.origins, problem) from None
