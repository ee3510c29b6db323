"""The panel of live ranks: a thread draws it alongside the cells until the ranks end.

While nothing runs, it sends nothing. It yields to cells: it reports on them only twice a second,
and not in their first moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from xla_nb.run.run import Run
from xla_nb.views.loop import Guarded
from xla_nb.views.panel.view import NOTHING, PanelView

_DELAY = 0.3  # seconds from an event to its message, so that a short cell takes only one
_BEAT = 0.5  # seconds between messages while a cell runs,
_SETTLING = 1.5  # and for this long after an event,
_IDLE_BEAT = 60.0  # and after that


class GroupPanel(PanelView):
    """Shows live ranks on the page.

    shut_down  ends the ranks
    """

    def __init__(self, run: Run, shut_down: Callable[[], None]) -> None:
        self._shut_down = shut_down
        self._seen: object = None
        self._saved_of: object = None
        self._settled_at = 0.0
        self._notice = ""  # a sentence naming the cell that shows the ranks now
        super().__init__(run)

    def follow(self) -> None:
        """Draw in a separate thread, until the ranks have ended or are shown elsewhere."""
        self._thread = threading.Thread(
            target=self._follow, name=f"{self.run.name}-panel", daemon=True
        )
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until the panel shows the end. Returns whether it does."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def move(self, where: str) -> None:
        """Stop showing the ranks here, because another cell shows them."""
        self._notice = f"Moved to {where}."
        with self.run.changed:
            self.run.changed.notify_all()

    def _follow(self) -> None:
        view = Guarded(self.run, self)
        while not self.run.done and not self._notice:
            pause = view.draw()
            with self.run.changed:
                self.run.changed.wait_for(self._has_news, pause)
        view.finish()

    def finish(self) -> None:
        self._leave_note() if self._notice else super().finish()

    def _has_news(self) -> bool:
        """Return whether there is something that `draw` has not seen."""
        has_requests = not self._inbox.empty()
        return self.run.done or bool(self._notice) or has_requests or self._mark() != self._seen

    def _mark(self) -> object:
        """A value that changes whenever there is news."""
        state = self.run.state
        programs = state.programs
        phases = tuple(rank.phase for rank in state.ranks.values())
        running = len(programs.running)
        return phases, programs.count, running, len(state.notices), state.ending, state.stopping

    def draw(self) -> float:
        now, mark = time.monotonic(), self._mark()
        if mark != self._seen:
            self._seen = mark
            self._settled_at = now + _SETTLING
            self._due["beat"] = min(self._due["beat"], now + _DELAY)
            self._due["save"] = max(self._due["save"], self._settled_at)
            self._due["charts"] = 0.0
        return super().draw()

    @property
    def _beat(self) -> float:
        state = self.run.state
        starting = any(rank.phase == "starting" for rank in state.ranks.values())
        is_running = bool(state.programs.running) or starting or not state.ranks
        is_active = is_running or time.monotonic() < self._settled_at or self._inquiries
        return _BEAT if is_active else _IDLE_BEAT

    def _save(self) -> None:
        if self._seen != self._saved_of:
            self._saved_of = self._seen
            super()._save()

    def _leave_note(self) -> None:
        html = f'<div style="opacity:.75;font-size:12px">{self._notice}</div>'
        self._saved.update(NOTHING, raw=True)
        self._live.update({"text/html": html, "text/plain": self._notice}, raw=True)
        self._close(html)

    def _stop(self) -> None:
        threading.Thread(target=self._shut_down, name="xla_nb-shutdown", daemon=True).start()
