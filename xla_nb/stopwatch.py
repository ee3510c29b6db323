"""Waiting times of threads: a wait in progress, and a stopwatch that one thread starts and stops
and any thread reads."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Wait:
    """A wait for other ranks or for the user, since a time of `time.monotonic()`; `missing` are the
    ranks waited for, if known."""

    operation: str
    since: float
    missing: tuple[int, ...] = ()


class Stopwatch:
    """Seconds spent on something so far, including the current period. Starting and stopping it
    takes a microsecond."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None  # one object, so reads are atomic

    def start(self) -> bool:
        """Start it; False if it was already running, so that nested periods count once."""
        total, since = self._state
        if since is not None:
            return False
        self._state = total, time.monotonic()
        return True

    def stop(self) -> None:
        """Stop it. Does nothing if it was not running."""
        total, since = self._state
        if since is not None:
            self._state = total + time.monotonic() - since, None

    @property
    def since(self) -> float | None:
        """When it was started, as a time of `time.monotonic()`; None if it is not running."""
        return self._state[1]

    @property
    def seconds(self) -> float:
        total, since = self._state
        return total if since is None else total + time.monotonic() - since
