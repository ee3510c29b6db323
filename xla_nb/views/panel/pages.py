"""Pages that showed a run and have gone: reloaded, or closed and opened again.

Such a page has lost where the view is, and what the kernel sends there. So the next cell that is
executed shows the run: how it ended, or live again while it goes on in the background.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from xla_nb.views import beside, loop
from xla_nb.views.beside import Beside
from xla_nb.views.panel import answers

if TYPE_CHECKING:
    from xla_nb.views.panel.view import PanelView


class Pages:
    """The views of one process whose runs go on, or have ended since the last cell."""

    def __init__(self) -> None:
        self._views: list[PanelView] = []
        self._idle = time.monotonic()

    def add(self, view: PanelView) -> None:
        self._views = [v for v in self._views if not v.answers.ended or v.answers.missing]
        self._views.append(view)

    def before_cell(self, _info: Any = None) -> None:
        """Show in this cell what its page has lost."""
        rested = time.monotonic() - self._idle > answers.AWAY  # a busy kernel hears no answers
        for view in self._views[:]:
            if view.answers.ended:
                self._views.remove(view)
                if view.answers.missing:
                    view.show_end()
                    beside.show(view.run)
            elif rested and view.answers.missing:
                self._views.remove(view)
                view.leave()
                again = type(view)(view.run)
                self.add(again)
                loop.follow_behind(view.run, Beside(again, view.run, behind=True))
        for view in self._views:
            view.answers.busy_since = time.monotonic()

    def after_cell(self, _result: Any = None) -> None:
        self._idle = time.monotonic()
        for view in self._views:
            view.answers.busy_since = None


@functools.cache
def pages() -> Pages:
    """Those of this process."""
    return Pages()
