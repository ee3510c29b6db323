"""Engines start a run's processes, on this machine (`local`) or on the hosts of a Ray cluster
(`ray`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from xla_nb.engines.child import Feed
from xla_nb.messages.orders import Request
from xla_nb.runtimes.fit import Fit, OnWait

#: The forms of --on.
ADDRESSES = ("local", "ray", "ray://HOST:PORT")


def is_address(on: str) -> bool:
    """True if this is a valid value of --on."""
    return on in ADDRESSES[:2] or bool(re.fullmatch(r"ray://[^/\s]+:[^/\s]+", on))


class Engine(Protocol):
    """The interface between a launch or run and the place where its ranks are.

    here: the ranks are on this machine, and can map its files
    """

    here: bool

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """Fit a launch to the place. Raises XlaNbError if it does not fit."""

    def start(self, request: Request, fit: Fit, parcel: int, waiting: OnWait) -> Feed:
        """Start a request; return its events. One with a turn goes to the live ranks of its group.
        Raises LaunchError."""

    def end(self, run: str) -> None:
        """Tell the live ranks of this run that no more programs will follow."""

    def signal(self, run: str, pids: Mapping[str, Sequence[int]], number: int) -> None:
        """Send these processes of each host a signal; a stopped one is continued to receive it."""

    def kill(self, run: str) -> None:
        """End all processes of the run."""

    def ask(self, run: str) -> None:
        """Forward a request for stacks to the ranks (`Record.stacks_request`)."""
