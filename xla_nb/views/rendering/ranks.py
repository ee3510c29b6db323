"""Render ranks as HTML, saved and in the panel: a table with a row per rank, or tiles for many
ranks.

If a run has several hosts, they are listed above the ranks. Hosts that are lost or have failed
ranks come first, so the limit on hosts never hides them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from xla_nb.monitor.activity import KINDS, Slot, joined
from xla_nb.monitor.snapshot import ENDED, UNDER_WAY, Bar, Card, Phase, Snapshot
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, chart
from xla_nb.views.rendering.style import FAINT, MONO, PHASES, TROUBLED
from xla_nb.views.rendering.tags import (
    LISTBOX,
    bit,
    code,
    div,
    escaped,
    faint,
    heading,
    mark,
    place,
    sentence,
    swatch,
    table,
    unbroken,
)
from xla_nb.wording import took

_LONGEST = 160  # characters of a rank's activity
_COLUMNS = ("step", "waits", "memory", "device")  # facts with a column each
_CHANGING = (*_COLUMNS, "steps")  # facts that change at each sample
_MIN_STEPS = 10  # steps after which their time may be expected
_MIN_WAITS = 0.005  # share of waiting that is worth a column


def as_html(snapshot: Snapshot) -> str:
    """Render all facts about the ranks, for a fold."""
    if len(snapshot.cards) > bounds.CARDS:
        return _crowd(snapshot)
    cards = sorted(snapshot.cards, key=lambda card: card.rank)
    hosts = [_Column("host", lambda card: escaped(card.host, 60))] * (len(snapshot.hosts) > 1)
    ranks = _table(cards, [*_columns(cards, snapshot), *hosts]) + _key(cards)
    return _hosts(snapshot) + _summary(snapshot, but=_COLUMNS) + ranks


def _crowd(snapshot: Snapshot) -> str:
    """Render more ranks than fit in rows: the number in each phase, and those in trouble."""
    groups = facts.by_phase(snapshot.cards)
    counts = (_phase_count(phase, cards) for phase, cards in groups.items())
    troubled = [card for phase in groups if phase in TROUBLED for card in groups[phase]]
    listed, note = bounds.limited(troubled, bounds.ROWS, "rank")
    last = _Column("last line", lambda card: code(card.line, 100) if card.line else "")
    parts = [
        _hosts(snapshot),
        _summary(snapshot),
        div("display:flex;flex-wrap:wrap;gap:0 12px;margin:4px 0", *counts),
        _table(listed, [*_columns(listed, snapshot), last]) if listed else "",
        _key(listed),
        div(f"font-size:12px;{FAINT}", note) if note else "",
    ]
    return "".join(parts)


def _summary(snapshot: Snapshot, but: Sequence[str] = ()) -> str:
    """Facts about all ranks together, except those in `but`, and about their hosts."""
    known = facts.of_cards(snapshot.cards)
    return _facts([*(fact for fact in known if fact.id not in but), *facts.free(snapshot)])


def _facts(known: Sequence[facts.Fact]) -> str:
    items = [bit("", faint(fact.label), f" {_code(fact.value)}") for fact in known]
    style = "display:flex;flex-wrap:wrap;gap:0 16px;font-size:12px;margin:2px 0"
    return div(style, *items) if items else ""


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class _Column:
    """A column. `draw` returns the cell of a rank as HTML, "" if it is empty. Words may wrap."""

    title: str
    draw: Callable[[Card], str]
    style: str = "text-align:left"
    name: str = ""  # in the panel's style sheet


_NUMBER = "text-align:right;white-space:nowrap"


def _table(cards: Sequence[Card], columns: Sequence[_Column], marks: Sequence[str] = ()) -> str:
    """Render a row per rank. `marks`: attributes of the rows in the panel, where columns are named
    and stay in place while they are empty."""
    return table(
        [faint(column.title) for column in columns],
        [[column.draw(card) for column in columns] for card in cards],
        [column.style for column in columns],
        [column.name for column in columns] if marks else (),
        marks,
    )


def _columns(cards: Sequence[Card], snapshot: Snapshot) -> list[_Column]:
    """The columns, with stable positions; a fact has a column if any rank has it."""
    return [
        _Column("rank", lambda card: f"<b>{card.rank}</b>", name="rank"),
        _Column("state", _state, name="state"),
        _Column("", lambda card: _activity(card, snapshot), name="at"),
        *_lanes(cards, snapshot),
        *([_Column("done", _done, name="done")] if any(card.bars for card in cards) else []),
        *_metrics(snapshot),
        *_fact_columns(cards, snapshot),
    ]


def _done(card: Card) -> str:
    return facts.share(card.bars[0]) if card.bars else ""


def _state(card: Card) -> str:
    sign = PHASES[card.phase]
    warns = ' <b title="ran on the CPU">⚠</b>' if card.sample.fallbacks else ""
    return mark(sign.glyph, card.phase, sign.colour) + warns


def _activity(card: Card, snapshot: Snapshot) -> str:
    """The rank's place, its activity there (a collective by its name), and the duration if
    relevant. A narrow panel cuts off the end."""
    op = card.sample.operation
    detail = card.detail.replace(op, op.partition(" ")[0], 1) if op else card.detail
    idle = snapshot.live is not None and snapshot.live.is_idle
    duration = snapshot.now - (card.since or snapshot.now)
    is_untimed = card.phase == "running" or idle or (card.phase not in ENDED and duration < 2)
    parts = [place(card.place, _LONGEST, snapshot.cell)] if card.place else []
    parts += [sentence(detail, _LONGEST)] if detail else []
    parts += [] if is_untimed else [unbroken(facts.when(card, snapshot), FAINT)]
    return " · ".join(parts)


def _lanes(cards: Sequence[Card], snapshot: Snapshot) -> list[_Column]:
    """A column with a strip of at least 10 slots; during a run, of at most the last 60 s."""
    width = max((slot.wide for card in cards for slot in card.lane), default=1)
    lanes = {card.rank: joined(card.lane, width) for card in cards}
    starts = [slot.second for lane in lanes.values() for slot in lane]
    if not starts:
        return []
    newest, live = max(starts), snapshot.live
    seconds = newest - min(starts) + width
    age = max(1, int(snapshot.elapsed))  # of a run: its first and newest second are not whole
    title = f"last {seconds if live else min(seconds, age)} s"
    if snapshot.ok is not None and live is None:
        title = "whole run"
    elif live is not None and (live.is_idle or snapshot.ok is not None):
        # The newest time in a lane: cells of some milliseconds leave none.
        title += f" until {facts.time_of_day(newest + width)}"

    def strip(card: Card) -> str:
        return _strip(lanes[card.rank], newest, max(10, math.ceil(seconds / width)))

    return [_Column(title, strip, f"width:{_WIDTH}px;text-align:left", "lane")]


def _metrics(snapshot: Snapshot) -> list[_Column]:
    """A column with the last value of the first figure."""
    if not snapshot.series:
        return []
    first = snapshot.series[0]
    lasts = facts.last_values(first)

    def value(card: Card) -> str:
        return _code(facts.figure(lasts[card.rank])) if card.rank in lasts else ""

    return [_Column(escaped(first.name, 40), value, _NUMBER, "metric")]


def _fact_columns(cards: Sequence[Card], snapshot: Snapshot) -> list[_Column]:
    """The most important facts, in a column each."""
    by_rank = {card.rank: {fact.id: fact for fact in facts.of_card(card)} for card in cards}
    labels = {fact.id: fact.label for known in by_rank.values() for fact in known.values()}
    running = (card for card in cards if card.phase in UNDER_WAY)
    stepping = [card for card in running if card.sample.done >= _MIN_STEPS]
    if stepping:  # it keeps its place while no time is known
        labels.setdefault("step", "step" if stepping[0].sample.loops_step else "per sync")
    if all((card.waits or 0) < _MIN_WAITS for card in cards):
        labels.pop("waits", None)

    def column(name: str) -> _Column:
        def draw(card: Card) -> str:
            fact = by_rank[card.rank].get(name)
            return _code(fact.value) if fact else ""

        return _Column(labels[name], draw, _NUMBER, name)

    return [column(name) for name in _COLUMNS if name in labels]


def _code(value: str) -> str:
    return unbroken(facts.cut(value, 80), MONO)


# ---------------------------------------------------------------- in the panel


def as_news(snapshot: Snapshot) -> str:
    """Render ranks for the panel, which lays them out (panel.css) and lets the user select one: a
    row or a tile per rank, grouped by host if there are several. Facts in a rank's details are not
    repeated in its row."""
    as_tiles = len(snapshot.cards) > bounds.CARDS
    cards = sorted(snapshot.cards, key=lambda card: (as_tiles and not _urgent(card), card.rank))
    groups = _by_host(snapshot, cards) or {"": cards}
    columns = [] if as_tiles else _columns(cards, snapshot)
    html = ""
    for name, group in groups.items():
        marks = [_attributes(card, snapshot) for card in group]
        if as_tiles:
            marked = zip(group, marks, strict=True)
            inner = _grid(_tile(card, mark) for card, mark in marked)
        else:
            inner = _table(group, columns, marks)
        head = _host(name, group, snapshot) if name else ""
        label = f' role="group" aria-label="{escape(name)}"' if name else ""
        html += f'<div class="xn-host"{label}>{head}{inner}</div>'
    key = "" if as_tiles else _key(cards)
    key = f'<div class="xn-key">{key}</div>' if key else ""
    known = _summary(snapshot, () if as_tiles else _CHANGING)
    return f'{html}<div class="xn-below">{key}{known}</div>'


def counts(snapshot: Snapshot) -> str:
    """The number of ranks in each phase."""
    return "".join(
        f'<li data-phase="{phase}">{_phase_count(phase, cards)}</li>'
        for phase, cards in facts.by_phase(snapshot.cards).items()
    )


def _phase_count(phase: Phase, cards: Sequence[Card]) -> str:
    return mark(PHASES[phase].glyph, f"{len(cards):,} {phase}", PHASES[phase].colour)


def detail(card: Card, snapshot: Snapshot) -> str:
    """Render all facts about one rank."""
    sign = PHASES[card.phase]
    state = mark(sign.glyph, card.phase, sign.colour)
    machine = filter(None, [card.host, f"pid {card.pid}" if card.pid else ""])
    activity = [place(card.place, _LONGEST)] if card.place else []
    activity += [sentence(card.detail, _LONGEST)] if card.detail else []
    since = "" if card.phase == "running" else facts.when(card, snapshot)  # since its start
    notes = (since, card.device, " · ".join(machine))
    when, *others = (faint(escaped(note)) if note else "" for note in notes)
    about = filter(None, [state, when, bit("", " · ".join(activity)) if activity else "", *others])
    title = heading(4, "font-weight:600;font-size:13px", f"rank {card.rank}")
    bars = "".join(map(bar, card.bars[:3]))
    last = code(card.line) if card.line else ""
    row = "display:flex;flex-wrap:wrap;gap:0 12px;align-items:baseline"
    return div(row, title, *about) + bars + _facts(facts.of_card(card)) + last


def bar(progress: Bar) -> str:
    """Render the progress of a loop, in words and as a line."""
    ground = "height:4px;border-radius:2px;background:"
    share = facts.portion(progress)
    done = div(f"width:{100 * share:.1f}%;{ground}{PHASES['running'].colour}")
    words = div(f"font-size:12px;{FAINT}", escaped(facts.bar_in_short(progress)))
    label = escape(facts.cut(progress.label or "progress", 80))
    track = f'<div data-share="{100 * share:.0f}" title="{label}" style="{ground}#80808038">'
    line = f"{track}{done}</div>" if progress.total else ""
    return div("margin:4px 0", words, line)


def _attributes(card: Card, snapshot: Snapshot) -> str:
    """The attributes of a rank's row or tile, which the page makes selectable."""
    is_marked = card.rank in snapshot.diagnosis.ranks and not snapshot.is_calm
    marked = " data-marked" if is_marked else ""
    about = f'role="option" tabindex="-1" data-rank="{card.rank}" data-phase="{card.phase}"'
    return f" {about}{marked}"


# ---------------------------------------------------------------- tiles


def _grid(tiles: Iterable[str]) -> str:
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(46px,1fr));gap:3px"
    style = f"{columns};font-size:12px;line-height:22px;text-align:center"
    return f'<div class="xn-tiles"{LISTBOX} style="{style}">{"".join(tiles)}</div>'


def _tile(card: Card, mark: str) -> str:
    """Draw a rank as a sign and its number, with its activity as a tooltip."""
    sign = PHASES[card.phase]
    parts = [f"rank {card.rank}", card.phase, card.place, card.detail, card.host]
    title = escape(facts.cut(" · ".join(filter(None, parts)), _LONGEST))
    style = f"background:{sign.colour}40"
    return f'<span{mark} style="{style}" title="{title}">{sign.glyph} {card.rank}</span> '


# ---------------------------------------------------------------- how a rank spent its time

_WIDTH, _HEIGHT = 150, 12  # CSS pixels, if there is room
_SLOT_WIDTH = 5  # units of the drawing per slot
_MIN_HEIGHT = 2  # pixels of the shortest known time in a slot
#: The colours of the live panel, light and dark.
COLOURS = dict(zip(KINDS, ("#d29922", "#1f6feb", "#9aa4af", "#8957e5", "#656d76"), strict=True))


def _strip(slots: Sequence[Slot], newest: int, shown: int) -> str:
    """Draw `shown` slots, up to the one that starts at `newest` (seconds since the epoch).
    Activities in a slot are stacked, because their order is unknown. Slots at an end, of which only
    a part is known, show its shares."""
    if not slots:
        return ""
    summary = ", ".join(f"{word} {took(seconds)}" for word, seconds in facts.lane(slots))
    wide = slots[0].wide
    first = newest // wide - shown + 1
    visible = [slot for slot in slots if slot.second // wide >= first]
    areas = [""] * len(COLOURS)
    for before, slot, after in zip([None, *visible], visible, [*visible[1:], None], strict=False):
        starts = before is None or before.second + wide != slot.second
        ends = after is None or slot.second + wide != after.second
        left = f"V{_HEIGHT}H{_SLOT_WIDTH * (slot.second // wide - first)}" if starts else ""
        known = math.fsum(slot.parts)
        most = known if starts or ends else min(wide, known * _HEIGHT / _MIN_HEIGHT)
        outlines = _outlines(slot.parts, most)
        areas = [area + left + outline for area, outline in zip(areas, outlines, strict=True)]
    parts = "".join(
        f"<path d='M0 {_HEIGHT}{areas[n]}V{_HEIGHT}z' fill='{colour}' "
        "shape-rendering='crispEdges'/>"
        for n, colour in reversed(list(enumerate(COLOURS.values())))
        if any(slot.parts[n] for slot in visible)
    )
    picture = chart.drawing(parts, _SLOT_WIDTH * shown, _HEIGHT)
    style = f"display:block;margin:3px 0 0;width:100%;min-width:60px;height:{_HEIGHT}px"
    return (
        f'<img src="{chart.address(picture)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'alt="{escape(summary)}" title="{escape(summary)}" style="{style};max-width:none">'
    )


@functools.lru_cache(4096)
def _outlines(parts: Sequence[float], seconds: float) -> list[str]:
    """The part of each area's outline within one slot of so many seconds. An area is as high as its
    kind and all previous kinds together."""
    highs = (min(1.0, math.fsum(parts[: n + 1]) / (seconds or 1.0)) for n in range(len(parts)))
    return [f"V{_HEIGHT * (1 - high):.3g}h{_SLOT_WIDTH}" for high in highs]


def _key(cards: Sequence[Card]) -> str:
    """Explain the colours in the strips of these ranks; empty without any."""
    words = [
        bit("white-space:nowrap", swatch(COLOURS[kind]), f" {kind}")
        for kind, _ in facts.lane([slot for card in cards for slot in card.lane])
    ]
    style = "display:flex;flex-wrap:wrap;gap:0 14px;font-size:12px;margin-top:3px"
    return div(style, *words) if words else ""


# ---------------------------------------------------------------- hosts, if there are several


_LOST = PHASES["died"]


def _by_host(snapshot: Snapshot, cards: Sequence[Card]) -> dict[str, list[Card]]:
    """Group ranks by host, hosts that need attention first; empty if there is only one host."""
    if len(snapshot.hosts) < 2:
        return {}
    groups: dict[str, list[Card]] = {name: [] for name in snapshot.hosts}
    for card in cards:
        groups.setdefault(card.host, []).append(card)

    def urgency(name: str) -> int:
        return 0 if name in snapshot.lost else 1 if any(map(_urgent, groups[name])) else 2

    return {name: groups[name] for name in sorted(groups, key=urgency)}


def _urgent(card: Card) -> bool:
    return card.phase in ("early", "failed", "died")


def _host(name: str, cards: Sequence[Card], snapshot: Snapshot) -> str:
    """Render a host's name, why it was lost, and the number of its ranks in each phase."""
    lost = snapshot.lost.get(name)
    parts = [mark(_LOST.glyph, "lost", _LOST.colour), escaped(lost, 100)] if lost else []
    for phase, group in facts.by_phase(cards).items():
        parts.append(_phase_count(phase, group))
    return div(
        "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px",
        bit("min-width:0", f"<b>{escaped(name, 60)}</b>"),
        *parts,
    )


def _hosts(snapshot: Snapshot) -> str:
    """Render the list of hosts above many ranks."""
    cards = sorted(snapshot.cards, key=lambda card: card.rank)
    hosts, note = bounds.limited(list(_by_host(snapshot, cards).items()), bounds.HOSTS, "host")
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))"
    lines = [_host(name, cards, snapshot) for name, cards in hosts]
    return div(f"margin:2px 0 6px;{columns};gap:2px 20px", *lines, note) if hosts else ""
