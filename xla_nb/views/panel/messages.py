"""Messages between the panel's page and the kernel.

The page sends requests; the kernel sends answers, and news of changes, rendered as HTML. The page
uses ids and attributes, never texts for people. docs/how-it-works.md describes the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xla_nb import ansi
from xla_nb.record.tail import LineBlock
from xla_nb.views import facts
from xla_nb.views.observer import Lines
from xla_nb.views.rendering import colours, figures, html
from xla_nb.views.snapshot import Snapshot

# ---------------------------------------------------------------- news


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
        parts = {
            "about": _about(snapshot) | {"focus": focus},
            "ranks": [card.rank for card in snapshot.cards],
        }
        drawn = html.parts(snapshot, focus)
        news: dict[str, Any] = {}
        news |= {name: part for name, part in parts.items() if self._is_news(name, part)}
        if changed := {n: part for n, part in drawn.items() if self._is_news(f"part {n}", part)}:
            news["parts"] = changed
        every = snapshot.series if charts else ()
        if fresh := [one for one in every if self._is_news(f"figure {one.name}", (one, focus))]:
            news["figures"] = [figures.of_series(one, focus) for one in fresh]
        return news

    def _is_news(self, name: str, part: Any) -> bool:
        before, self._sent[name] = self._sent.get(name, ...), part
        return bool(before != part)


# ---------------------------------------------------------------- parts of news


def _about(snapshot: Snapshot) -> dict[str, Any]:
    """Data that the page depends on. `marked`: the ranks that the title is about."""
    live, found = snapshot.live, snapshot.diagnosis
    failed = snapshot.ok is False
    return {
        "title": facts.cut(facts.title(snapshot), 600),
        "level": found.level if found else "bad" if failed else "calm",
        "marked": list(found.ranks) if found else [],
        "over": snapshot.ended is not None,
        "live": live is not None,
        "stopping": snapshot.stopping,
        "started": snapshot.started,
        "cell": snapshot.cell,
        "record": snapshot.record,
        "unit": snapshot.unit,
    }


# ---------------------------------------------------------------- lines and answers


def lines(new: Lines) -> dict[str, Any]:
    """Message with new output of one stream."""
    block = new.block
    of = {"rank": new.rank, "stream": new.stream, "start": block.start, "skipped": block.skipped}
    return of | _coloured(block.lines)


def earlier(request: dict[str, Any], block: LineBlock) -> dict[str, Any]:
    """Answer to a request for earlier lines. `first`: whether these are the first lines."""
    of = {name: request[name] for name in ("request", "rank", "stream")}
    clean = [ansi.clean(line) for line in block.lines]
    return {**of, "start": block.start, "first": block.start == 0, **_coloured(clean)}


def _coloured(clean: Sequence[str]) -> dict[str, Any]:
    """Lines as HTML, and the size of each in the file, in bytes."""
    return {
        "lines": [colours.coloured(line, _LONGEST, colours.themed) for line in clean],
        "sizes": [len(line.encode()) + 1 for line in clean],
    }


_LONGEST = 4000  # characters of a line on the page
