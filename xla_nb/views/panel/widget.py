"""The widget of a panel, and when it is closed: not while a page is still loading it.

A page that loads a widget which has been closed meanwhile, as that of a very short cell, reports
"Failed to initialize model" two seconds later. So a widget that no page has asked for anything
stays open until one does.
"""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from xla_nb.views import picture
from xla_nb.views.panel import script

_LOADS = 10.0  # seconds in which a page that is there has loaded a widget


class Page(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget. `run` is the run's name, which every message carries."""

    _esm = script.joined()
    _css = Path(__file__).with_name("panel.css")
    run = traitlets.Unicode().tag(sync=True)

    def __init__(self, run: str) -> None:
        super().__init__(run=run)
        _answer_while_the_cell_runs(self)
        _stay_busy(getattr(picture.shell(), "kernel", None))
        _loading().begin(self)
        self.on_msg(lambda *_: _loading().loaded(self))  # its first message says that it is there

    def leave(self) -> None:
        """Close it, once a page that is loading it has done so."""
        _loading().leave(self)

    def end(self) -> None:
        """Close it now."""
        self.layout.close()  # ipywidgets makes one for each widget, and never closes it
        self.close()


class Loading:
    """The widgets that no page has sent anything yet. Used in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[Page, float | None] = {}  # since when each is to be closed

    def begin(self, page: Page) -> None:
        """A widget has been made; those that were left long ago have no page."""
        long_ago = time.monotonic() - _LOADS
        with self._lock:
            late = [page for page, left in self._left.items() if left and left < long_ago]
            self._left = {p: left for p, left in self._left.items() if p not in late} | {page: None}
        for each in late:
            each.end()

    def loaded(self, page: Page) -> None:
        """A page has sent a message, as it does first of all once it has loaded the widget."""
        with self._lock:
            left = self._left.pop(page, None)
        if left:
            page.end()

    def leave(self, page: Page) -> None:
        """A widget is not needed any more."""
        with self._lock:
            waits = page in self._left
            if waits:
                self._left[page] = time.monotonic()
        if not waits:
            page.end()


@functools.cache
def _loading() -> Loading:
    """Those of this process."""
    return Loading()


def _answer_while_the_cell_runs(page: Page) -> None:
    """Let the page's messages through while the cell blocks.

    ipykernel 7.4 handles them on the subshell that opened the comm, which is busy with the cell;
    7.1 to 7.3 use the subshell they arrive on. The hook is private to ipykernel: without it the
    page falls back to interrupting the kernel.
    """
    comm: Any = page.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def _stay_busy(kernel: Any) -> None:
    """Have a kernel say "busy" until its cell has ended.

    It says so when it answers a page on a subshell, and then "idle", which front ends take for all
    of it: behind an idle of another thread comes the busy of what the main thread handles. That
    one's own idle, for which clients wait, stays its last word. `_publish_status` is private to
    ipykernel: without it the kernel says what it did.
    """
    said: Any = getattr(kernel, "_publish_status", None)
    if said is None or getattr(said, "_xla_nb", False):
        return
    one_at_a_time = threading.Lock()
    handled = kernel.get_parent("shell") if _in_main_thread() else None  # this very cell

    def publish(status: str, channel: str, parent: Any = None) -> None:
        nonlocal handled
        with one_at_a_time:
            said(status, channel, parent)
            if _in_main_thread():
                handled = (parent or kernel.get_parent(channel)) if status == "busy" else None
            elif status == "idle" and handled:
                said("busy", "shell", handled)

    publish._xla_nb = True  # type: ignore[attr-defined]
    kernel._publish_status = publish


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
