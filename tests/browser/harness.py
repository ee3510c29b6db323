"""The shipped script and panel.css in a plain page, with a model whose kernel is the test."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from xla_nb import wording
from xla_nb.views.facts import in_short
from xla_nb.views.panel import widget

HERE = Path(__file__).parent
_TEXTS = {
    "/page/uplot.js": (widget.uplot() + "export { uPlot };", "text/javascript"),
    "/": ((HERE / "page.html").read_text("utf-8"), "text/html"),
    "/panel.js": (widget.joined(), "text/javascript"),
    "/panel.css": (widget.PAGE.with_name("panel.css").read_text("utf-8"), "text/css"),
} | {f"/page/{name}.js": (text, "text/javascript") for name, text in widget.modules().items()}

#: What pages have loaded, which no panel is in: whether the script in one, and the theme.
_LOADED: weakref.WeakKeyDictionary[Any, tuple[bool, str]] = weakref.WeakKeyDictionary()


def card(
    rank: int,
    phase: str = "running",
    *,
    step: float | None = None,
    pace: str = "step",
    waits: float | None = None,
    memory: int | None = None,
    facts: Sequence[dict[str, str]] = (),
    **more: Any,
) -> dict[str, Any]:
    """A rank as the kernel sends it."""
    known = [
        fact("step", "" if step is None else in_short(step), pace),
        fact("waits", "" if waits is None else f"{100 * waits:.0f} %"),
        fact("memory", "" if memory is None else wording.size(memory)),
    ]
    return {
        "rank": rank,
        "phase": phase,
        "since": time.time() - 3,
        "device": f"xla:{rank}",
        "host": "",
        "place": "Cell In[3], line 7",
        "detail": "",
        "line": "",
        "used": None,
        "waits": waits,
        "memory": memory,
        "from": f"pid {4000 + rank}",
        "facts": [*(one for one in known if one["value"]), *facts],
        "bars": [],
        **more,
    }


def fact(id: str, value: str, label: str = "") -> dict[str, str]:
    return {"id": id, "label": label or id, "value": value}


def about(**more: Any) -> dict[str, Any]:
    return {
        "cell": "Cell In[3]",
        "headline": "4 ranks run",
        "simulated": False,
        "host": "",
        "lost": {},
        "started": time.time() - 5,
        "ended": None,
        "elapsed": 5.0,
        "ok": None,
        "stopping": "",
        "record": "/home/me/.local/state/xla_nb/runs/run-1",
        "home": "/home/me",
        "diagnosis": None,
        "notices": [],
        "ranks": 4,
        **more,
    }


def trouble(*ranks: int, **more: Any) -> dict[str, Any]:
    """Ranks that failed with the same error."""
    texts = {"who": f"ranks {ranks} failed", "title": "x", "place": "", "text": "", "others": []}
    return {"ranks": list(ranks), "phase": "failed", "open": False, **texts, **more}


def bar(label: str, part: float | None = 0.5, done: str = "1 of 2", left: str = "") -> Any:
    """The progress of a loop."""
    return {"label": label, "part": part, "done": done, "left": left}


def block(
    rank: int | None, *lines: str, stream: str = "out", start: int = 0, skipped: int = 0
) -> dict[str, Any]:
    """Lines of one stream, as in news."""
    return {
        "rank": rank,
        "stream": stream,
        "start": start,
        "skipped": skipped,
        "lines": list(lines),
    }


class Panel:
    """The page of one run.

    kernel   whether the page can interrupt the kernel
    seen     whether there is a view from the start
    joined   whether the page loads the script, as front ends do, or the modules themselves
    css      the front end's theme
    """

    def __init__(
        self,
        page: Any,
        *,
        kernel: bool = True,
        seen: bool = True,
        joined: bool = True,
        css: str = "",
    ) -> None:
        self.page = page
        self.seq = 0
        self.problems: list[str] = []
        self._css = css
        self._listeners: dict[str, Any] = {
            "pageerror": lambda error: self.problems.append(str(error)),
            "dialog": lambda dialog: (self.problems.append("dialog"), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)
        page.route("**/*", self._serve)
        if _LOADED.pop(page, None) != (joined, css):
            page.goto("http://localhost/" if joined else "http://localhost/?modules")
            page.wait_for_function("window.ready")
        self._loaded = joined, css
        page.evaluate("options => window.open_panel(options)", {"has_kernel": kernel, "seen": seen})

    def leave(self) -> None:
        """Leave the page to another panel, with the script loaded: opening a page costs four times
        as much as loading the script, and that twice as much as a panel."""
        if self.page.evaluate("window.leave_panel()"):
            _LOADED[self.page] = self._loaded
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.unroute_all()
        self.page.set_viewport_size({"width": 1000, "height": 1400})
        self.page.mouse.move(0, 0)

    def _serve(self, route: Any) -> None:
        path = urlsplit(route.request.url).path
        if path == "/theme.css":
            route.fulfill(body=self._css, content_type="text/css")
        elif path in _TEXTS:
            text, kind = _TEXTS[path]
            route.fulfill(body=text, content_type=kind + "; charset=utf-8")
        else:
            self.problems.append(f"asked for {path}")
            route.abort()

    def give(self, *messages: dict[str, Any]) -> None:
        """Send messages from the kernel, and wait until the page has drawn them."""
        self.page.evaluate("messages => give(...messages)", list(messages))
        self.settle()

    def news(self, *, run: str = "run-1", **parts: Any) -> dict[str, Any]:
        """The next news message."""
        self.seq += 1
        return {
            "type": "news",
            "run": run,
            "seq": self.seq,
            "whole": False,
            "now": time.time(),
            **parts,
        }

    def tell(self, **parts: Any) -> None:
        self.give(self.news(**parts))

    def begin(self, *cards: dict[str, Any], **more: Any) -> None:
        """Send the first message, with everything in it."""
        parts: dict[str, Any] = {"about": about(ranks=len(cards)), "cards": list(cards)}
        self.tell(**{"whole": True, **parts, **more})

    def settle(self) -> None:
        """Wait until all parts of the page are drawn."""
        self.page.wait_for_function(
            "() => { const view = document.querySelector('.xn-panel')?.xnView;"
            " return !view || view.dirty.size === 0; }"
        )

    def held(self) -> dict[str, int]:
        """The numbers of lines and points that the page holds."""
        numbers = self.page.evaluate(
            "() => { const { lines, figures } = document.querySelector('.xn-panel').xnView.store;"
            " const all = [...figures.values()].flatMap(figure => [...figure.values()]);"
            " return { lines: [...lines.byRank.values()].flat().length,"
            "          points: all.flatMap(line => line.x).length }; }"
        )
        return dict(numbers)

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The messages of one type that the page has sent."""
        messages = self.page.evaluate("kind => sent.filter(m => m.type === kind)", kind)
        return list(messages)

    def wait_sent(self, kind: str, n: int = 1) -> dict[str, Any]:
        """Wait for the n-th message of a type."""
        self.page.wait_for_function(
            "([kind, n]) => sent.filter(m => m.type === kind).length >= n", arg=[kind, n]
        )
        return self.sent(kind)[n - 1]

    def count(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def rows(self) -> list[str]:
        """The text of the lines of output in the page."""
        return list(
            self.page.eval_on_selector_all(".xn-row .xn-text", "all => all.map(n => n.textContent)")
        )

    def order(self) -> list[int]:
        """The ranks in the order of their cards."""
        ranks = self.page.eval_on_selector_all(
            "[role=option]", "all => all.map(n => Number(n.dataset.rank))"
        )
        return list(ranks)

    def __repr__(self) -> str:
        return f"Panel({json.dumps(self.problems)})"
