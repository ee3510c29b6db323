"""What an engine is: where a run's processes are started, on this machine or elsewhere."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from xla_nb.protocol.order import Order
from xla_nb.runtimes.fit import Fit, OnWait


class Engine(Protocol):
    """Where ranks are started: `engines.local` on this machine, `engines.ray` on others."""

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """What a launch gets there. Raises XlaNbError where that will not do."""

    def start(
        self, order: Order, parcel: int, imports: Sequence[str], waiting: OnWait
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
