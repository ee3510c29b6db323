"""The ranks in saved HTML: a table with a row for each; of many, tiles and those in trouble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from xla_nb.views import facts
from xla_nb.views.saved import bounds, hosts, lane
from xla_nb.views.saved.style import FAINT, MONO, PHASES, TROUBLED
from xla_nb.views.saved.tags import bit, code, div, escaped, faint, mark, table, unbroken
from xla_nb.views.snapshot import Card, Phase, Snapshot

_LONGEST = 160  # characters of what a rank does
_TELLING = ("step", "waits", "memory", "device", "steps")  # facts that have a column each


def as_html(snapshot: Snapshot) -> str:
    """All that is known of the ranks, to be folded."""
    if len(snapshot.cards) > bounds.CARDS:
        return _crowd(snapshot)
    cards = sorted(snapshot.cards, key=lambda card: card.rank)
    return hosts.as_html(snapshot) + _same(snapshot) + _table(cards, snapshot)


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
    return drawn + (lane.key(slots) if slots else "")


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
        return lane.strip(card.lane, newest, snapshot.elapsed) if card.lane else ""

    title = f"last {round(min(lane.SECONDS, snapshot.elapsed)) or 1} s"
    return [_Column(title, strip, f"width:{lane.WIDTH}px;text-align:left")]


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
            hosts.as_html(snapshot),
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
