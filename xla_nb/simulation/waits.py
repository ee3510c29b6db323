"""The collective that a rank waits in, and its total waiting time, for the rank's meter."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xla_nb.stopwatch import Stopwatch, Wait


class Waits(Stopwatch):
    """Waiting times in collectives, and the collective that is waited in."""

    def __init__(self) -> None:
        super().__init__()
        self._call: tuple[str, Callable[[], Iterable[int]]] = "", tuple

    def wait(self, operation: str, missing: Callable[[], Iterable[int]]) -> None:
        """Begin to wait for ranks, until `stop`."""
        self._call = operation, missing
        self.start()

    @property
    def current(self) -> Wait | None:
        since, (operation, missing) = self.since, self._call
        return None if since is None else Wait(operation, since, tuple(sorted(missing())))
