"""A run as lines of text in a notebook's cell, and below them the picture that a panel leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator

from xla_nb.run.run import Run
from xla_nb.views import observer, picture
from xla_nb.views.text import TextView

#: Seconds that a run has to end after an error, before that is told in a line, until the picture
#: tells it with its traceback.
_PATIENCE = 1.0


class CellTextView(TextView):
    """`watched`: somebody may see the cell while it runs, not only the file it is saved in."""

    def __init__(self, run: Run, *, watched: bool) -> None:
        super().__init__(run)
        self._shown = run
        self._is_live = watched
        self._failed: float | None = None
        self._errors_shown: list[str] = []
        self._slot = picture.slot()

    def finish(self) -> None:
        """Show the rest: unfinished lines, the last lines, and the picture."""
        self._failed = None
        self._show_rest()
        self._erase()
        if self._errors_shown:
            self._slot.update({}, raw=True)
        snapshot = observer.observe(self._shown)
        picture.show(picture.bundle(snapshot, told=True) | self._shown.as_data())
        self._shown.shown_in = picture.cell()

    def _news_of_errors(self) -> Iterator[str]:
        if self._failed is None and self._run.errors:
            self._failed = time.monotonic()
        waited = self._failed is not None and time.monotonic() - self._failed > _PATIENCE
        if waited and (lines := list(super()._news_of_errors())):
            show = self._slot.update if self._errors_shown else self._slot.display
            self._errors_shown += lines
            show({"text/plain": "\n".join(self._errors_shown)}, raw=True)
        return iter(())
