"""The hosts of a run that has several: a line each, in HTML and in text.

Hosts that are lost or have failed ranks come first, so that the bound on lines never hides them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, style
from xla_nb.views.saved.tags import bit, div, escaped, mark
from xla_nb.views.snapshot import Card, Snapshot

_LOST = style.PHASES["died"]


def by_host(snapshot: Snapshot) -> dict[str, list[Card]]:
    """The ranks of each host, hosts that need attention first; empty if there is only one host."""
    if len(snapshot.hosts) < 2:
        return {}
    groups: dict[str, list[Card]] = {name: [] for name in snapshot.hosts}
    for card in sorted(snapshot.cards, key=lambda card: card.rank):
        groups.setdefault(card.host, []).append(card)

    def calm(name: str) -> int:
        if name in snapshot.lost:
            return 0
        return 1 if any(card.phase in ("early", "failed", "died") for card in groups[name]) else 2

    return {name: groups[name] for name in sorted(groups, key=calm)}


def heading(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    """A host's name, why it was lost, and how many of its ranks are in each phase, as HTML."""
    lost = snapshot.lost.get(name)
    parts = [mark(_LOST.glyph, "lost", _LOST.colour), escaped(lost, 100)] if lost else []
    for phase, group in facts.by_phase(cards).items():
        sign = style.PHASES[phase]
        parts.append(mark(sign.glyph, f"{len(group)} {phase}", sign.colour))
    return div(
        "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px",
        bit("min-width:0", f"<b>{escaped(name, 60)}</b>"),
        *parts,
    )


def as_html(snapshot: Snapshot) -> str:
    """The list of hosts for many ranks."""
    hosts, more = bounds.limited(list(by_host(snapshot).items()), bounds.HOSTS, "host")
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))"
    lines = [heading(name, cards, snapshot) for name, cards in hosts]
    return div(f"margin:2px 0 6px;{columns};gap:2px 20px", *lines, more) if hosts else ""


def as_text(snapshot: Snapshot) -> list[str]:
    hosts, more = bounds.limited(list(by_host(snapshot).items()), bounds.HOSTS, "host")
    lines = [_line(name, cards, snapshot) for name, cards in hosts]
    return ["", *lines, *([more] if more else [])] if hosts else []


def _line(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    lost = snapshot.lost.get(name)
    why = f" ({_LOST.glyph} lost: {facts.cut(lost, 100)})" if lost else ""
    phases = [f"{len(group)} {phase}" for phase, group in facts.by_phase(cards).items()]
    ranks = f": {wording.ranks(card.rank for card in cards)}: {', '.join(phases)}"
    return f"{facts.cut(name, 60)}{why}{ranks if cards else ''}"
