"""Whether a page is there, by what it answers: one that is reloaded or closed says nothing."""

from __future__ import annotations

import time

#: Seconds without an answer of a page, after which it has gone.
AWAY = 5.0


class Answers:
    """The pages that show one view, and since when each owes an answer (None: it owes none).

    busy_since: when a cell began that is being executed beside the run. Kernels without subshells
    (ipykernel 6) hear no page until it has ended.
    """

    def __init__(self) -> None:
        self.busy_since: float | None = None
        self._heard = 0.0
        self._owed: dict[str, float | None] = {}
        self._ended: float | None = None

    def asked(self) -> None:
        """A message has been sent, which a page that is there answers within a second or so."""
        now = time.monotonic()
        self._owed = {page: now if since is None else since for page, since in self._owed.items()}

    def answered(self, page: str) -> None:
        self._owed[page] = None
        self._heard = time.monotonic()

    def end(self) -> None:
        """The view has been replaced by how the run ended: on the first page, where it began. A
        reloaded page may show the widget again, but does not know what is to replace it."""
        self._ended = time.monotonic()
        if self.busy_since is not None and self._heard < self.busy_since:
            self._owed = {}  # nobody can tell

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def missing(self) -> bool:
        """Whether nobody sees the view; of an ended one, its end. Pages that never answered are of
        a front end whose messages do not come through while a cell runs: nobody can tell."""
        now = self._ended or time.monotonic()
        each = list(self._owed.values())  # another thread hears answers
        owed = [since is not None and now - since > AWAY for since in each]
        return bool(owed) and (owed[0] if self._ended else all(owed))
