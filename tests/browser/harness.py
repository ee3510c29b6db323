"""The shipped script and panel.css in a plain page, with the test as kernel."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from xla_nb import ansi
from xla_nb.monitor.activity import Slot
from xla_nb.monitor.sentences import Trouble
from xla_nb.monitor.snapshot import Card, Phase, Snapshot, Stream
from xla_nb.record.sample import Sample
from xla_nb.record.tail import LineBlock
from xla_nb.views.observer import Lines
from xla_nb.views.panel import view
from xla_nb.views.panel.view import PanelNews, lines_message

HERE = Path(__file__).parent
PANEL = Path(view.__file__).parent
_TEXTS = {
    "/": ((HERE / "page.html").read_text("utf-8"), "text/html"),
    "/panel.js": (PANEL.joinpath("panel.js").read_text("utf-8"), "text/javascript"),
    "/panel.css": (PANEL.joinpath("panel.css").read_text("utf-8"), "text/css"),
}

#: The theme of each page that has the script loaded but contains no panel.
_LOADED: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def card(rank: int, phase: Phase = "running", **more: Any) -> Card:
    """A card of a rank. `memory`, `steps`, `fallbacks` and others go into its sample."""
    of_sample = {name: more.pop(name) for name in [*more] if name in SAMPLE}
    known = {
        "since": time.time() - 3,
        "device": f"xla:{rank}",
        "place": "Cell In[3], line 7",
        "pid": 4000 + rank,
        "sample": Sample(at=1.0, since=1.0, **of_sample),
    }
    return Card(rank, phase, **{**known, **more})


SAMPLE = {one.name for one in fields(Sample)} - {one.name for one in fields(Card)}


def trouble(*ranks: int, **more: Any) -> Trouble:
    """Ranks that failed with the same error."""
    return Trouble(ranks, **{"first": False, "title": "x", "place": "", "text": "", **more})


def lane(*seconds: Sequence[float], end: int | None = None) -> tuple[Slot, ...]:
    """The last seconds of a rank as shares of states; the last second is `end`."""
    first = (end or int(time.time())) - len(seconds) + 1
    return tuple(Slot(first + n, *parts) for n, parts in enumerate(seconds))


def block(
    rank: int | None, *lines: str, stream: Stream = "out", skipped: int = 0
) -> dict[str, Any]:
    """Lines of one stream, as in a news message."""
    clean = [ansi.clean(line) for line in lines]
    return lines_message(Lines(rank, stream, LineBlock(skipped, clean, ())))


#: The parts of a message that the kernel does not draw.
PARTS = ("uplot", "lines", "before", "whole")
RUN = Snapshot(
    run="run-1",
    cell="Cell In[3]",
    headline="4 ranks run",
    record="/home/me/.local/state/xla_nb/runs/run-1",
    now=time.time(),
    started=time.time() - 5,
    elapsed=5.0,
)


class Panel:
    """The page of one run, with the test as kernel: its messages are drawn as a kernel draws them.

    kernel   whether the page can interrupt the kernel
    seen     whether there is a view from the start
    css      the front end's theme
    """

    def __init__(
        self,
        page: Any,
        *,
        kernel: bool = True,
        seen: bool = True,
        css: str = "",
    ) -> None:
        self.page = page
        self.seq = 0
        self.run = replace(RUN, started=time.time() - 5)
        self.drawn = PanelNews()
        self.problems: list[str] = []
        self._css = css
        self._listeners: dict[str, Any] = {
            "pageerror": lambda error: self.problems.append(str(error)),
            "dialog": lambda dialog: (self.problems.append("dialog"), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)
        page.route("**/*", self._serve)
        if _LOADED.pop(page, None) != css:
            page.goto("http://localhost/")
            page.wait_for_function("window.ready")
        page.evaluate("options => window.open_panel(options)", {"has_kernel": kernel, "seen": seen})

    def leave(self) -> None:
        """Leave the page to another panel, with the script loaded. Opening a page costs four times
        as much as loading the script, which costs twice as much as a panel."""
        if self.page.evaluate("window.leave_panel()"):
            _LOADED[self.page] = self._css
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

    def news(self, **parts: Any) -> dict[str, Any]:
        """The next news message."""
        self.seq += 1
        head = {"type": "news", "seq": self.seq, "whole": False, "now": time.time()}
        return {**head, **parts}

    def tell(self, *cards: Card, **about: Any) -> None:
        """Send the news after these ranks and fields of the snapshot change, plus any parts of the
        message that are not drawn."""
        parts = {name: about.pop(name) for name in PARTS if name in about}
        known = {one.rank: one for one in (*self.run.cards, *cards)}
        every = tuple(known[rank] for rank in sorted(known))
        self.run = replace(self.run, **{"now": time.time(), "cards": every, **about})
        news = self.drawn.of(self.run, self._chosen())
        self.give(self.news(**news, **parts))

    def _chosen(self) -> int | None:
        """The rank that the page reported as selected."""
        told = self.sent("focus")
        return told[-1]["rank"] if told else None

    def begin(self, *cards: Card, **about: Any) -> None:
        """Send a whole message."""
        self.drawn = PanelNews()
        self.run = replace(self.run, cards=(), troubles=())
        self.tell(*cards, **{"whole": True, "before": [], "uplot": view.uplot(), **about})

    def choose(self, rank: int) -> None:
        """Click on a rank and reply with its details."""
        self.page.locator(f'[data-rank="{rank}"]').first.click()
        self.tell()

    def settle(self) -> None:
        """Wait until all parts of the page are drawn."""
        self.page.wait_for_function(
            "() => { const view = document.querySelector('.xn-panel')?.xnView;"
            " return !view || view.dirty.size === 0"
            " && (!view.store.figures.size || view.store.uPlot !== undefined); }"
        )

    def held(self) -> int:
        """The number of lines that the page stores."""
        return int(
            self.page.evaluate(
                "() => [...document.querySelector('.xn-panel').xnView.store.lines.byRank.values()]"
                ".flat().length"
            )
        )

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The messages of one type that the page sent."""
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
