"""What the panel's page and the kernel say to each other.

The page asks; the kernel sends news of what changed, drawn as HTML, and
answers. The page goes by ids and attributes, never by words that are meant for people.
docs/how-it-works.md has the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xla_nb import ansi
from xla_nb.record.tail import Earlier
from xla_nb.views import facts
from xla_nb.views.observer import Lines, Observer
from xla_nb.views.rendering import colours, html
from xla_nb.views.snapshot import Snapshot

# ---------------------------------------------------------------- news


class PanelNews:
    """What the page has been told of a run, and so what is news to it."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}
        #: Of each line its generation, how many points it keeps, and its last if it is not kept.
        self._points: dict[tuple[str, int], tuple[int, int, list[Any]]] = {}

    def forget(self) -> None:
        """Tell everything again: a page lacks some of it."""
        self._sent, self._points = {}, {}

    def of(
        self, snapshot: Snapshot, observer: Observer, focus: int | None = None
    ) -> dict[str, Any]:
        """What has changed since the last call. `focus` is the rank that the page has chosen."""
        memory = ((card.rank, card.sample.memory) for card in snapshot.cards)
        parts = {
            "about": _about(snapshot) | {"focus": focus},
            "phases": [(card.rank, card.phase) for card in snapshot.cards],
            # In whole MiB: a page of memory more or less is no news of a rank that rests.
            "memory": [(rank, round(size / 2**20)) for rank, size in memory if size is not None],
        }
        drawn = html.parts(snapshot, focus)
        news: dict[str, Any] = {}
        news |= {name: part for name, part in parts.items() if self._is_news(name, part)}
        if changed := {n: part for n, part in drawn.items() if self._is_news(f"part {n}", part)}:
            news["parts"] = changed
        if figures := self._figures(observer):
            news["figures"] = figures
        return news

    def _is_news(self, name: str, part: Any) -> bool:
        before, self._sent[name] = self._sent.get(name, ...), part
        return bool(before != part)

    def _figures(self, observer: Observer) -> list[dict[str, Any]]:
        """New points; `drops`: the page's last one, which was none of those that are kept."""
        news = []
        for name, lines in observer.figures.items():
            for rank, line in lines.items():
                generation, count, newest = self._points.get((name, rank), (-1, 0, []))
                fresh, drops = generation != line.generation, bool(newest)
                points = line.points if fresh else line.points[count:]
                if points or newest != line.newest:
                    whole = [*points, *line.newest]
                    known = (point for point in whole if math.isfinite(point[0]))
                    own = [[x, _number(y), round(t, 2)] for x, y, t in known]
                    told = {"name": facts.cut(name, 300), "rank": rank, "points": own}
                    told["thinned"] = line.generation > 0
                    news.append(told | {"replace": fresh, "drops": drops})
                    self._points[name, rank] = line.generation, len(line.points), line.newest
        return news


class Turns:
    """Takes a long list of ranks in turns of at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at = 0

    def take(self, ranks: Sequence[int]) -> Sequence[int]:
        if self._at >= len(ranks):
            self._at = 0
        self._at += self._most
        return ranks[self._at - self._most : self._at]


# ---------------------------------------------------------------- parts of news


def _about(snapshot: Snapshot) -> dict[str, Any]:
    """What the page goes by. `marked`: the ranks that the title is about."""
    live, found = snapshot.live, snapshot.diagnosis
    failed = snapshot.ok is False
    return {
        "title": facts.cut(facts.title(snapshot), 600),
        "level": found.level if found else "bad" if failed else "calm",
        "marked": list(found.ranks) if found else [],
        "state": _state(snapshot),
        "over": snapshot.ended is not None,
        "live": live is not None,
        "stopping": snapshot.stopping,
        "started": snapshot.started,
        "cell": snapshot.cell,
        "record": snapshot.record,
        "unit": snapshot.unit,
    }


def _state(snapshot: Snapshot) -> str:
    if snapshot.ok is not None:
        return "ok" if snapshot.ok else "failed"
    if snapshot.stopping:
        return "stopping"
    if snapshot.live is not None and snapshot.live.is_idle:
        return "idle"
    return "running" if any(card.phase != "starting" for card in snapshot.cards) else "starting"


def _number(value: float) -> float | str:
    """JSON in a browser has neither NaN nor infinity: they are told as JavaScript writes them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# ---------------------------------------------------------------- lines and answers


def lines(new: Lines) -> dict[str, Any]:
    """New output of one stream."""
    block = new.block
    of = {"rank": new.rank, "stream": new.stream, "start": block.start, "skipped": block.skipped}
    return of | _coloured(block.lines)


def earlier(request: dict[str, Any], block: Earlier) -> dict[str, Any]:
    """The answer to a request for earlier lines; `first`: there are none before these."""
    of = {name: request[name] for name in ("request", "rank", "stream")}
    clean = [ansi.clean(line) for line in block.lines]
    return {**of, "start": block.start, "first": block.first, **_coloured(clean)}


def _coloured(clean: Sequence[str]) -> dict[str, Any]:
    """Lines as HTML, and how many bytes of the file each is."""
    return {
        "lines": [colours.coloured(line, _LONGEST, colours.themed) for line in clean],
        "sizes": [len(line.encode()) + 1 for line in clean],
    }


_LONGEST = 4000  # characters of a line in the page
