"""What an engine is: where a run's processes start, on this machine or elsewhere.

Another engine is one package with a `provider`, and its line in ENGINES.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xla_nb.protocol.events import Event
from xla_nb.protocol.order import Request
from xla_nb.runtimes.fit import Fit, OnWait
from xla_nb.topology.slices import Seat


@dataclass(frozen=True)
class Where:
    """Where a launch wants its ranks: the options --on, --hosts, --slices, --wait (seconds) and
    --env."""

    on: str = "local"
    hosts: int | None = None
    slices: int | None = None
    wait: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)


class Feed(Protocol):
    """The events of a run, and the process that looks after its ranks there; closed after use.

    notes: what happened to that process before the run, for people.
    """

    notes: tuple[str, ...]

    def wait(self, seconds: float) -> Iterator[Event | None]:
        """The events of so many seconds, as soon as there are some; None once no more will come:
        every sender, or that process, has ended."""

    def why_ended(self) -> str:
        """Why no more events came of a run that had not ended; empty if nobody knows."""

    def resume(self) -> None:
        """Let that process go on, if it has been stopped (SIGSTOP)."""

    def kill(self) -> None:
        """End that process: nobody would end the ranks otherwise."""

    def close(self) -> None: ...


class Engine(Protocol):
    """What a launch and its run ask of the place where the ranks are.

    here: the ranks are on this machine, and can map its files
    """

    here: bool

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """What a launch gets there. Raises XlaNbError where that will not do."""

    def start(self, request: Request, fit: Fit, parcel: int, waiting: OnWait) -> Feed:
        """Start it; gives its events. A program that has a turn goes to the live ranks of its
        group. Raises LaunchError."""

    def end(self, run: str) -> None:
        """Tell the live ranks of this run that there is nothing more to come."""

    def signal(self, run: str, pids: Mapping[str, Sequence[int]], number: int) -> None:
        """Send these processes of each host a signal; one that is stopped goes on for it."""

    def kill(self, run: str) -> None:
        """End all processes of the run."""

    def ask(self, run: str) -> None:
        """Pass a request for stacks on to where the ranks are (`Record.stacks_request`)."""

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """A file of the run's as it lies on a host; None where the record has all of it."""

    def look(self, waiting: OnWait, simulated: bool) -> list[Seat]:
        """The hosts a launch would get, held for it; none: this machine. simulated: they need
        no chips. Raises LaunchError."""


#: Attempts to kill a run before the process that looks after it is killed itself.
_ATTEMPTS = 3


def kill(engine: Engine, run: str, feed: Feed, attempt: int) -> None:
    """End all processes of a run. `attempt` counts those that were in vain: where several were,
    the process that should have ended them is ended itself."""
    feed.resume()  # one that is stopped ends nothing
    if attempt < _ATTEMPTS:
        engine.kill(run)
    else:
        feed.kill()


class Provider(Protocol):
    """The engines of one kind in this process."""

    def engine(self, where: Where) -> Engine:
        """The engine for a launch. Raises UsageError where the options do not fit it."""

    def close(self) -> None:
        """End every process of theirs; the next launch starts them again."""


#: By the first word of --on: the module that has `provider()`, and how --on may be written.
ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "local": ("xla_nb.engines.local", ("local",)),
    "ray": ("xla_nb.engines.ray.engine", ("ray", "ray://HOST:PORT")),
}
ADDRESSES = tuple(address for _, addresses in ENGINES.values() for address in addresses)


def is_address(on: str) -> bool:
    """Whether --on may say this."""
    return any(re.fullmatch(re.sub("[A-Z]+", r"[^/\\s]+", form), on) for form in ADDRESSES)


def kind(on: str) -> str:
    """The engine's name in an address: `ray` of `ray://head:10001`."""
    return on.partition("://")[0]


def provider(name: str) -> Provider:
    """A new provider of the engine with this name."""
    module: Any = importlib.import_module(ENGINES[name][0])
    made: Provider = module.provider()
    return made
