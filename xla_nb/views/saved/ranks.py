"""The ranks in saved HTML: a table with a row for each; of many, tiles and those in trouble.

Above them the hosts, of a run that has several, in text too: those that are lost or have failed
ranks come first, so that the bound on lines never hides them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from xla_nb import wording
from xla_nb.run.activity import KINDS, Slot
from xla_nb.views import facts
from xla_nb.views.saved import bounds, chart
from xla_nb.views.saved.style import FAINT, MONO, PHASES, TROUBLED
from xla_nb.views.saved.tags import bit, code, div, escaped, faint, mark, swatch, table, unbroken
from xla_nb.views.snapshot import Card, Phase, Snapshot

_LONGEST = 160  # characters of what a rank does
_TELLING = ("step", "waits", "memory", "device", "steps")  # facts that have a column each


def as_html(snapshot: Snapshot) -> str:
    """All that is known of the ranks, to be folded."""
    if len(snapshot.cards) > bounds.CARDS:
        return _crowd(snapshot)
    cards = sorted(snapshot.cards, key=lambda card: card.rank)
    return _hosts(snapshot) + _same(snapshot) + _table(cards, snapshot)


def _same(snapshot: Snapshot) -> str:
    """What never differs between ranks, said once."""
    same = facts.in_common(snapshot)
    who = facts.everybody(snapshot)
    return _facts([facts.Fact("", who + ":", ""), *same]) if same else ""


def _facts(known: Sequence[facts.Fact]) -> str:
    each = (
        bit("", faint(fact.label), f" {_code(fact.value)}" if fact.value else "") for fact in known
    )
    return div("display:flex;flex-wrap:wrap;gap:0 16px;font-size:12px;margin:2px 0", *each)


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class _Column:
    """One column: what it shows of a rank, as HTML, "" where there is nothing. Words may wrap."""

    title: str
    draw: Callable[[Card], str]
    style: str = "text-align:left"


_NUMBER = "text-align:right;white-space:nowrap"


def _table(cards: Sequence[Card], snapshot: Snapshot, *more: _Column) -> str:
    columns = [
        _Column(snapshot.unit, lambda card: f"<b>{card.rank}</b>"),
        _Column("state", lambda card: _state(card, snapshot)),
        _Column(_when(cards, snapshot), _doing),
        *_lanes(cards, snapshot),
        *_metrics(snapshot),
        *_known(cards, snapshot),
        *more,
    ]
    rows = [[column.draw(card) for column in columns] for card in cards]
    shown = [n for n in range(len(columns)) if n < 2 or any(row[n] for row in rows)]
    drawn = table(
        [faint(columns[n].title) for n in shown],
        [[row[n] for n in shown] for row in rows],
        [columns[n].style for n in shown],
    )
    slots = [slot for card in cards for slot in card.lane]
    return drawn + (_key(slots) if slots else "")


def _state(card: Card, snapshot: Snapshot) -> str:
    sign = PHASES[card.phase]
    return (
        f"{mark(sign.glyph, card.phase, sign.colour)} {unbroken(facts.when(card, snapshot), FAINT)}"
    )


def _when(cards: Sequence[Card], snapshot: Snapshot) -> str:
    if snapshot.ok is None:
        return "now"
    return "last seen" if any(map(facts.activity, cards)) else "progress"


def _doing(card: Card) -> str:
    """Where it is, what it does, and how far its loops are."""
    parts = [escaped(one, _LONGEST) for one in facts.activity(card)]
    parts += [escaped(facts.bar_in_short(bar), _LONGEST) for bar in card.bars[:4]]
    return div("min-width:8em;max-width:34em", " · ".join(parts)) if parts else ""


def _lanes(cards: Sequence[Card], snapshot: Snapshot) -> list[_Column]:
    slots = [slot.second for card in cards for slot in card.lane]
    if not slots:
        return []
    newest = max(slots)

    def strip(card: Card) -> str:
        return _strip(card.lane, newest, snapshot.elapsed) if card.lane else ""

    title = f"last {round(min(_SECONDS, snapshot.elapsed)) or 1} s"
    return [_Column(title, strip, f"width:{_WIDTH}px;text-align:left")]


def _metrics(snapshot: Snapshot) -> list[_Column]:
    """The last value of the first figure."""
    if not snapshot.series:
        return []
    first = snapshot.series[0]
    lasts = facts.last_values(first)

    def value(card: Card) -> str:
        known = card.rank in lasts and snapshot.unit == "rank"
        return _code(facts.figure(lasts[card.rank])) if known else ""

    return [_Column(escaped(first.name, 40), value, _NUMBER)]


def _known(cards: Sequence[Card], snapshot: Snapshot) -> list[_Column]:
    """The facts that differ between ranks: the telling ones in columns, then the others."""
    same = {fact.id for fact in facts.in_common(snapshot)}
    each = {
        card.rank: {one.id: one for one in facts.in_table(card, snapshot) if one.id not in same}
        for card in cards
    }
    labels = {fact.id: fact.label for known in each.values() for fact in known.values()}

    def column(name: str) -> _Column:
        def draw(card: Card) -> str:
            known = each[card.rank].get(name)
            return _code(known.value) if known else ""

        return _Column(labels[name], draw, _NUMBER)

    def others(card: Card) -> str:
        known = [one for one in each[card.rank].values() if one.id not in _TELLING]
        return ", ".join(f"{faint(one.label)} {_code(one.value)}" for one in known)

    columns = [column(name) for name in _TELLING if name in labels]
    return [*columns, _Column("", others, "text-align:left;min-width:6em")]


def _code(value: str) -> str:
    return unbroken(facts.cut(value, 80), MONO)


# ---------------------------------------------------------------- tiles


def _crowd(snapshot: Snapshot) -> str:
    """More ranks than rows: tiles by phase, and a table of the ranks in trouble."""
    groups = facts.by_phase(snapshot.cards)
    room, tiles = bounds.TILES, []
    for phase, cards in groups.items():
        tiles.append(_tiles(phase, cards[:room], len(cards), snapshot))
        room = max(room - len(cards), 0)
    troubled = [card for phase, cards in groups.items() if phase in TROUBLED for card in cards]
    listed, more = bounds.limited(troubled, bounds.ROWS, snapshot.unit)
    last = _Column("last line", lambda card: code(card.line, 100) if card.line else "")
    troubles = _table(listed, snapshot, last) if listed else ""
    return "".join(
        [
            _facts(facts.of_cards(snapshot.cards)),
            _hosts(snapshot),
            *tiles,
            troubles,
            div(f"font-size:12px;{FAINT}", more) if more else "",
        ]
    )


def _tiles(phase: Phase, cards: Sequence[Card], number: int, snapshot: Snapshot) -> str:
    sign = PHASES[phase]
    room = bounds.TITLES // min(len(snapshot.cards), bounds.TILES)
    style = f"background:{sign.colour}40;border-radius:2px"
    tiles = [
        f'<span style="{style}" title="{_tooltip(card, snapshot, room)}">{card.rank}</span> '
        for card in cards
    ]
    left_out = f" (the first {len(cards)} shown)" if cards and len(cards) < number else ""
    title = mark(sign.glyph, f"{number:,} {phase}", sign.colour) + left_out
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(34px,1fr));gap:2px"
    grid = div(f"{columns};{MONO};font-size:12px;line-height:18px;text-align:center", *tiles)
    return div("margin:4px 0", title, grid if tiles else "")


def _tooltip(card: Card, snapshot: Snapshot, room: int) -> str:
    """What a rank does, in at most `room` bytes as an attribute."""
    first = f"{facts.name(card, snapshot)} {card.phase} {facts.when(card, snapshot)}"
    text = " · ".join(filter(None, [first.rstrip(), *facts.activity(card), card.line]))
    longest = min(160, room)
    while bounds.size_of(escape(facts.cut(text, longest))) > room and longest > 40:
        longest = longest * 3 // 4
    return escape(facts.cut(text, longest))


# ---------------------------------------------------------------- a rank's last minute


_SECONDS, _HEIGHT = 60, 12
_EACH = 5  # units of the drawing for a second; it is shown at half its size
_SEEN = 0.05  # seconds of one second that are to be seen in it
_WIDTH = _SECONDS * _EACH // 2  # CSS pixels, where there is room
#: The colours of the live panel, light and dark.
COLOURS = dict(zip(KINDS, ("#d29922", "#1f6feb", "#9aa4af", "#8957e5", "#656d76"), strict=True))


def _strip(slots: Sequence[Slot], newest: int, lasted: float) -> str:
    """The seconds before `newest` (since the epoch) as a picture: as many as the run has lasted, at
    least 10 and at most 60."""
    told = ", ".join(f"{word} {facts.span(seconds)}" for word, seconds in facts.lane(slots))
    by_second = {slot.second: slot for slot in slots}
    shown = math.ceil(min(_SECONDS, max(10, lasted)))
    seconds = range(newest - shown + 1, newest + 1)
    parts = "".join(_slot(n, second, by_second) for n, second in enumerate(seconds))
    picture = chart.drawing(parts, _EACH * shown, _HEIGHT)
    style = f"display:block;margin:3px 0 0;width:100%;min-width:60px;height:{_HEIGHT}px"
    return (
        f'<img src="{chart.address(picture)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'alt="{escape(told)}" title="{escape(told)}" style="{style};max-width:none">'
    )


def _slot(number: int, second: int, slots: Mapping[int, Slot]) -> str:
    """What it went into, stacked, since nobody knows its order. What is known of the first second
    ends with it, of the last one begins with it."""
    slot = slots.get(second)
    parts = slot.parts if slot else ()
    starts, goes_on = second - 1 not in slots, second + 1 in slots
    known = min(1.0, sum(parts))
    wide = known if starts or not goes_on else 1.0
    left = number + (1 - known) * (starts and goes_on)
    drawn, top = "", float(_HEIGHT)
    for colour, part in zip(COLOURS.values(), parts, strict=False):
        if part > 0:
            high = min(top, _HEIGHT * part / wide)
            top -= high
            place = f"x='{_EACH * left:.2f}' y='{top:.2f}' width='{_EACH * wide:.2f}'"
            drawn += f"<rect {place} height='{high:.2f}' fill='{colour}'/>"
    return drawn


def _key(slots: Sequence[Slot]) -> str:
    """What the colours mean that these have, where it is to be seen."""
    most = map(max, zip(*(slot.parts for slot in slots), strict=True))
    words = (
        bit("white-space:nowrap", swatch(colour), f" {word}")
        for (word, colour), part in zip(COLOURS.items(), most, strict=True)
        if part >= _SEEN
    )
    return div("display:flex;flex-wrap:wrap;gap:0 14px;font-size:12px;margin-top:3px", *words)


# ---------------------------------------------------------------- hosts, where there are several


_LOST = PHASES["died"]


def _by_host(snapshot: Snapshot) -> dict[str, list[Card]]:
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


def _host(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    """A host's name, why it was lost, and how many of its ranks are in each phase, as HTML."""
    lost = snapshot.lost.get(name)
    parts = [mark(_LOST.glyph, "lost", _LOST.colour), escaped(lost, 100)] if lost else []
    for phase, group in facts.by_phase(cards).items():
        sign = PHASES[phase]
        parts.append(mark(sign.glyph, f"{len(group)} {phase}", sign.colour))
    return div(
        "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px",
        bit("min-width:0", f"<b>{escaped(name, 60)}</b>"),
        *parts,
    )


def _hosts(snapshot: Snapshot) -> str:
    """The list of hosts for many ranks."""
    hosts, more = bounds.limited(list(_by_host(snapshot).items()), bounds.HOSTS, "host")
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))"
    lines = [_host(name, cards, snapshot) for name, cards in hosts]
    return div(f"margin:2px 0 6px;{columns};gap:2px 20px", *lines, more) if hosts else ""


def hosts_as_text(snapshot: Snapshot) -> list[str]:
    hosts, more = bounds.limited(list(_by_host(snapshot).items()), bounds.HOSTS, "host")
    lines = [_host_line(name, cards, snapshot) for name, cards in hosts]
    return ["", *lines, *([more] if more else [])] if hosts else []


def _host_line(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    lost = snapshot.lost.get(name)
    why = f" ({_LOST.glyph} lost: {facts.cut(lost, 100)})" if lost else ""
    phases = [f"{len(group)} {phase}" for phase, group in facts.by_phase(cards).items()]
    ranks = f": {wording.ranks(card.rank for card in cards)}: {', '.join(phases)}"
    return f"{facts.cut(name, 60)}{why}{ranks if cards else ''}"
