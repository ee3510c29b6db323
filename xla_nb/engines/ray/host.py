"""One host of a run: what the actor on it does.

The rule: ranks are started by the same engine as on one machine, and nothing here knows Ray. What
the host has to tell is asked for, an answer at a time, and told again if an answer was lost.
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

from xla_nb.engines.child import in_memory
from xla_nb.engines.local import LocalEngine
from xla_nb.engines.ray.outbox import FileChunk, Outbox
from xla_nb.errors import XlaNbError
from xla_nb.protocol import channel, events
from xla_nb.protocol.order import HostGroup, Request
from xla_nb.record.files import Record, tidy
from xla_nb.runtimes.fit import fit_to_machine
from xla_nb.topology import addresses
from xla_nb.topology.chips import count_chips

_LONGEST = 1.0  # seconds that an answer is held back while there is nothing to tell
_PAUSES = (0.005, 0.05)  # seconds between two looks at the files: at first, and later on
_LIVELY = 1.0  # seconds for which they are looked at often

_GIVEN_UP = 100  # runs that were given up, of which some may still be started
#: What a machine has, and where things lie on it: the notebook's own says nothing of a host. Who
#: means it for the ranks writes --env.
_PLACES = (
    *("PATH", "HOME", "PWD", "TMPDIR", "USER", "LOGNAME", "HOSTNAME", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("TPU_LIBRARY_PATH", "PJRT_DEVICE"),
)


@dataclass(frozen=True)
class About:
    """What a host says of itself: `node` is Ray's number of it, `version` xla_nb's, `chips` are a
    TPU's."""

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

    `request` is as the notebook's machine has it; `program` are the files of the program by name;
    `env` the variables that were set in the notebook, `sets` those of the host's seat.
    """

    name: str
    request: Request
    host_group: HostGroup
    program: Mapping[str, bytes]
    env: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostNews:
    """One answer, the `number`th. `events` are as `events.encode` makes them; `over`: there will be
    no more."""

    number: int
    events: list[bytes]
    files: list[FileChunk]
    over: bool


class HostAgent:
    """The actor's methods; each may be called while another one waits.

    `environ` and `path` are what ranks have of this machine's own.
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
        """An address at which the run's other hosts reach this one, free until it is over."""
        self._held[run] = addresses.hold_port(self._address)
        port: int = self._held[run].getsockname()[1]
        if run in self._forgotten:  # meanwhile
            self._release(run)
        return self._address, port

    def start(self, part: Part, parcel: bytes) -> str:
        """Start the ranks. Gives why they cannot be, empty where they can."""
        run = part.request.run
        self._drop_tidied()
        try:
            self._runs[run] = self._start(part, parcel)
        except (XlaNbError, OSError) as problem:
            return str(problem)
        if run in self._forgotten:  # while it was being started
            self.forget(run)
        return ""

    def _start(self, part: Part, parcel: bytes) -> _Running:
        request, group = part.request, part.host_group
        fit = fit_to_machine(
            request.runtime,
            request.n,
            request.user_env,
            _environ(self._environ, part.env),
            hosts=group.hosts,
            sets=part.sets,
        )
        # Hosts may share a home, and a launch be made again on others of them.
        name = f"{request.run}-{group.index}-{uuid.uuid4().hex[:6]}"
        files = Record.create(name, "parts")
        for name, content in part.program.items():
            (files.program_folder / name).write_bytes(content)
        here = replace(
            request,
            program=str(files.program_folder / Path(request.program).name),
            record=str(files.path),
            cwd=request.cwd if _may_enter(request.cwd) else str(Path.home()),
            sys_path=_path(request.sys_path, self._path),
        )
        try:
            with in_memory(parcel) as fd:
                sock = self._engine.start(here, fit, fd, lambda seconds, what: None, group)
        except BaseException:
            files.disown()
            files.close({"run": request.run, "ok": False, "headline": "not started"})
            raise
        running = _Running(part.name, files, sock, several=group.hosts > 1)
        running.tell(events.Notice(text=text) for text in fit.notices)
        return running

    def news(self, run: str, seen: int) -> HostNews:
        """What is new since answer `seen`, as soon as there is something; empty after a while."""
        news = self._runs[run].news(seen)
        if news.over:
            self._release(run)
        return news

    def interrupt(self, run: str, pids: list[int]) -> None:
        self._engine.interrupt(run, {"": pids})

    def kill(self, run: str) -> None:
        self._engine.kill(run)

    def forget(self, run: str) -> None:
        """End a run that nobody follows, be it that it is only being started."""
        self._forgotten.append(run)
        self._engine.kill(run)
        running = self._runs.pop(run, None)
        if running is not None:
            running.give_up()
        self._release(run)

    def _drop_tidied(self) -> None:
        """What of older runs has been tidied away is asked for no more."""
        for run, running in list(self._runs.items()):
            if not running.files.path.exists():
                self._runs.pop(run, None)

    def _release(self, run: str) -> None:
        held = self._held.pop(run, None)
        if held is not None:
            held.close()

    def ask(self, run: str) -> None:
        """Somebody wants to know where the ranks are."""
        self._runs[run].files.stacks_request.touch()

    def alone(self, run: str) -> None:
        """The ranks of all other hosts have ended."""
        self._runs[run].files.others_ended.touch()

    def read(self, run: str, file: str, offset: int, count: int) -> bytes:
        """Bytes of a file of the run's record; none behind its end. Raises OSError or KeyError
        where it is not there."""
        with (self._runs[run].files.path / Path(file).name).open("rb") as opened:
            return os.pread(opened.fileno(), count, offset)


class _Running:
    """A run on this host, and what of it is told already."""

    def __init__(self, name: str, files: Record, sock: socket.socket, *, several: bool) -> None:
        self.files = files
        self._name = name
        self._sock = sock
        self._outbox = Outbox(files.path, name if several else "")
        self._told = HostNews(0, [], [], False)
        self._waiting: list[events.Event] = []  # until what they speak of has been sent
        self._ranks: dict[int, int] = {}  # by the pid of their process
        self._ended: events.JobEnded | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def tell(self, happened: Iterable[events.Event]) -> None:
        self._waiting += happened

    def news(self, seen: int) -> HostNews:
        with self._lock:
            if seen == self._told.number:
                self._told = self._gather(seen + 1)
            return self._told

    def give_up(self) -> None:
        """There is nobody to tell: the record ends here."""
        with self._lock:
            self._finish(ok=False, headline="given up while it was started")

    def _finish(self, *, ok: bool, headline: str) -> None:
        self._sock.close()
        self.files.disown()
        self.files.close({"run": self.files.path.name, "ok": ok, "headline": headline})
        tidy("parts")

    def _gather(self, number: int) -> HostNews:
        deadline = time.monotonic() + _LONGEST
        while True:
            # Events first: what was printed before them is in the files by then.
            self._take_events()
            pieces = self._outbox.look(over=self._ended is not None)
            due = self._due()
            over = self._ended is not None and not self._waiting and not pieces
            if over and self._ended:
                due.append(events.encode(self._ended))
                self._finish(ok=True, headline="")
            if due or pieces or over or time.monotonic() >= deadline:
                return HostNews(number, due, pieces, over)
            self._pause()

    def _pause(self) -> None:
        lively = time.monotonic() - self._began < _LIVELY
        pause = _PAUSES[0] if lively else _PAUSES[1]
        if self._ended is None:
            channel.ready(self._sock, pause)
        else:
            time.sleep(pause)

    def _take_events(self) -> None:
        if self._ended is not None:
            return
        for event in channel.receive(self._sock):
            told = event or events.JobEnded(status=None)
            if isinstance(told, events.OfHost):
                told = replace(told, host=self._name)
            if isinstance(told, events.JobEnded):
                self._ended = told
                self._sock.close()
                return
            self._waiting.append(told)

    def _due(self) -> list[bytes]:
        """The events whose time has come. That a rank has returned is told when its value has been
        sent, and only then that its process has ended."""
        unsent = {
            event.rank
            for event in self._waiting
            if isinstance(event, events.RankFinished) and not self._outbox.delivered(event.rank)
        }
        held = [event for event in self._waiting if self._of(event) in unsent]
        due = [events.encode(event) for event in self._waiting if event not in held]
        self._waiting = held
        return due

    def _of(self, event: events.Event) -> int | None:
        """The rank whose end this is, if it is one."""
        match event:
            case events.RankStarted():
                self._ranks[event.pid] = event.rank
            case events.RankFinished():
                return event.rank
            case events.ProcessDied():
                return self._ranks.get(event.pid)
        return None


def version() -> str:
    """xla_nb's own, as it was installed."""
    try:
        return importlib.metadata.version("xla_nb")
    except importlib.metadata.PackageNotFoundError:
        return "from its source"


def _environ(own: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, str]:
    """This host's environment, with what was set in the notebook but for what is each machine's
    own."""
    return {**own, **{name: value for name, value in changed.items() if name not in _PLACES}}


def _path(notebooks: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """The notebook's folders that are here, too; then this host's own."""
    # Not Path.exists(), which raises where another user's folder cannot be looked into.
    here = [entry for entry in notebooks if not entry or os.path.exists(entry)]  # noqa: PTH110
    return tuple(dict.fromkeys([*here, *own]))


def _may_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112 # as in _path
