"""Engines: where a run's processes start, on this machine (`local`) or on the hosts of a Ray
cluster (`ray`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from xla_nb.engines.child import Feed
from xla_nb.messages.orders import Request
from xla_nb.runtimes.fit import Fit, OnWait

#: How --on may be written.
ADDRESSES = ("local", "ray", "ray://HOST:PORT")


def is_address(on: str) -> bool:
    """Whether --on may say this."""
    return on in ADDRESSES[:2] or bool(re.fullmatch(r"ray://[^/\s]+:[^/\s]+", on))


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
