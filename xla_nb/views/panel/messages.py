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
        data = {
            "about": _about(snapshot) | {"focus": focus},
            "ranks": [card.rank for card in snapshot.cards],
        }
        rendered = html.parts(snapshot, focus)
        news: dict[str, Any] = {}
        news |= {name: part for name, part in data.items() if self._is_news(name, part)}
        if changed := {n: part for n, part in rendered.items() if self._is_news(f"part {n}", part)}:
            news["parts"] = changed
        series = snapshot.series if charts else ()
        if new := [item for item in series if self._is_news(f"figure {item.name}", (item, focus))]:
            news["figures"] = [figures.of_series(item, focus) for item in new]
        return news

    def _is_news(self, name: str, part: Any) -> bool:
        previous, self._sent[name] = self._sent.get(name, ...), part
        return bool(previous != part)


# ---------------------------------------------------------------- parts of news


def _about(snapshot: Snapshot) -> dict[str, Any]:
    """Data that the page depends on. `marked`: the ranks that the title is about."""
    live, diagnosis = snapshot.live, snapshot.diagnosis
    has_failed = snapshot.ok is False
    return {
        "title": facts.cut(facts.title(snapshot), 600),
        "level": diagnosis.level if diagnosis else "bad" if has_failed else "calm",
        "marked": list(diagnosis.ranks) if diagnosis else [],
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
    head = {"rank": new.rank, "stream": new.stream, "start": block.start, "skipped": block.skipped}
    return head | _coloured(block.lines)


def earlier(request: dict[str, Any], block: LineBlock) -> dict[str, Any]:
    """Answer to a request for earlier lines. `first`: whether these are the first lines."""
    head = {name: request[name] for name in ("request", "rank", "stream")}
    clean = [ansi.clean(line) for line in block.lines]
    return {**head, "start": block.start, "first": block.start == 0, **_coloured(clean)}


def _coloured(clean: Sequence[str]) -> dict[str, Any]:
    """Lines as HTML, and the size of each in the file, in bytes."""
    return {
        "lines": [colours.coloured(line, _LONGEST) for line in clean],
        "sizes": [len(line.encode()) + 1 for line in clean],
    }


_LONGEST = 4000  # characters of a line on the page
