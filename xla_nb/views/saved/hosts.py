"""The machines of a run that has several: a line each, in HTML and in text.

The rule: those that are lost or have ranks in trouble stand first, and of the others a bounded
number is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import style
from xla_nb.views.saved.tags import bit, div, escaped, mark
from xla_nb.views.snapshot import Card, Snapshot
from xla_nb.wording import several

#: Hosts that have a line.
MOST = 24
_LOST = style.PHASES["killed"]


def by_host(snapshot: Snapshot) -> dict[str, list[Card]]:
    """The ranks of each host, those first that want attention; none where there is but one."""
    if len(snapshot.hosts) < 2:
        return {}
    found: dict[str, list[Card]] = {name: [] for name in snapshot.hosts}
    for card in sorted(snapshot.cards, key=lambda card: card.rank):
        found.setdefault(card.host, []).append(card)

    def calm(name: str) -> int:
        if name in snapshot.lost:
            return 0
        return 1 if any(card.phase in ("failed", "killed") for card in found[name]) else 2

    return {name: found[name] for name in sorted(found, key=calm)}


def heading(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    """A host's name, whether it is lost, and how many of its ranks are in which phase."""
    lost = snapshot.lost.get(name)
    said = [mark(_LOST.glyph, "lost", _LOST.colour), escaped(lost, 100)] if lost else []
    for phase, alike in facts.by_phase(cards).items():
        sign = style.PHASES[phase]
        said.append(mark(sign.glyph, f"{len(alike)} {phase}", sign.colour))
    return div(
        "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px",
        bit("min-width:0", f"<b>{escaped(name, 60)}</b>"),
        *said,
    )


def listed(snapshot: Snapshot) -> str:
    """The hosts of a crowd."""
    groups = list(by_host(snapshot).items())
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))"
    lines = [heading(name, cards, snapshot) for name, cards in groups[:MOST]]
    more = f"… and {several(len(groups) - MOST, 'more host')}" if groups[MOST:] else ""
    return div(f"margin-top:6px;{columns};gap:2px 20px", *lines, more) if groups else ""


def text(snapshot: Snapshot) -> list[str]:
    groups = list(by_host(snapshot).items())
    lines = [_line(name, cards, snapshot) for name, cards in groups[:MOST]]
    if groups[MOST:]:
        lines.append(f"… and {several(len(groups) - MOST, 'more host')}")
    return ["", *lines] if lines else []


def _line(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    lost = snapshot.lost.get(name)
    said = f" ({_LOST.glyph} lost: {facts.cut(lost, 100)})" if lost else ""
    phases = [f"{len(alike)} {phase}" for phase, alike in facts.by_phase(cards).items()]
    ranks = f": {wording.ranks(card.rank for card in cards)}: {', '.join(phases)}"
    return f"{facts.cut(name, 60)}{said}{ranks if cards else ''}"
