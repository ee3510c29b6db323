"""The live panel: a run as an anywidget on the page, and as a still picture in the file.

What the page and the kernel say to each other is told in docs/how-it-works.md. The rule: at most
one message every 50 ms, all of them sent by whoever calls `draw`; what the page says is checked,
kept, and acted on there too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import anywidget
import traitlets
from IPython.display import DisplayHandle

from xla_nb import ansi, wording
from xla_nb.record import tail
from xla_nb.run.run import Run
from xla_nb.run.stacks import Inquiry, StackGroup
from xla_nb.views import facts as views_facts
from xla_nb.views import saved
from xla_nb.views.observer import STREAMS, Lines, Observer
from xla_nb.views.snapshot import Bar, Card, Snapshot, Trouble, of_hosts

_HERE = Path(__file__).parent
_BEAT = 0.05  # seconds between two messages
_FEW, _SAMPLE = 128, 0.25  # of so many ranks, seconds between two looks at samples and figures;
_MANY, _SELDOM = 256, 0.5  # of more than these, at so many in turn
_AGAIN = 2.0  # seconds until as many are told again: the page may not be able to ask
_STILL = 10.0  # seconds between two still pictures
_BUDGET = 500  # lines of output in one message, about
_MOST = 1000  # lines that the page may ask for at once

log = logging.getLogger(__name__)


class Page(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget. `run` is the run's name, which every message carries."""

    _esm = _HERE / "panel.js"
    _css = _HERE / "panel.css"
    run = traitlets.Unicode().tag(sync=True)


# ---------------------------------------------------------------- what the page asks

_SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "whole": {},
    "stop": {"request": (int,)},
    "stacks": {"request": (int,)},
    "focus": {"rank": (int, type(None))},
    "earlier": {
        "request": (int,),
        "rank": (int, type(None)),
        "stream": (str,),
        "before": (int,),
        "count": (int,),
    },
}


def fault(message: object, run: str) -> str:
    """Why a message of the page is not to be acted on; empty where it is."""
    if not isinstance(message, Mapping):
        return "it is no object"
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in _SHAPES:
        return f"its type {kind!r} is unknown"
    if message.get("run") != run:
        return f"it is for run {message.get('run')!r}"
    for name, types in _SHAPES[kind].items():
        value = message.get(name)
        if not isinstance(value, types) or isinstance(value, bool) or (name not in message):
            return f"its {name} is {value!r}"
    if kind == "earlier" and message["stream"] not in STREAMS:
        return f"its stream is {message['stream']!r}"
    if kind == "earlier" and min(message["before"], message["count"]) < 0:
        return f"it asks for {message['count']} lines before {message['before']}"
    return ""


# ---------------------------------------------------------------- what the page is told


class PanelNews:
    """What of a run the page does not know yet."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._cards: dict[int, Card] = {}
        self._points: dict[tuple[str, int], tuple[int, int]] = {}

    def forget(self, ranks: Collection[int] | None = None) -> None:
        """The page may know nothing of these ranks, by default of all: tell it again."""
        gone = frozenset(self._cards if ranks is None else ranks)
        self._told = {}
        self._cards = {rank: card for rank, card in self._cards.items() if rank not in gone}
        self._points = {key: told for key, told in self._points.items() if key[1] not in gone}

    def of(self, snapshot: Snapshot, eyes: Observer) -> dict[str, Any]:
        """The parts that changed since the last time."""
        parts: dict[str, Any] = {
            "about": _about(snapshot),
            "bar": None if snapshot.bar is None else _bar(snapshot.bar),
            "troubles": [_trouble(trouble, snapshot) for trouble in snapshot.troubles],
        }
        news = {name: part for name, part in parts.items() if self._told.get(name, ...) != part}
        self._told.update(news)
        changed = [card for card in snapshot.cards if self._cards.get(card.rank) != card]
        if changed:
            news["cards"] = [_card(card) for card in changed]
            self._cards.update((card.rank, card) for card in changed)
        figures = self._figures(eyes)
        if figures:
            news["figures"] = figures
        return news

    def _figures(self, eyes: Observer) -> list[dict[str, Any]]:
        found = []
        for name, lines in eyes.figures.items():
            for rank, line in lines.items():
                generation, count = self._points.get((name, rank), (-1, 0))
                fresh = generation != line.generation
                points = line.points if fresh else line.points[count:]
                if points:
                    told = [[_finite(x), _finite(y)] for x, y in points]
                    found.append({"name": name, "rank": rank, "replace": fresh, "points": told})
                    self._points[name, rank] = line.generation, len(line.points)
        return found


class Turns:
    """Ranks go by turns: of very many, the next so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at = 0

    def take(self, ranks: Sequence[int]) -> Sequence[int]:
        if self._at >= len(ranks):
            self._at = 0
        self._at += self._most
        return ranks[self._at - self._most : self._at]


#: Of a card that the page words by itself; the rest is in its facts.
_OWN = ("rank", "phase", "since", "device", "host", "place", "detail", "line")


def _card(card: Card) -> dict[str, Any]:
    """`from`: the host and the process; `used`: the share of the device's memory."""
    facts = dict(views_facts.facts(card))
    pid = [f"pid {facts.pop('pid')}"] if "pid" in facts else []
    used = (card.device_used or 0) / card.device_limit if card.device_limit else None
    return {
        **{name: getattr(card, name) for name in _OWN},
        "used": used,
        "from": " · ".join([card.host, *pid] if card.host else pid),
        "facts": facts,
        "bars": [_bar(bar) for bar in card.bars],
    }


def _bar(bar: Bar) -> dict[str, Any]:
    part = views_facts.portion(bar) if bar.total else None
    done, *left = views_facts.progress(bar)[0 if part is None else 1 :]
    return {"label": bar.label, "part": part, "done": done, "left": " · ".join(left)}


def _trouble(trouble: Trouble, snapshot: Snapshot) -> dict[str, Any]:
    """`open`: the traceback is to be seen at once."""
    phases = {card.rank: card.phase for card in snapshot.cards}
    phase = "killed" if phases.get(trouble.ranks[0]) == "killed" else "failed"
    alone = len(snapshot.troubles) == 1
    first = "" if alone else views_facts.first(trouble)
    who = f"{wording.ranks(trouble.ranks)} {phase}{f', {first}' if first else ''}"
    return {**vars(trouble), "who": who, "phase": phase, "open": trouble.first or alone}


def _group(group: StackGroup) -> dict[str, Any]:
    return {**vars(group), "who": wording.ranks(group.ranks)}


def _finite(value: float) -> float | None:
    """JSON of the page knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _about(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "cell": snapshot.cell,
        "headline": snapshot.headline,
        "simulated": snapshot.simulated,
        "host": of_hosts(snapshot),
        "lost": snapshot.lost,
        "started": snapshot.started,
        "ended": snapshot.ended,
        # The page counts on by itself while the run goes on.
        "elapsed": None if snapshot.ok is None else snapshot.elapsed,
        "ok": snapshot.ok,
        "stopping": snapshot.stopping,
        "record": snapshot.record,
        "notices": list(snapshot.notices),
        "ranks": len(snapshot.cards),
        "unit": snapshot.unit,
    }


def _lines(read: Lines) -> dict[str, Any]:
    piece = read.piece
    return {
        "rank": read.rank,
        "stream": read.stream,
        "start": piece.start,
        "skipped": piece.skipped,
        "lines": piece.lines,
    }


# ---------------------------------------------------------------- the view


class PanelView:
    """Shows a run on the page: made, drawn and finished by one thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._eyes = Observer(run)
        self._news = PanelNews()
        self._sequence = 0
        self._due = dict.fromkeys(("beat", "sample", "again", "still"), 0.0)
        self._whole = True
        self._looked, self._retold = Turns(_MANY), Turns(_MANY)
        self._focus: int | None = None
        self._phases: Sequence[str] = ()
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._inquiries: list[tuple[int | None, Inquiry]] = []
        self._page = Page(run=run.name)
        self._page.on_msg(self._hear)
        _answer_while_the_cell_runs(self._page)
        self._live = _displayed(*_widget(self._page, run))
        self._still = _displayed(self._picture())
        self._due["still"] = time.monotonic() + _AGAIN  # soon, when there are ranks to be seen

    def draw(self) -> float:
        """Tell the page what is new; gives the seconds until the next time."""
        self._obey()
        self._answer()
        now = time.monotonic()
        if self._is_due("beat", now, _BEAT):
            self._tell(now)
        if self._is_due("still", now, _STILL):
            self._still.update(self._picture(), raw=True)
        return max(0.0, self._due["beat"] - time.monotonic())

    def finish(self) -> None:
        """Leave what stays in the file in place of the widget."""
        try:
            self._obey()
            self._eyes.read(_BUDGET)
            self._eyes.sample()
            self._live.update(_bundle(self._eyes.still()), raw=True)
            self._still.update({"text/html": "", "text/plain": ""}, raw=True)
        finally:
            self._page.layout.close()  # ipywidgets gives each widget one, and leaves it behind
            self._page.close()

    def _is_due(self, what: str, now: float, every: float) -> bool:
        if now < self._due[what]:
            return False
        self._due[what] = now + every
        return True

    # ---------------------------------------------------------- telling

    def _tell(self, now: float) -> None:
        message: dict[str, Any] = {}
        lines = self._eyes.read(_BUDGET, self._focus)
        whole, self._whole = self._whole, False
        if whole or self._is_to_be_seen(now):
            self._forget(whole, now)
            message |= self._news.of(self._eyes.snapshot(), self._eyes)
        if lines:
            message["lines"] = [_lines(one) for one in lines]
        if message:
            self._sequence += 1
            self._send("news", seq=self._sequence, whole=whole, now=time.time(), **message)

    def _is_to_be_seen(self, now: float) -> bool:
        """Whether it is time for samples, or ranks have come or ended: of a crowd that can wait."""
        states = self._run.state.ranks.values()
        phases = [rank.phase for rank in states]
        changed, self._phases = phases != self._phases, phases
        few = len(phases) <= _FEW
        if self._is_due("sample", now, _SAMPLE if few else _SELDOM) or (changed and few):
            self._eyes.sample(self._looked.take(list(self._run.state.ranks)))
            return True
        return False

    def _forget(self, whole: bool, now: float) -> None:
        again = self._is_due("again", now, _AGAIN)
        if whole:
            self._news.forget()
        elif again:
            self._news.forget(self._retold.take(list(self._run.state.ranks)))

    def _send(self, kind: str, **body: Any) -> None:
        self._page.send({"type": kind, "run": self._run.name, **body})

    def _picture(self) -> dict[str, str]:
        """The still picture beside the widget: closed, as the widget says it all."""
        bundle = _bundle(self._eyes.still())
        summary = "what stays in the file if the kernel is lost now"
        bundle["text/html"] = (
            f'<details><summary style="opacity:.6;font-size:85%">{summary}</summary>'
            f"{bundle['text/html']}</details>"
        )
        return bundle

    # ---------------------------------------------------------- hearing

    def _hear(self, _widget: object, message: object, _buffers: object) -> None:
        """Called by ipywidgets, in whichever thread the message came."""
        wrong = fault(message, self._run.name)
        if wrong:
            log.warning("a message of the page is ignored: %s", wrong)
            return
        assert isinstance(message, dict)
        self._inbox.put(message)
        with self._run.changed:
            self._run.changed.notify_all()

    def _obey(self) -> None:
        actions: dict[str, Callable[[dict[str, Any]], None]] = {
            "whole": self._on_whole,
            "focus": lambda message: setattr(self, "_focus", message["rank"]),
            "stop": self._on_stop,
            "stacks": self._on_stacks,
            "earlier": self._on_earlier,
        }
        while True:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                return
            actions[message["type"]](message)

    def _on_whole(self, _message: dict[str, Any]) -> None:
        self._whole = True
        self._due["beat"] = 0.0

    def _on_stop(self, message: dict[str, Any]) -> None:
        self._send("ack", request=message["request"])
        self._run.stop("Stopped by the Stop button.")

    def _on_stacks(self, message: dict[str, Any]) -> None:
        self._send("ack", request=message["request"])
        self._inquiries.append((message["request"], Inquiry(self._run)))

    def _answer(self) -> None:
        for request, inquiry in self._inquiries[:]:
            if inquiry.settled:
                self._inquiries.remove((request, inquiry))
                groups = [_group(group) for group in inquiry.groups()]
                self._send("stacks", request=request, groups=groups)

    def _on_earlier(self, message: dict[str, Any]) -> None:
        rank, stream = message["rank"], message["stream"]
        path = self._run.record.log(rank, stream)
        found = tail.before(path, message["before"], min(_MOST, message["count"]))
        self._send(
            "earlier",
            request=message["request"],
            rank=rank,
            stream=stream,
            start=found.start,
            lines=[ansi.clean(line) for line in found.lines],
            first=found.first,
        )


def _widget(page: Page, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The widget's own bundle and metadata; its text is for readers without widgets."""
    bundle, metadata = page._repr_mimebundle_()
    bundle["text/plain"] = f"xla_nb: {run.name} runs; its files are in {run.record.path}"
    return bundle, metadata


def _displayed(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    """A display of the cell, to be updated later."""
    handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
    handle.display(bundle, raw=True, metadata=metadata or {})
    return handle


def _bundle(snapshot: Snapshot) -> dict[str, str]:
    return {"text/html": saved.render_html(snapshot), "text/plain": saved.render_text(snapshot)}


def _answer_while_the_cell_runs(page: Page) -> None:
    """ipykernel 7.4 handles a comm's messages on the subshell that opened it, which is busy with
    the cell; on the subshell that they came by, as in 7.1 to 7.3, they get through. The hook is
    private to ipykernel: where it is gone, the page's own fallback is the interrupt."""
    if hasattr(page.comm, "_reply_subshell_for"):
        page.comm._reply_subshell_for = lambda data, default: default
