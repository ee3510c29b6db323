"""The live panel: a run as an anywidget on the page, with a saved snapshot in the notebook file.

The thread that calls `draw` sends all messages, at most one every 50 ms, because a page that
receives one per line falls behind. Requests from the page are queued when they arrive and handled
in `draw`. Only Stop takes effect at once, because the drawing thread may be waiting for an answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anywidget
import traitlets

from xla_nb.monitor.snapshot import Snapshot
from xla_nb.monitor.stacks import Inquiry
from xla_nb.run.run import Run
from xla_nb.views import facts, picture
from xla_nb.views.loop import INTERRUPTED, STOP_BUTTON, Guarded, View, shell, slot
from xla_nb.views.observer import Lines, Observer
from xla_nb.views.rendering import figures, html
from xla_nb.views.rendering.tags import coloured

_BEAT = 0.05  # seconds between messages
#: Seconds between reads of samples and figures, and between drawings of charts, for up to _FEW
#: ranks; twice as long for twice as many.
_FEW, _SAMPLE, _CHARTS = 128, 0.25, 1.0
_SAVE, _FIRST_SAVE = 10.0, 2.0  # seconds between saved snapshots, and until the first
_BUDGET = 500  # approximate lines of output per message
_LONGEST = 4000  # characters of a line on the page
_LOADS = 10.0  # seconds for a page to load a widget; closing it earlier is an error on the page
NOTHING = {"text/html": "", "text/plain": ""}

log = logging.getLogger(__name__)


class PanelView(View):
    """Shows a run on the page. One thread draws and finishes it; the main thread creates it,
    because a display belongs to the cell that the main thread is executing."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._observer = Observer(run, notes=True)
        self._news = PanelNews()
        self._sequence = 0
        self._due = dict.fromkeys(("beat", "sample", "charts", "save"), 0.0)
        self._whole, self._has_charts = True, False
        self._ranks = 0  # that the page knows
        self._focus: int | None = None
        self._snapshot_class = f"xn-saved-{run.name}"  # of the display below the widget (panel.js)
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
            message["before"] = [lines_message(old) for old in earlier]
        output = self._observer.read(_BUDGET, self._focus)
        known, self._ranks = self._ranks, len(self.run.state.ranks)
        slowdown = max(1.0, self._ranks / _FEW)
        if self._is_due("sample", now, _SAMPLE * slowdown) or whole or known != self._ranks:
            self._observer.sample()
            charts = self._is_due("charts", now, _CHARTS * slowdown)
            message |= self._news.of(self._observer.snapshot(), self._focus, charts=charts)
        if output:
            message["lines"] = [lines_message(new) for new in output]
        self._has_charts &= not whole
        if not self._has_charts and "figures" in message:
            message["uplot"], self._has_charts = uplot(), True
        if message:
            self._sequence += 1
            self._send("news", seq=self._sequence, whole=whole, now=time.time(), **message)

    def _send(self, kind: str, **body: Any) -> None:
        self._page.send({"type": kind, **body})

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
            self._due["beat"] = 0.0  # an idle panel too: the user waits
            if "request" in message:
                self._send("ack", request=message["request"])
            match message["type"]:
                case "whole":
                    self._whole = True
                case "focus":
                    self._focus = message["rank"]
                    self._due |= dict.fromkeys(("sample", "charts"), 0.0)
                case "stacks":
                    self._inquiries.append((message["request"], Inquiry(self.run)))
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
        rank = message["rank"]
        if rank not in self.run.state.ranks:  # it could be a path to any file
            log.warning("Ignored the page's request for the output of rank %r", rank)
            return
        lines = ((stream, coloured(x, _LONGEST)) for stream, x in self._observer.last_lines(rank))
        self._send("earlier", request=message["request"], lines=list(lines))


def _display(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    """Create a display in the cell's output that can be updated."""
    handle = slot()
    handle.display(bundle, raw=True, metadata=metadata or {})
    return handle


# ---------------------------------------------------------------- live ranks

_GROUP_DELAY = 0.3  # seconds from an event to its message, so that a short cell takes only one
_GROUP_BEAT = 0.5  # seconds between messages while a cell runs,
_SETTLING = 1.5  # and for this long after an event,
_IDLE_BEAT = 60.0  # and after that


class GroupPanel(PanelView):
    """Shows live ranks on the page: a thread draws them alongside the cells until they end.

    While nothing runs, it sends nothing. It yields to cells: it reports on them only twice a
    second, and not in their first moment.

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
        return phases, len(programs), running, len(state.notices), state.ending, state.stopping

    def draw(self) -> float:
        now, mark = time.monotonic(), self._mark()
        if mark != self._seen:
            self._seen = mark
            self._settled_at = now + _SETTLING
            self._due["beat"] = min(self._due["beat"], now + _GROUP_DELAY)
            self._due["save"] = max(self._due["save"], self._settled_at)
            self._due["charts"] = 0.0
        return super().draw()

    @property
    def _beat(self) -> float:
        state = self.run.state
        starting = any(rank.phase == "starting" for rank in state.ranks.values())
        is_running = bool(state.programs.running) or starting or not state.ranks
        is_active = is_running or time.monotonic() < self._settled_at or self._inquiries
        return _GROUP_BEAT if is_active else _IDLE_BEAT

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


# ---------------------------------------------------------------- news (docs/how-it-works.md)


class PanelNews:
    """Tracks what was sent to the page, to send only changes."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}

    def forget(self) -> None:
        """Send everything again, because a page lacks some of it."""
        self._sent = {}

    def of(
        self, snapshot: Snapshot, focus: int | None = None, *, charts: bool = True
    ) -> dict[str, Any]:
        """Return the changes since the last call, with `charts` only if requested. `focus` is the
        rank selected on the page."""
        data = {
            "about": _about(snapshot) | {"focus": focus},
            "ranks": [card.rank for card in snapshot.cards],
        }
        rendered = html.parts(snapshot, focus)
        news: dict[str, Any] = {n: part for n, part in data.items() if self._is_news(n, part)}
        if changed := {n: part for n, part in rendered.items() if self._is_news(f"part {n}", part)}:
            news["parts"] = changed
        series = snapshot.series if charts else ()
        if new := [item for item in series if self._is_news(f"figure {item.name}", (item, focus))]:
            news["figures"] = [figures.of_series(item, focus) for item in new]
        return news

    def _is_news(self, name: str, part: Any) -> bool:
        previous, self._sent[name] = self._sent.get(name, ...), part
        return bool(previous != part)


def _about(snapshot: Snapshot) -> dict[str, Any]:
    """Data that the page depends on. `marked`: the ranks that the title is about."""
    return {
        "title": facts.cut(facts.title(snapshot), 600),
        "level": snapshot.diagnosis.level,
        "marked": list(snapshot.diagnosis.ranks),
        "over": snapshot.ok is not None,
        "live": snapshot.live is not None,
        "stopping": snapshot.stopping,
        "started": snapshot.started,
        "cell": snapshot.cell,
        "record": snapshot.record,
    }


def lines_message(new: Lines) -> dict[str, Any]:
    """Message with new output of one stream, as HTML."""
    lines = [coloured(line, _LONGEST) for line in new.block.lines]
    head = {"rank": new.rank, "stream": new.stream, "skipped": new.block.skipped}
    return {**head, "lines": lines}


# ---------------------------------------------------------------- the widget


def uplot() -> str:
    """Return the chart library as released: a script that defines `uPlot`. It is sent to an open
    page, because a page would take half as long again to open with it."""
    return Path(__file__).with_name("vendor").joinpath("uPlot.min.js").read_text("utf-8")


class Page(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget. `run` is the name of the run. `end` is the HTML that remains when the run is
    over, because no update of the cell's output reaches a page that was reloaded."""

    _esm = Path(__file__).with_name("panel.js")
    _css = Path(__file__).with_name("panel.css")
    run = traitlets.Unicode().tag(sync=True)
    end = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(self, run: str) -> None:
        super().__init__(run=run)
        _receive_during_cell(self)
        _stay_busy(getattr(shell(), "kernel", None))

    def leave(self, html: str) -> None:
        """Close the widget after pages had time to load it, leaving `html`."""
        self.end = html
        timer = threading.Timer(_LOADS, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        self.layout.close()  # ipywidgets makes one for each widget, and never closes it
        self.close()


def _receive_during_cell(page: Page) -> None:
    """Receive messages from the page while the cell blocks.

    ipykernel 7.4 handles them on the subshell that opened the comm, which is busy with the cell;
    7.1 to 7.3 use the subshell they arrive on. The hook is private to ipykernel; without it the
    page falls back to interrupting the kernel.
    """
    comm: Any = page.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def _stay_busy(kernel: Any) -> None:
    """Make a kernel report "busy" until its cell has ended.

    When a kernel answers a page on a subshell, it publishes "busy" and then "idle", which front
    ends apply to the whole kernel. So each "idle" of another thread is followed by the "busy" of
    the main thread's message. The "idle" of that message, which clients wait for, remains the last.
    `_publish_status` is private to ipykernel; without it the statuses stay as they were.
    """
    publish_status: Any = getattr(kernel, "_publish_status", None)
    if publish_status is None or getattr(publish_status, "_xla_nb", False):
        return
    lock = threading.Lock()
    cell_request = kernel.get_parent("shell") if _in_main_thread() else None  # this very cell

    def publish(status: str, channel: str, parent: Any = None) -> None:
        nonlocal cell_request
        with lock:
            publish_status(status, channel, parent)
            if _in_main_thread():
                cell_request = (parent or kernel.get_parent(channel)) if status == "busy" else None
            elif status == "idle" and cell_request:
                publish_status("busy", "shell", cell_request)

    publish._xla_nb = True  # type: ignore[attr-defined]
    kernel._publish_status = publish


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
