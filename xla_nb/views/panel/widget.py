"""The panel's widget, and adjustments to ipykernel that let a page communicate during a cell."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from xla_nb.views import loop

_LOADS = 10.0  # seconds for a page to load a widget; closing it earlier is an error on the page


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
        _stay_busy(getattr(loop.shell(), "kernel", None))

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
