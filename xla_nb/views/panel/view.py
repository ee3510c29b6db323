"""The live panel: a run as an anywidget on the page, with a saved snapshot in the notebook file.

The thread that calls `draw` sends all messages, at most one every 50 ms, because a page that
receives one per line falls behind. Requests from the page are queued when they arrive and handled
in `draw`. Only Stop takes effect at once, because the drawing thread may be waiting for an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from xla_nb.monitor.stacks import Inquiry
from xla_nb.record import tail
from xla_nb.run.run import Run
from xla_nb.views import picture
from xla_nb.views.loop import INTERRUPTED, STOP_BUTTON, View, slot
from xla_nb.views.observer import Observer
from xla_nb.views.panel import messages
from xla_nb.views.panel.widget import Page, uplot
from xla_nb.views.rendering import html
from xla_nb.views.snapshot import STREAMS

_BEAT = 0.05  # seconds between messages
#: Seconds between reads of samples and figures, and between drawings of charts, for up to _FEW
#: ranks; twice as long for twice as many.
_FEW, _SAMPLE, _CHARTS = 128, 0.25, 1.0
_SAVE, _FIRST_SAVE = 10.0, 2.0  # seconds between saved snapshots, and until the first
_BUDGET = 500  # approximate lines of output per message
_MAX_LINES = 1000  # maximum lines per request of the page
NOTHING = {"text/html": "", "text/plain": ""}

log = logging.getLogger(__name__)


class PanelView(View):
    """Shows a run on the page. One thread draws and finishes it; the main thread creates it,
    because a display belongs to the cell that the main thread is executing."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._observer = Observer(run, notes=True)
        self._news = messages.PanelNews()
        self._sequence = 0
        self._due = dict.fromkeys(("beat", "sample", "charts", "save"), 0.0)
        self._whole, self._has_charts = True, False
        self._focus: int | None = None
        self._phases: Sequence[str] = ()
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._inquiries: list[tuple[int | None, Inquiry]] = []
        self._page = Page(run=run.name)
        self._page.on_msg(self._receive)
        self._live = _display(*self._widget())
        empty = {"text/html": self._snapshot("")}  # content would flash up
        self._saved = _display(self._saved_snapshot() | empty)
        self._due["save"] = time.monotonic() + _FIRST_SAVE  # ranks have started by that time

    def draw(self) -> float:
        """Send news to the page. Returns the seconds until the next call."""
        self._handle_requests()
        self._answer_stacks()
        now = time.monotonic()
        if self._is_due("beat", now, self._beat):
            self._send_news(now)
        if self._is_due("save", now, _SAVE):
            self._save()
        return max(0.0, min(self._due["beat"], self._due["save"]) - time.monotonic())

    @property
    def _beat(self) -> float:
        """Seconds between messages."""
        return _BEAT

    def _save(self) -> None:
        self._saved.update(self._saved_snapshot(), raw=True)

    def finish(self) -> None:
        """Replace the widget with the run's saved HTML and text."""
        final: dict[str, Any] = NOTHING
        try:
            self._handle_requests()
            self._observer.read(_BUDGET)
            self._observer.finish()
            self._observer.sample()
            final = picture.bundle(self._observer.snapshot_with_output()) | self.run.as_data()
            # First update the display that the panel hides, or it would be visible for a moment.
            self._saved.update(NOTHING, raw=True)
            self._live.update(final, raw=True)
        finally:
            self._close(final["text/html"])

    def withdraw(self) -> None:
        """Make the page stop waiting for an answer, or JupyterLab would run no other cell."""
        self._send("withdrawn")

    def _close(self, html: str) -> None:
        self._page.on_msg(self._receive, remove=True)  # anywidget keeps each page, and so this view
        self._page.leave(html)

    def _is_due(self, task: str, now: float, interval: float) -> bool:
        if now < self._due[task]:
            return False
        self._due[task] = now + interval
        return True

    # ---------------------------------------------------------- to the page

    def _send_news(self, now: float) -> None:
        message: dict[str, Any] = {}
        whole, self._whole = self._whole, False
        if whole:
            self._news.forget()
            self._due["charts"] = 0.0
            earlier = self._observer.read_before(_BUDGET)
            message["before"] = [messages.lines(old) for old in earlier]
        output = self._observer.read(_BUDGET, self._focus)
        if whole or self._sample_if_due(now):
            charts = self._is_due("charts", now, _CHARTS * self._slowdown)
            message |= self._news.of(self._observer.snapshot(), self._focus, charts=charts)
        if output:
            message["lines"] = [messages.lines(new) for new in output]
        self._has_charts &= not whole
        if not self._has_charts and "figures" in message:
            message["uplot"], self._has_charts = uplot(), True
        if message:
            self._sequence += 1
            self._send("news", seq=self._sequence, whole=whole, now=time.time(), **message)

    def _sample_if_due(self, now: float) -> bool:
        """Read samples if due, or if a rank has started or ended and there are only a few."""
        states = self.run.state.ranks.values()
        phases = [rank.phase for rank in states]
        has_changed, self._phases = phases != self._phases, phases
        is_due = self._is_due("sample", now, _SAMPLE * self._slowdown)
        if is_due or (has_changed and self._slowdown == 1):
            self._observer.sample()
            return True
        return False

    @property
    def _slowdown(self) -> float:
        return max(1.0, len(self._phases) / _FEW)

    def _send(self, kind: str, **body: Any) -> None:
        self._page.send({"type": kind, **body})

    @property
    def _snapshot_class(self) -> str:
        """The CSS class of the display below the widget (panel.js)."""
        return f"xn-saved-{self.run.name}"

    def _snapshot(self, html: str) -> str:
        return f'<div class="{self._snapshot_class}">{html}</div>'

    def _saved_snapshot(self) -> dict[str, str]:
        """The display below the widget. A live widget hides it (panel.js)."""
        bundle = picture.bundle(self._observer.snapshot_with_output())
        notice = "Snapshot of a run in progress. See %s for the result."
        command = f'import xla_nb; xla_nb.open_run("{self.run.name}")'
        html = f'<div style="opacity:.75;font-size:12px">{notice % f"<code>{command}</code>"}</div>'
        # If JupyterLab has no widget, it shows an error above; this hides that error.
        widget = f".jp-OutputArea-child:has(+ * .{self._snapshot_class}):not(:has(.xn-panel))"
        style = f"<style>{widget} {{ display: none }}</style>"
        bundle["text/html"] = style + self._snapshot(html + bundle["text/html"])
        bundle["text/plain"] = f"{notice % f'`{command}`'}\n{bundle['text/plain']}"
        return bundle

    def _widget(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget's bundle and metadata; its text is for readers without widgets."""
        bundle, metadata = self._page._repr_mimebundle_()
        bundle["text/plain"] = f"Run {self.run.name} in progress. Files: {self.run.record.path}"
        return bundle, metadata

    # ---------------------------------------------------------- from the page

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        """Take a message; ipywidgets calls this in any thread."""
        if message["type"] == "stop":
            self._stop()
        self._inbox.put(message)
        with self.run.changed:
            self.run.changed.notify_all()

    def _stop(self) -> None:
        self.run.stop(STOP_BUTTON, same=INTERRUPTED)

    def _handle_requests(self) -> None:
        while not self._inbox.empty():
            message = self._inbox.get()
            if "request" in message:
                self._send("ack", request=message["request"])
            match message["type"]:
                case "whole":
                    self._whole = True
                    self._due["beat"] = 0.0
                case "focus":  # the user waits for details
                    self._focus = message["rank"]
                    self._due |= dict.fromkeys(("beat", "sample", "charts"), 0.0)
                case "stacks":  # an idle panel looks for answers too
                    self._inquiries.append((message["request"], Inquiry(self.run)))
                    self._due["beat"] = 0.0
                case "earlier":
                    self._send_earlier(message)
                case "stop":  # at once, in `_receive`
                    pass
                case unknown:
                    log.warning("Ignored a message from the page: %r", unknown)

    def _answer_stacks(self) -> None:
        for request, inquiry in self._inquiries[:]:
            if inquiry.settled:
                self._inquiries.remove((request, inquiry))
                self._send("stacks", request=request, html=html.stacks(inquiry.groups()))

    def _send_earlier(self, message: dict[str, Any]) -> None:
        rank, stream = message["rank"], message["stream"]
        if not isinstance(rank, int) or stream not in STREAMS:  # it could be a path to any file
            log.warning("Ignored the page's request for %r of rank %r", stream, rank)
            return
        block = tail.before(
            self.run.record.log(rank, stream), message["before"], min(_MAX_LINES, message["count"])
        )
        self._send("earlier", **messages.earlier(message, block))


def _display(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    """Create a display in the cell's output that can be updated."""
    handle = slot()
    handle.display(bundle, raw=True, metadata=metadata or {})
    return handle
