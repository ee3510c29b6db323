"""The panel of live ranks: it goes on beside the cells, in a thread, until they end.

While nothing runs it sends nothing. It gives way to cells: what they do is told twice a second, and
not before they have had a moment to themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from xla_nb.run.run import Run
from xla_nb.views.loop import Guarded
from xla_nb.views.panel.view import NOTHING, PanelView

_SOON = 0.3  # seconds from an event to the message about it: a short cell is told in one
_BEAT = 0.5  # seconds between two looks while a cell runs,
_SETTLING = 1.5  # for so long after something has happened,
_REST = 60.0  # and later
_SAVE = 10.0  # seconds between two saved snapshots, at least


class GroupPanel(PanelView):
    """Shows live ranks on the page.

    shut_down  ends them
    """

    def __init__(self, run: Run, shut_down: Callable[[], None]) -> None:
        self._shut_down = shut_down
        self._seen: object = None
        self._saved_of: object = None
        self._next = self._settled = self._next_save = 0.0
        self._moved = ""  # where to, in a sentence
        super().__init__(run)

    def follow(self) -> None:
        """Draw it in a thread of its own, until the ranks have ended or are shown elsewhere."""
        self._thread = threading.Thread(
            target=self._follow, name=f"{self.run.name}-panel", daemon=True
        )
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until it shows the end. Returns whether it does."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def move(self, where: str) -> None:
        """Show nothing more here: the ranks are shown in another cell."""
        self._moved = f"Moved to {where}."
        with self.run.changed:
            self.run.changed.notify_all()

    def _follow(self) -> None:
        view = Guarded(self.run, self)
        while not self.run.done and not self._moved:
            pause = view.draw()
            with self.run.changed:
                self.run.changed.wait_for(self._is_needed, pause)
        view.finish()

    def finish(self) -> None:
        self._leave_note() if self._moved else super().finish()

    def _is_needed(self) -> bool:
        """Whether something has come that `draw` has not seen."""
        asked = not self._inbox.empty()
        return self.run.done or bool(self._moved) or asked or self._mark() != self._seen

    def _mark(self) -> object:
        """What is different once something is to be told."""
        state = self.run.state
        programs = state.programs
        phases = tuple(rank.phase for rank in state.ranks.values())
        running = len(programs.running)
        return phases, programs.count, running, len(state.notices), state.ending, state.stopping

    def draw(self) -> float:
        """Send the page what is new. Returns the seconds until the next call."""
        self._handle_requests()
        self._answer_stacks()
        now, mark = time.monotonic(), self._mark()
        if mark != self._seen:
            self._seen = mark
            self._next = min(self._next, now + _SOON)
            self._settled = now + _SETTLING
            self._due["charts"] = 0.0
        if self._whole or now >= self._next:
            self._send_news(now)
            changes = self._runs or now < self._settled or self._inquiries
            self._next = now + (_BEAT if changes else _REST)
        if mark != self._saved_of and now >= self._next_save and now >= self._settled:
            self._saved_of, self._next_save = mark, now + _SAVE
            self._saved.update(self._saved_snapshot(), raw=True)
        return self._pause(mark)

    @property
    def _runs(self) -> bool:
        state = self.run.state
        starting = any(rank.phase == "starting" for rank in state.ranks.values())
        return bool(state.programs.running) or starting or not state.ranks

    def _pause(self, mark: object) -> float:
        now = time.monotonic()
        due = [self._next - now]
        if mark != self._saved_of:
            due.append(max(self._next_save, self._settled) - now)
        return max(0.0, min(due))

    def _leave_note(self) -> None:
        html = f'<div style="opacity:.75;font-size:12px">{self._moved}</div>'
        self._saved.update(NOTHING, raw=True)
        self._live.update({"text/html": html, "text/plain": self._moved}, raw=True)
        self._close(html)

    # ---------------------------------------------------------- from the page

    def _answered(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        taken = super()._answered()
        del taken["stop"]
        return taken | {"shutdown": self._on_shutdown}

    def _on_focus(self, message: dict[str, Any]) -> None:
        super()._on_focus(message)
        self._next = 0.0

    def _on_shutdown(self, message: dict[str, Any]) -> None:
        self._send("ack", request=message["request"])
        threading.Thread(target=self._shut_down, name="xla_nb-shutdown", daemon=True).start()
