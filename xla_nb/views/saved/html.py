"""A run as HTML that reads right without a kernel, trusted or not, light or dark.

Styles are inline and limited to what JupyterLab keeps in an untrusted notebook (it has a pattern
for each property; no `var()`, and no `unicode-bidi`, hence <bdi>). A colour never stands without
a word.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, chart, colours, hang, hosts
from xla_nb.views.saved.style import (
    AMBER,
    BLUE,
    EDGE,
    ERR,
    FAINT,
    LINES,
    MONO,
    OTHERS,
    PHASES,
    RED,
    SANS,
    TROUBLED,
)
from xla_nb.views.saved.tags import bit, code, details, div, escaped, faint, gap, mark, pre, section
from xla_nb.views.snapshot import Bar, Card, Excerpt, Phase, Series, Snapshot
from xla_nb.wording import several

_CHART = (350, 96)


def render_html(snapshot: Snapshot) -> str:
    """The run as HTML, at most some 400 kB for up to 256 ranks."""
    state = facts.state(snapshot)
    above = [
        _header(snapshot, state),
        *(_notice(text) for text in snapshot.notices[:20]),
        hang.as_html(snapshot),
        _troubles(snapshot),
        _bar(snapshot.bar, state.colour) if snapshot.bar else "",
        _ranks(snapshot) if len(snapshot.cards) <= bounds.CARDS else _crowd(snapshot),
        _figures(snapshot.series),
    ]
    output = _output(snapshot, bounds.LARGEST - sum(map(bounds.size_of, above)))
    record = div(f"margin-top:10px;font-size:12px;{FAINT}", "record: ", code(snapshot.record, 400))
    style = (
        f"{SANS};font-size:13px;line-height:1.5;overflow-wrap:break-word;padding:10px 14px;"
        f"margin:4px 0;border:1px solid {EDGE};border-left:4px solid {state.colour};"
        "border-radius:6px"
    )
    return f'<div dir="ltr" style="{style}">{"".join([*above, output, record])}</div>'


#: The first of a row on the left, the last on the right.
_APART = "display:flex;justify-content:space-between;align-items:baseline;gap:0 8px"


def _header(snapshot: Snapshot, state: facts.State) -> str:
    about = " · ".join(escaped(part, 200) for part in facts.about(snapshot))
    return "".join(
        [
            div(
                f"{_APART};font-size:14px",
                bit(
                    "min-width:0",
                    mark(state.glyph, state.word, state.colour),
                    f"&nbsp; <b>{escaped(snapshot.cell, 80)}</b> ",
                ),
                bit(f"{MONO};font-size:12px;white-space:nowrap", facts.span(snapshot.elapsed)),
            ),
            div("font-size:14px", escaped(snapshot.headline, 600)),
            div(f"font-size:12px;{FAINT}", about),
        ]
    )


def _notice(text: str) -> str:
    amber = f"border-left:3px solid {AMBER};background:{AMBER}1a"
    style = f"margin-top:6px;padding:3px 10px;{amber}"
    return div(style, f"<b>note</b> {escaped(text, 600)}")


def _troubles(snapshot: Snapshot) -> str:
    groups, more = bounds.troubles(snapshot, colours.coloured)
    drawn = [_trouble(group, not number) for number, group in enumerate(groups)]
    return section("errors", *drawn, div("", more) if more else "") if groups else ""


def _trouble(shown: bounds.ShownTrouble, opened: bool) -> str:
    trouble = shown.trouble
    first = facts.first_to_fail(trouble)
    words = [mark(PHASES["failed"].glyph, wording.ranks(trouble.ranks), RED)]
    if not trouble.told:
        words += [
            faint(f"({first})") if first else "",
            f"<b>{escaped(trouble.title)}</b>",
            f"{faint('at')} {escaped(trouble.place)}" if trouble.place else "",
        ]
    summary = " ".join(words)
    traceback = shown.traceback.lines(gap(bounds.gap_text(shown.traceback)))
    inner = pre(traceback, RED) if trouble.text else ""
    if trouble.others:
        lines = [*shown.others, *([gap(shown.more)] if shown.more else [])]
        inner += faint(f"{OTHERS}:") + pre(lines, RED)
    return details(summary, inner, opened) if inner else div("", summary)


def _bar(bar: Bar, colour: str) -> str:
    done = f"width:{100 * facts.portion(bar):.1f}%;height:5px;border-radius:3px;background:{colour}"
    progress = " · ".join(part.replace(" ", "\xa0") for part in facts.progress(bar))
    return div(
        "margin-top:6px",
        div(
            f"{_APART};flex-wrap:wrap",
            bit("min-width:0", escaped(bar.label or "progress", 80)),
            f" {bit(f'{MONO};font-size:12px', progress)}",
        ),
        div("height:5px;border-radius:3px;background:#80808038", div(done)) if bar.total else "",
    )


_PAIRS = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(390px,100%),1fr))"


def _ranks(snapshot: Snapshot) -> str:
    """A card for each rank, under its host if there are several."""
    groups = hosts.by_host(snapshot)
    if not groups:
        return _cards(sorted(snapshot.cards, key=lambda card: card.rank), snapshot)
    drawn = [
        div("margin-top:12px", hosts.heading(name, cards, snapshot), _cards(cards, snapshot))
        for name, cards in groups.items()
    ]
    beside = max(map(len, groups.values())) <= 2  # else a host has more than one pair
    return div(f"{_PAIRS};gap:0 8px" if beside else "", *drawn)


def _cards(ranks: Sequence[Card], snapshot: Snapshot) -> str:
    """Cards in pairs, so that four stand four in a row or two by two, never three and one."""
    cards = [_card(card, snapshot) for card in ranks]
    pair = "display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:8px"
    pairs = [div(pair, *cards[start : start + 2]) for start in range(0, len(cards), 2)]
    return div(f"margin-top:8px;{_PAIRS};gap:8px", *pairs) if pairs else ""


def _card(card: Card, snapshot: Snapshot) -> str:
    sign = PHASES[card.phase]
    host = card.host if len(snapshot.hosts) > 1 else ""
    where = " · ".join(escaped(one, 60) for one in (card.device, host) if one)
    style = f"border:1px solid {EDGE};border-top:3px solid {sign.colour};border-radius:5px"
    return div(
        f"{style};padding:5px 10px 7px;min-width:0;overflow:hidden",
        div(
            _APART,
            f"<b>{facts.name(card, snapshot)}</b> ",
            mark(sign.glyph, card.phase, sign.colour),
        ),
        div(
            f"{_APART};flex-wrap:wrap;font-size:12px",
            faint(where),
            f" {facts.when(card, snapshot)}",
        ),
        *(div("", escaped(one, 160)) for one in facts.activity(card)),
        *(_fact(fact) for fact in facts.of_card(card)),
        *(_bar(bar, sign.colour) for bar in card.bars[:4]),
        _last_line(card.line) if card.line else "",
    )


def _fact(fact: facts.Fact) -> str:
    if len(fact.value) > 20:
        return div("font-size:12px", faint(fact.label), f" {code(fact.value)}")
    label = bit(f"white-space:nowrap;{FAINT}", fact.label)
    value = bit(f"{MONO};text-align:right;min-width:0", escaped(fact.value))
    return div(f"{_APART};font-size:12px", label, f" {value}")


def _last_line(line: str) -> str:
    style = (
        f"{MONO};font-size:12px;line-height:1.4;max-height:4.2em;overflow:hidden;"
        f"margin-top:4px;padding-top:3px;border-top:1px solid {EDGE}"
    )
    return f'<div style="{style}" title="{escape(facts.cut(line, 200))}">{escaped(line, 200)}</div>'


def _crowd(snapshot: Snapshot) -> str:
    """More ranks than fit on cards: tiles by phase, and a table of the ranks in trouble."""
    groups = facts.by_phase(snapshot.cards)
    summary = div(
        "display:flex;flex-wrap:wrap;gap:2px 20px",
        *(
            div("font-size:12px", faint(fact.label), f" {code(fact.value)}")
            for fact in facts.of_cards(snapshot.cards)
        ),
    )
    room, tiles = bounds.TILES, []
    for phase, cards in groups.items():
        tiles.append(_tiles(phase, cards[:room], len(cards), snapshot))
        room = max(room - len(cards), 0)
    troubled = [card for phase, cards in groups.items() if phase in TROUBLED for card in cards]
    title = several(len(snapshot.cards), snapshot.unit)
    return section(title, summary, hosts.as_html(snapshot), *tiles, _table(troubled, snapshot))


def _tiles(phase: Phase, cards: Sequence[Card], number: int, snapshot: Snapshot) -> str:
    sign = PHASES[phase]
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(34px,1fr));gap:2px"
    room = bounds.TITLES // min(len(snapshot.cards), bounds.TILES)
    style = f"background:{sign.colour}3d;border-radius:2px"
    tiles = []
    for card in cards:
        tooltip = " · ".join(
            [
                f"{facts.name(card, snapshot)} {phase} {facts.when(card, snapshot)}",
                *facts.activity(card),
                card.line,
            ]
        )
        title = _title(tooltip, room)
        tiles.append(f'<span style="{style}" title="{title}">{card.rank}</span> ')
    left_out = f" (the first {len(cards)} shown)" if cards and len(cards) < number else ""
    heading = mark(sign.glyph, f"{number:,} {phase}", sign.colour) + left_out
    grid = div(f"{columns};{MONO};font-size:11px;line-height:17px;text-align:center", *tiles)
    return div("margin-top:6px", heading, grid if tiles else "")


def _title(text: str, room: int) -> str:
    """The start of the text, in at most `room` bytes as an attribute."""
    longest = min(160, room)
    while bounds.size_of(escape(facts.cut(text, longest))) > room and longest > 40:
        longest = longest * 3 // 4
    return escape(facts.cut(text, longest))


def _table(cards: Sequence[Card], snapshot: Snapshot) -> str:
    if not cards:
        return ""
    cell = "text-align:left;vertical-align:top;padding:2px 14px 2px 0"
    narrow, wide = f"{cell};white-space:nowrap", f"{cell};min-width:9em"
    head = "".join(
        f'<th style="{cell};font-weight:600">{name}</th>'
        for name in (snapshot.unit, "phase", "device", "activity", "last line")
    )
    rows = []
    listed, more = bounds.limited(cards, bounds.ROWS, "rank")
    for card in listed:
        sign = PHASES[card.phase]
        cells = (
            str(card.rank),
            f"{mark(sign.glyph, card.phase, sign.colour)} {facts.when(card, snapshot)}",
            " · ".join(escaped(one, 40) for one in (card.device, card.host) if one),
            " · ".join(escaped(one, 100) for one in facts.activity(card)),
            code(card.line, 100) if card.line else "",
        )
        styles = (narrow, narrow, wide, wide, wide)
        rows.append(
            "".join(
                f'<td style="{style}">{inner}</td>'
                for style, inner in zip(styles, cells, strict=True)
            )
        )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:10px 0 0;table-layout:auto;font-size:12px"
    table = f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return div("overflow-x:auto", table, div(f"font-size:12px;{FAINT}", more) if more else "")


def _figures(series: Sequence[Series]) -> str:
    shown, more = bounds.limited(series, bounds.FIGURES, "figure")
    drawn = [figure for one in shown if (figure := _figure(one))]
    if not drawn:
        return ""
    if more:
        drawn.append(div("", f"{more}, in the record"))
    return section("figures", div("display:flex;flex-wrap:wrap;gap:12px 20px", *drawn))


def _figure(series: Series) -> str:
    shape, lasts = chart.frame(series.lines), facts.last_values(series)
    if shape is None:
        return ""
    few = len(series.lines) <= bounds.NAMED
    colours = {rank: LINES[rank % len(LINES)] if few else BLUE for rank in series.lines}
    width, height = _CHART
    picture = base64.b64encode(chart.png(series.lines, colours, width, height)).decode()
    # The labels are spaced like the ticks: the middle of each is INSET from its edges.
    line = 2 * chart.INSET
    labels = [div("", label) for label in reversed(facts.labels(shape.ticks))]
    small = f"{MONO};font-size:11px;{FAINT}"
    axis = (
        f"display:flex;flex-direction:column;justify-content:space-between;height:{height}px;"
        f"line-height:{line}px;text-align:right;min-width:3.2em;{small}"
    )
    summary = f"{series.name}: {facts.over_ranks(lasts)}"
    image = (
        f'<img src="data:image/png;base64,{picture}" width="{width}" height="{height}" '
        f'alt="{escape(facts.cut(summary, 200))}" '
        f'style="display:block;width:100%;height:{height}px;margin:0">'
    )
    ends = [
        div("", f"step {facts.figure(shape.left)}"),
        div("", facts.figure(shape.right)),
    ]
    under = "display:flex;justify-content:space-between;line-height:14px"
    return div(
        "flex:1 1 340px;min-width:0;max-width:410px",
        div("", f"<b>{escaped(series.name, 80)}</b> ", "" if few else _small_print(lasts)),
        div(
            "display:flex;gap:6px",
            div(axis, *labels),
            div("flex:1;min-width:0", image, div(f"{under};{small}", *ends)),
        ),
        _legend(lasts, colours) if few else "",
    )


def _small_print(lasts: dict[int, float]) -> str:
    return bit(f"font-size:12px;{FAINT}", f"last {facts.over_ranks(lasts)}")


def _legend(lasts: dict[int, float], colours: dict[int, str]) -> str:
    named = (
        bit(
            "white-space:nowrap",
            bit(f"color:{colours[rank]}", "●"),
            f" rank {rank} ",
            bit(MONO, facts.figure(value)),
        )
        for rank, value in lasts.items()
    )
    return div("display:flex;flex-wrap:wrap;gap:0 8px;font-size:12px", *named)


def _output(snapshot: Snapshot, room: int) -> str:
    """Output in at most `room` bytes, of which each box takes some 250."""
    by_rank: dict[int | None, list[tuple[Excerpt, bounds.Shown]]] = {}
    streams = len(bounds.selected(snapshot))
    room = min(bounds.OUTPUT, max(room - 250 * streams, 100 * streams))
    # If there is only room for a few lines of each stream, their words matter more than colours.
    draw = colours.coloured if room > 2000 * streams else colours.uncoloured
    for excerpt, shown in bounds.excerpts(snapshot, room, draw):
        by_rank.setdefault(excerpt.rank, []).append((excerpt, shown))
    if not by_rank:
        return ""
    short = sum(map(bounds.lines_of, snapshot.excerpts)) <= 30
    folder = bounds.folder(snapshot)
    drawn = [_of_rank(rank, shown, short, folder) for rank, shown in by_rank.items()]
    drawn.append(div(FAINT, note) if (note := bounds.unshown(snapshot)) else "")
    if len(by_rank) <= bounds.CARDS:
        return section("output", *drawn)
    summary = f"{faint('<b>output</b>')} of {several(len(by_rank), 'rank')}"
    return div("margin-top:14px", details(summary, "".join(drawn), False))


def _of_rank(
    rank: int | None, shown: Sequence[tuple[Excerpt, bounds.Shown]], opened: bool, folder: str
) -> str:
    """The streams of one rank; boxes are small if paths are relative to a folder."""
    counts = ", ".join(bounds.counted(excerpt) for excerpt, _ in shown)
    boxes = []
    for excerpt, lines in shown:
        boxes.append("<div>stderr</div>" if excerpt.stream == "err" else "")
        edge = ERR if excerpt.stream == "err" else EDGE
        gap_line = gap(bounds.gap_text(lines, excerpt, folder))
        boxes.append(pre(lines.lines(gap_line), edge, bool(folder)))
    return details(f"{bounds.source(rank)} {faint(f'· {counts}')}", "".join(boxes), opened)
