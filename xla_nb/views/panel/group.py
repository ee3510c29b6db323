"""The panel of live ranks: a thread draws it alongside the cells until the ranks end.

While nothing runs, it sends nothing. It yields to cells: it reports on them only twice a second,
and not in their first moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from xla_nb.run.run import Run
from xla_nb.views.loop import Guarded
from xla_nb.views.panel.view import NOTHING, PanelView

_DELAY = 0.3  # seconds from an event to its message, so that a short cell takes only one
_BEAT = 0.5  # seconds between messages while a cell runs,
_SETTLING = 1.5  # and for this long after an event,
_IDLE_BEAT = 60.0  # and after that
_SAVE = 10.0  # minimum seconds between saved snapshots


class GroupPanel(PanelView):
    """Shows live ranks on the page.

    shut_down  ends the ranks
    """

    def __init__(self, run: Run, shut_down: Callable[[], None]) -> None:
        self._shut_down = shut_down
        self._seen: object = None
        self._saved_of: object = None
        self._next = self._settled_at = self._next_save = 0.0
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
        """Send news to the page. Returns the seconds until the next call."""
        self._handle_requests()
        self._answer_stacks()
        now, mark = time.monotonic(), self._mark()
        if mark != self._seen:
            self._seen = mark
            self._next = min(self._next, now + _DELAY)
            self._settled_at = now + _SETTLING
            self._due["charts"] = 0.0
        if self._whole or now >= self._next:
            self._send_news(now)
            is_active = self._is_running or now < self._settled_at or self._inquiries
            self._next = now + (_BEAT if is_active else _IDLE_BEAT)
        if mark != self._saved_of and now >= self._next_save and now >= self._settled_at:
            self._saved_of, self._next_save = mark, now + _SAVE
            self._saved.update(self._saved_snapshot(), raw=True)
        return self._pause(mark)

    @property
    def _is_running(self) -> bool:
        state = self.run.state
        starting = any(rank.phase == "starting" for rank in state.ranks.values())
        return bool(state.programs.running) or starting or not state.ranks

    def _pause(self, mark: object) -> float:
        now = time.monotonic()
        due = [self._next - now]
        if mark != self._saved_of:
            due.append(max(self._next_save, self._settled_at) - now)
        return max(0.0, min(due))

    def _leave_note(self) -> None:
        html = f'<div style="opacity:.75;font-size:12px">{self._notice}</div>'
        self._saved.update(NOTHING, raw=True)
        self._live.update({"text/html": html, "text/plain": self._notice}, raw=True)
        self._close(html)

    # ---------------------------------------------------------- from the page

    def _answered(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        handlers = super()._answered()
        del handlers["stop"]
        return handlers | {"shutdown": self._on_shutdown}

    def _on_focus(self, message: dict[str, Any]) -> None:
        super()._on_focus(message)
        self._next = 0.0

    def _on_shutdown(self, message: dict[str, Any]) -> None:
        self._send("ack", request=message["request"])
        threading.Thread(target=self._shut_down, name="xla_nb-shutdown", daemon=True).start()
