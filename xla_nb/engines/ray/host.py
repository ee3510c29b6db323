"""The actor on one host of a run.

Ranks are started by the same engine as on one machine. The notebook's side polls for news, one
numbered answer at a time; a lost answer is sent again.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xla_nb.engines.child import Feed, in_memory
from xla_nb.engines.local import LocalEngine
from xla_nb.engines.ray.files import LARGEST, FileChunk, NewBytes
from xla_nb.errors import XlaNbError
from xla_nb.messages import events
from xla_nb.messages.orders import HostGroup, Request
from xla_nb.record import private
from xla_nb.record.files import Record
from xla_nb.record.tidying import tidy
from xla_nb.runtimes.fit import Fit, fit_to_machine
from xla_nb.topology import addresses
from xla_nb.topology.chips import count_chips

_LONGEST = 1.0  # seconds until an answer without news is sent
_PAUSE = 0.05  # seconds between two looks at the files

#: Variables that Ray sets for its workers and that ranks must not have.
_RAY_VARIABLES = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")


@dataclass(frozen=True)
class About:
    """A host's description: `node` is Ray's node id, `version` xla_nb's, `chips` the number of TPU
    chips. A host with another version sends its own, so `python` and `version` must stay."""

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

    request: the notebook's request.
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
    """One answer. `number` counts from 1; `events` are encoded by `events.encode`, and follow the
    bytes in `files`; `over`: this is the last one."""

    number: int
    events: list[bytes]
    files: list[FileChunk]
    over: bool


class HostActor:
    """The actor that Ray starts on a host. Its methods may be called while others wait.

    `environ` and `path` are this machine's variables and sys.path for ranks.
    """

    def __init__(self) -> None:
        import ray

        context: Any = ray.get_runtime_context()
        self.address = ray.util.get_node_ip_address()
        self.node = context.get_node_id()
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(_RAY_VARIABLES)
        }
        ray_folder = Path(ray.__file__).parent
        self.path = [entry for entry in sys.path if not Path(entry).is_relative_to(ray_folder)]
        self.begin(LocalEngine())

    def begin(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._runs: dict[str, _Running] = {}
        self._ports: dict[str, socket.socket] = {}  # a port for each run
        self._starting = threading.Lock()

    def about(self) -> About:
        return About(
            hostname=socket.gethostname(),
            address=self.address,
            node=self.node,
            python=platform.python_version(),
            version=version(),
            chips=count_chips(),
            environ={
                name: value
                for name, value in self.environ.items()
                if name.startswith(("TPU_", "MEGASCALE_"))
            },
        )

    def hold_port(self, run: str) -> tuple[str, int]:
        """Reserve a port until the run is over; return the address at which the run's other hosts
        reach this one."""
        self._ports[run] = addresses.hold_port(self.address)
        port: int = self._ports[run].getsockname()[1]
        return self.address, port

    def start(self, part: Part, parcel: bytes) -> str:
        """Start the ranks. Returns why they could not be started, empty if they were."""
        with self._starting:
            self._runs = {run: running for run, running in self._runs.items() if not running.over}
            try:
                self._runs[part.request.run] = self._start(part, parcel)
            except (XlaNbError, OSError) as problem:
                return str(problem)
        return ""

    def _start(self, part: Part, parcel: bytes) -> _Running:
        request, group = part.request, part.host_group
        fit = Fit("", None, {}, ()) if request.turn is not None else self._fit(part)
        # Unique because hosts may share a home, and a launch may be repeated on other hosts.
        name = f"{request.run}-{group.index}-{uuid.uuid4().hex[:6]}"
        record = Record.create(name, "parts")
        if part.program:
            record.program_folder.mkdir(0o700)
        for name, content in part.program.items():
            private.write(record.program_folder / name, content)
        local_request = replace(
            request,
            program=str(record.program_folder / Path(request.program).name),
            record=str(record.path),
            cwd=request.cwd if _may_enter(request.cwd) else str(Path.home()),
            sys_path=_path(request.sys_path, self.path),
            mute=True,
        )
        try:
            with in_memory(parcel) as fd:
                feed = self._engine.start(local_request, fit, fd, lambda seconds, what: None, group)
        except BaseException:
            record.disown()
            record.close({"run": request.run, "ok": False, "headline": "not started"})
            raise
        notices = [events.Notice(text=text, once=True) for text in fit.notices]
        return _Running(part.name, record, feed, notices)

    def _fit(self, part: Part) -> Fit:
        request = part.request
        return fit_to_machine(
            request.runtime,
            request.n,
            request.user_env,
            {**self.environ, **part.env},
            hosts=part.host_group.hosts,
            sets=part.sets,
        )

    def end(self, run: str) -> None:
        """Tell live ranks that no more programs will follow."""
        self._engine.end(run)

    def news(self, run: str, seen: int) -> HostNews:
        """The news since answer number `seen`; waits for some, but not for long."""
        news = self._runs[run].news(seen)
        if news.over:
            self._release(run)
        return news

    def signal(self, run: str, pids: list[int], number: int) -> None:
        self._engine.signal(run, {"": pids}, number)

    def kill(self, run: str) -> None:
        self._engine.kill(run)

    def forget(self, run: str) -> None:
        """End a run without a follower, even one still starting."""
        with self._starting:
            self._engine.kill(run)
            running = self._runs.pop(run, None)
        if running is not None:
            running.give_up()
        self._release(run)

    def _release(self, run: str) -> None:
        sock = self._ports.pop(run, None)
        if sock is not None:
            sock.close()

    def ask(self, run: str) -> None:
        """Ask the ranks for their stacks."""
        private.touch(self._runs[run].files.stacks_request)

    def alone(self, run: str) -> None:
        """Note that the ranks of all other hosts have ended."""
        private.touch(self._runs[run].files.others_ended)


class _Running:
    """A run on this host, and how much of it has been sent: each event follows all bytes that the
    files held when it arrived."""

    def __init__(self, name: str, files: Record, feed: Feed, notices: list[events.Notice]) -> None:
        self.files = files
        self.over = False
        self._name = name
        self._feed = feed
        self._new_bytes = NewBytes(files.path)
        self._chunks: Iterator[FileChunk] = iter(())  # to be sent before the events
        self._events: list[events.Event] = [*notices]
        self._ended = False
        self._answer = HostNews(0, [], [], False)
        self._lock = threading.Lock()

    def news(self, seen: int) -> HostNews:
        with self._lock:
            if seen == self._answer.number:
                self._answer = self._gather(seen + 1)
            return self._answer

    def give_up(self) -> None:
        """Close the record of a run without a follower."""
        with self._lock:
            self._finish(ok=False, headline="abandoned")

    def _finish(self, *, ok: bool, headline: str) -> None:
        self.over = True
        self._feed.close()
        self.files.disown()
        self.files.close({"run": self.files.path.name, "ok": ok, "headline": headline})
        tidy("parts")

    def _gather(self, number: int) -> HostNews:
        deadline = time.monotonic() + _LONGEST
        pieces: list[FileChunk] = []
        pause = 0.0
        while True:
            room = LARGEST
            for chunk in self._chunks:
                pieces.append(chunk)
                room -= len(chunk.data)
                if room <= 0:
                    return HostNews(number, [], pieces, over=False)
            encoded, self._events = list(map(events.encode, self._events)), []
            if self._ended and encoded:
                self._finish(ok=True, headline="")
            if encoded or pieces or (pause and time.monotonic() >= deadline):
                return HostNews(number, encoded, pieces, self.over)
            self._take_events(pause)
            self._chunks = self._new_bytes.look()
            pause = _PAUSE

    def _take_events(self, seconds: float) -> None:
        """Wait up to so many seconds for events, and take those that are ready."""
        for event in self._feed.wait(seconds):
            item = event or events.JobEnded(status=None, why=self._feed.why_ended())
            self._events.append(
                replace(item, host=self._name) if isinstance(item, events.OfHost) else item
            )
            if isinstance(item, events.JobEnded):
                self._ended = True
                return


def version() -> str:
    """The installed version of xla_nb."""
    try:
        return importlib.metadata.version("xla_nb")
    except importlib.metadata.PackageNotFoundError:
        return "from source"


def _path(paths: Iterable[str], host_paths: Iterable[str]) -> tuple[str, ...]:
    """The notebook's folders that also exist here, then this host's."""
    # Not Path.exists(), which raises for a file in another user's folder.
    existing = [entry for entry in paths if not entry or os.path.exists(entry)]  # noqa: PTH110
    return tuple(dict.fromkeys([*existing, *host_paths]))


def _may_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112 # as in _path
