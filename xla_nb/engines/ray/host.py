"""One host of a run: what its actor does, without Ray.

Ranks are started by the same engine as on one machine. The notebook polls for news, one numbered
answer at a time; an answer that was lost on the way is sent again.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from xla_nb.engines import base
from xla_nb.engines.base import Feed
from xla_nb.engines.child import in_memory
from xla_nb.engines.local import LocalEngine
from xla_nb.engines.ray.outbox import FileChunk, Outbox
from xla_nb.engines.stopped import StoppedProcesses
from xla_nb.errors import XlaNbError
from xla_nb.protocol import events
from xla_nb.protocol.order import HostGroup, Request
from xla_nb.record import private
from xla_nb.record.files import Record
from xla_nb.record.tidying import tidy
from xla_nb.runtimes.fit import Fit, fit_to_machine
from xla_nb.topology import addresses
from xla_nb.topology.chips import count_chips

_LONGEST = 1.0  # seconds until an answer is sent without news
_PAUSES = (0.005, 0.05)  # seconds between two checks of the files: at first, and later
_LIVELY = 1.0  # seconds for which the first pause applies

_AWAY = (
    "Ranks of a cluster (--on ray) cannot ask in the notebook. Ask there before the launch, and "
    "give the answer as an argument."
)
_GIVEN_UP = 100  # abandoned runs to remember: one may still be starting
#: Variables that describe a machine and its paths. They are not copied from the notebook's machine;
#: --env passes them to ranks.
_OF_MACHINE = (
    *("PATH", "HOME", "PWD", "TMPDIR", "USER", "LOGNAME", "HOSTNAME", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("TPU_LIBRARY_PATH", "PJRT_DEVICE"),
)


@dataclass(frozen=True)
class About:
    """A host's description: `node` is Ray's node id, `version` xla_nb's, `chips` the number of TPU
    chips."""

    hostname: str
    address: str
    node: str
    python: str
    version: str
    chips: int
    environ: dict[str, str]


@dataclass(frozen=True)
class Part:
    """A host's part of a run.

    request: the notebook's.
    program: the files of the program by name.
    env: the variables that were set in the notebook.
    sets: the variables of the host's seat.
    """

    name: str
    request: Request
    host_group: HostGroup
    program: Mapping[str, bytes]
    env: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostNews:
    """One answer. `number` counts from 1; `events` are encoded by `events.encode`; `over`: this is
    the last one."""

    number: int
    events: list[bytes]
    files: list[FileChunk]
    over: bool


class HostAgent:
    """The actor's methods; each may be called while another one waits.

    `environ` and `path` are this machine's own variables and sys.path for ranks.
    """

    def __init__(
        self,
        address: str,
        node: str,
        environ: Mapping[str, str],
        path: Sequence[str],
        engine: LocalEngine | None = None,
    ) -> None:
        self._address, self._node = address, node
        self._environ, self._path = environ, path
        self._engine = engine or LocalEngine()
        self._runs: dict[str, _Running] = {}
        self._held: dict[str, socket.socket] = {}  # a port for each run
        self._forgotten: deque[str] = deque(maxlen=_GIVEN_UP)

    def about(self) -> About:
        return About(
            hostname=socket.gethostname(),
            address=self._address,
            node=self._node,
            python=platform.python_version(),
            version=version(),
            chips=count_chips(),
            environ={
                name: value
                for name, value in self._environ.items()
                if name.startswith(("TPU_", "MEGASCALE_"))
            },
        )

    def hold_port(self, run: str) -> tuple[str, int]:
        """Reserve a port until the run is over; returns the address at which the run's other hosts
        reach this one."""
        self._held[run] = addresses.hold_port(self._address)
        port: int = self._held[run].getsockname()[1]
        if run in self._forgotten:  # abandoned by now
            self._release(run)
        return self._address, port

    def start(self, part: Part, parcel: bytes) -> str:
        """Start the ranks. Returns why they cannot be started, empty if they can."""
        run = part.request.run
        self._drop_tidied()
        try:
            self._runs[run] = self._start(part, parcel)
        except (XlaNbError, OSError) as problem:
            return str(problem)
        if run in self._forgotten:  # abandoned while it was starting
            self.forget(run)
        return ""

    def _start(self, part: Part, parcel: bytes) -> _Running:
        request, group = part.request, part.host_group
        fit = Fit("", None, {}, ()) if request.turn is not None else self._fit(part)
        # Unique because hosts may share a home, and a launch may be repeated on others of them.
        name = f"{request.run}-{group.index}-{uuid.uuid4().hex[:6]}"
        files = Record.create(name, "parts")
        for name, content in part.program.items():
            private.write(files.program_folder / name, content)
        here = replace(
            request,
            program=str(files.program_folder / Path(request.program).name),
            record=str(files.path),
            cwd=request.cwd if _may_enter(request.cwd) else str(Path.home()),
            sys_path=_path(request.sys_path, self._path),
            why_mute=request.why_mute or _AWAY,
        )
        try:
            with in_memory(parcel) as fd:
                feed = self._engine.start(here, fit, fd, lambda seconds, what: None, group)
        except BaseException:
            files.disown()
            files.close({"run": request.run, "ok": False, "headline": "not started"})
            raise
        running = _Running(part.name, files, feed, several=group.hosts > 1)
        running.queue(events.Notice(text=text, once=True) for text in fit.notices)
        return running

    def _fit(self, part: Part) -> Fit:
        request = part.request
        return fit_to_machine(
            request.runtime,
            request.n,
            request.user_env,
            _environ(self._environ, part.env),
            hosts=part.host_group.hosts,
            sets=part.sets,
        )

    def end(self, run: str) -> None:
        """Live ranks get nothing more."""
        self._engine.end(run)

    def news(self, run: str, seen: int) -> HostNews:
        """What is new since answer number `seen`; waits for news, but not for long."""
        news = self._runs[run].news(seen)
        if news.over:
            self._release(run)
        return news

    def signal(self, run: str, pids: list[int], number: int) -> None:
        self._engine.signal(run, {"": pids}, number)

    def kill(self, run: str) -> None:
        """End it; with every call by stronger means."""
        running = self._runs.get(run)
        if running is None:
            self._engine.kill(run)
        else:
            running.kill(self._engine, run)

    def forget(self, run: str) -> None:
        """End a run without a follower, even one still starting."""
        self._forgotten.append(run)
        self._engine.kill(run)
        running = self._runs.pop(run, None)
        if running is not None:
            running.give_up()
        self._release(run)

    def _drop_tidied(self) -> None:
        """Drop older runs whose records have been tidied away."""
        for run, running in list(self._runs.items()):
            if not running.files.path.exists():
                self._runs.pop(run, None)

    def _release(self, run: str) -> None:
        held = self._held.pop(run, None)
        if held is not None:
            held.close()

    def ask(self, run: str) -> None:
        """Ask the ranks for their stacks."""
        private.touch(self._runs[run].files.stacks_request)

    def alone(self, run: str) -> None:
        """The ranks of all other hosts have ended."""
        private.touch(self._runs[run].files.others_ended)

    def read(self, run: str, file: str, offset: int, count: int) -> bytes:
        """Bytes of a file of the run's record, empty past its end. Raises OSError or KeyError if it
        does not exist."""
        fd = private.reading(self._runs[run].files.path / Path(file).name)
        try:
            return os.pread(fd, count, offset)
        finally:
            os.close(fd)


class _Running:
    """A run on this host, and what has been sent of it."""

    def __init__(self, name: str, files: Record, feed: Feed, *, several: bool) -> None:
        self.files = files
        self._name = name
        self._feed = feed
        self._kills = 0
        self._outbox = Outbox(files.path, name if several else "")
        self._answer = HostNews(0, [], [], False)
        self._waiting: list[events.Event] = []  # until the files they refer to have been sent
        self._ranks: dict[int, int] = {}  # by pid
        self._processes = StoppedProcesses()
        self._ended: events.JobEnded | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def queue(self, new: Iterable[events.Event]) -> None:
        self._waiting += new

    def news(self, seen: int) -> HostNews:
        with self._lock:
            if seen == self._answer.number:
                self._answer = self._gather(seen + 1)
            return self._answer

    def kill(self, engine: LocalEngine, run: str) -> None:
        with self._lock:
            if self._ended is None:
                base.kill(engine, run, self._feed, self._kills)
                self._kills += 1

    def give_up(self) -> None:
        """Close the record of a run without a follower."""
        with self._lock:
            self._finish(ok=False, headline="abandoned")

    def _finish(self, *, ok: bool, headline: str) -> None:
        self._feed.close()
        self.files.disown()
        self.files.close({"run": self.files.path.name, "ok": ok, "headline": headline})
        tidy("parts")

    def _gather(self, number: int) -> HostNews:
        deadline = time.monotonic() + _LONGEST
        pause = 0.0
        while True:
            # Events first: what was printed before them is then in the files.
            self._take_events(pause)
            self._look_for_stopped()
            pieces = self._outbox.look(over=self._ended is not None)
            due = self._due()
            over = self._ended is not None and not self._waiting and not pieces
            if over and self._ended:
                due.append(events.encode(self._ended))
                self._finish(ok=True, headline="")
            if due or pieces or over or time.monotonic() >= deadline:
                return HostNews(number, due, pieces, over)
            pause = _PAUSES[time.monotonic() - self._began > _LIVELY]

    def _take_events(self, seconds: float) -> None:
        """The events of so many seconds, as soon as there are some."""
        if self._ended is not None:
            time.sleep(seconds)
            return
        for event in self._feed.wait(seconds):
            new = event or events.JobEnded(status=None, why=self._feed.why_ended())
            if isinstance(new, events.OfHost):
                new = replace(new, host=self._name)
            if isinstance(new, events.JobEnded):
                self._ended = new
                self._feed.close()
                return
            self._processes.take(new)
            self._waiting.append(new)

    def _look_for_stopped(self) -> None:
        """Here, as the notebook's machine has other processes."""
        stopped = None if self._ended else self._processes.look(time.monotonic())
        if stopped is not None:
            self._waiting.append(stopped)

    def _due(self) -> list[bytes]:
        """The events that can be sent now: a rank's return only after its value, if it has one (a
        live rank's end has none), and the end of its process only after that."""
        returned = [event for event in self._waiting if isinstance(event, events.RankFinished)]
        unsent = {e.rank for e in returned if e.nbytes and not self._outbox.delivered(e.rank)}
        held = [event for event in self._waiting if self._of(event) in unsent]
        due = [events.encode(event) for event in self._waiting if event not in held]
        self._waiting = held
        return due

    def _of(self, event: events.Event) -> int | None:
        """The rank whose return or end this is, if any."""
        match event:
            case events.RankStarted():
                self._ranks[event.pid] = event.rank
            case events.RankFinished():
                return event.rank
            case events.ProcessDied():
                return self._ranks.get(event.pid)
        return None


def version() -> str:
    """The installed version of xla_nb."""
    try:
        return importlib.metadata.version("xla_nb")
    except importlib.metadata.PackageNotFoundError:
        return "from source"


def _environ(own: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, str]:
    """This host's environment with the variables set in the notebook, except those that describe a
    machine."""
    return {**own, **{name: value for name, value in changed.items() if name not in _OF_MACHINE}}


def _path(notebooks: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """The notebook's folders that exist here too, then this host's own."""
    # Not Path.exists(), which raises for a file in another user's folder.
    here = [entry for entry in notebooks if not entry or os.path.exists(entry)]  # noqa: PTH110
    return tuple(dict.fromkeys([*here, *own]))


def _may_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112 # as in _path
