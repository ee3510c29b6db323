"""Until when something may be looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from xla_nb.protocol import hostile

T = TypeVar("T")


class Deadline:
    """So many seconds from now, but not after `other`."""

    def __init__(self, seconds: float, other: Deadline | None = None) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds
        if other is not None:
            self._at = min(self._at, other._at)

    @property
    def left(self) -> float:
        """Seconds; 0 when it is over."""
        return max(self._at - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raise `hostile.TooLong` when it is over."""
        if not self.left:
            raise hostile.TooLong(f"longer than {self._seconds:g} s")

    def within(self, work: Callable[[], T], seconds: float = float("inf")) -> T:
        """What `work` returns, which cannot be asked to hurry. Raises `hostile.TooLong` too."""
        self.check()
        return hostile.within(min(self.left, seconds), work)
