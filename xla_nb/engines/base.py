"""What an engine is: where a run's processes start, on this machine or elsewhere.

Another engine is one package with a `provider`, and its line in ENGINES.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Engine(Protocol):
    """What a launch and its run ask of the place where the ranks are.

    here: the ranks are on this machine, and can map its files
    """

    here: bool

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """What a launch gets there. Raises XlaNbError where that will not do."""

    def start(self, request: Request, fit: Fit, parcel: int, waiting: OnWait) -> socket.socket:
        """Start it; gives the socket that its events come from. Raises LaunchError."""

    def interrupt(self, run: str, pids: Mapping[str, Sequence[int]]) -> None:
        """Stop these processes of each host at their next line of Python."""

    def kill(self, run: str) -> None:
        """End all processes of the run."""

    def ask(self, run: str) -> None:
        """Pass a request for stacks on to where the ranks are (`Record.stacks_request`)."""

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """A file of the run's as it lies on a host; None where the record has all of it."""

    def look(self, waiting: OnWait) -> list[Seat]:
        """The hosts a launch would get, held for it; none: this machine. Raises LaunchError."""

    def why_lost(self) -> str:
        """Why there are no more events of a run that has not ended; empty if nobody knows."""


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
