"""A run as HTML.

The rule: it reads right with no kernel, trusted or not, light or dark. So styles are inline and of
the kinds that JupyterLab leaves in an untrusted notebook (its own pattern for each property; no
`var()`, no `unicode-bidi`, hence <bdi>), and colours always stand beside a word.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, chart, colours, hosts
from xla_nb.views.saved.style import (
    AMBER,
    BLUE,
    EDGE,
    ERR,
    FAINT,
    LINES,
    MONO,
    PHASES,
    RED,
    SANS,
    TROUBLED,
)
from xla_nb.views.saved.tags import bit, code, details, div, escaped, faint, gap, mark, pre, section
from xla_nb.views.snapshot import Bar, Card, Excerpt, Phase, Series, Snapshot, Trouble
from xla_nb.wording import several

_CHART = (350, 96)


def render_html(snapshot: Snapshot) -> str:
    """The run as HTML, at most some 400 kB for up to 256 ranks."""
    state = facts.state(snapshot)
    above = [
        _header(snapshot, state),
        *(_notice(text) for text in snapshot.notices[:20]),
        _troubles(snapshot.troubles),
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


#: The first of a row to the left, the last to the right.
_APART = "display:flex;justify-content:space-between;align-items:baseline;gap:0 8px"


def _header(snapshot: Snapshot, state: facts.State) -> str:
    about = " · ".join(escaped(said, 200) for said in facts.about(snapshot))
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


def _troubles(troubles: Sequence[Trouble]) -> str:
    if not troubles:
        return ""
    room = bounds.TRACEBACKS // min(len(troubles), bounds.GROUPS)
    told = [_trouble(one, room, not number) for number, one in enumerate(troubles[: bounds.GROUPS])]
    if more := troubles[bounds.GROUPS :]:
        ranks = wording.ranks(rank for trouble in more for rank in trouble.ranks)
        told.append(div("", f"and {several(len(more), 'other error')}, in {ranks}"))
    return section("what went wrong", *told)


def _trouble(trouble: Trouble, room: int, opened: bool) -> str:
    first = facts.first(trouble)
    summary = " ".join(
        [
            mark(PHASES["failed"].glyph, wording.ranks(trouble.ranks), RED),
            faint(f"({first})") if first else "",
            f"<b>{escaped(trouble.title)}</b>",
            f"{faint('at')} {escaped(trouble.place)}" if trouble.place else "",
        ]
    )
    lines = trouble.text.split("\n") if trouble.text else []
    shown = bounds.bounded(lines, 0, (), room * 3 // 4, colours.coloured)
    left_out = [gap(f"… {several(shown.left_out, 'line')} left out")] if shown.left_out else []
    inner = pre([*shown.head, *left_out, *shown.tail], RED) if lines else ""
    if others := trouble.others:
        said = bounds.fitting(others[:10], room // 4, max(80, room // 40), colours.coloured)
        more = len(others) - len(said)
        said += [gap(f"… and {more} more")] if more else []
        inner += faint("the same with other words:") + pre(said, RED)
    return details(summary, inner, opened) if inner else div("", summary)


def _bar(bar: Bar, colour: str) -> str:
    done = f"width:{100 * facts.portion(bar):.1f}%;height:5px;border-radius:3px;background:{colour}"
    said = " · ".join(piece.replace(" ", "\xa0") for piece in facts.progress(bar))
    return div(
        "margin-top:6px",
        div(
            f"{_APART};flex-wrap:wrap",
            bit("min-width:0", escaped(bar.label or "progress", 80)),
            f" {bit(f'{MONO};font-size:12px', said)}",
        ),
        div("height:5px;border-radius:3px;background:#80808038", div(done)) if bar.total else "",
    )


_PAIRS = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(390px,100%),1fr))"


def _ranks(snapshot: Snapshot) -> str:
    """A card for each rank; where there are several hosts, below the name of its own."""
    groups = hosts.by_host(snapshot)
    if not groups:
        return _cards(sorted(snapshot.cards, key=lambda card: card.rank), snapshot)
    told = [
        div("margin-top:12px", hosts.heading(name, cards, snapshot), _cards(cards, snapshot))
        for name, cards in groups.items()
    ]
    beside = max(map(len, groups.values())) <= 2  # else each of them has more than one pair
    return div(f"{_PAIRS};gap:0 8px" if beside else "", *told)


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
        *(div("", escaped(one, 160)) for one in facts.what(card)),
        *(_fact(name, value) for name, value in facts.facts(card)),
        *(_bar(bar, sign.colour) for bar in card.bars[:4]),
        _last_line(card.line) if card.line else "",
    )


def _fact(name: str, value: str) -> str:
    if len(value) > 20:
        return div("font-size:12px", faint(name), f" {code(value)}")
    value = bit(f"{MONO};text-align:right;min-width:0", escaped(value))
    return div(f"{_APART};font-size:12px", bit(f"white-space:nowrap;{FAINT}", name), f" {value}")


def _last_line(line: str) -> str:
    style = (
        f"{MONO};font-size:12px;line-height:1.4;max-height:4.2em;overflow:hidden;"
        f"margin-top:4px;padding-top:3px;border-top:1px solid {EDGE}"
    )
    return f'<div style="{style}" title="{escape(facts.cut(line, 200))}">{escaped(line, 200)}</div>'


def _crowd(snapshot: Snapshot) -> str:
    """More ranks than cards: a tile for each by phase, and a table of those in trouble."""
    groups = facts.by_phase(snapshot.cards)
    summary = div(
        "display:flex;flex-wrap:wrap;gap:2px 20px",
        *(
            div("font-size:12px", faint(name), f" {code(said)}")
            for name, said in facts.over_all(snapshot.cards)
        ),
    )
    room, tiles = bounds.TILES, []
    for phase, cards in groups.items():
        tiles.append(_tiles(phase, cards[:room], len(cards), snapshot))
        room = max(room - len(cards), 0)
    troubled = [card for phase, cards in groups.items() if phase in TROUBLED for card in cards]
    title = several(len(snapshot.cards), snapshot.unit)
    return section(title, summary, hosts.listed(snapshot), *tiles, _table(troubled, snapshot))


def _tiles(phase: Phase, cards: Sequence[Card], number: int, snapshot: Snapshot) -> str:
    sign = PHASES[phase]
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(34px,1fr));gap:2px"
    room = bounds.TITLES // min(len(snapshot.cards), bounds.TILES)
    style = f"background:{sign.colour}3d;border-radius:2px"
    tiles = []
    for card in cards:
        said = " · ".join(
            [
                f"{facts.name(card, snapshot)} {phase} {facts.when(card, snapshot)}",
                *facts.what(card),
                card.line,
            ]
        )
        title = _title(said, room)
        tiles.append(f'<span style="{style}" title="{title}">{card.rank}</span> ')
    left_out = f" (the first {len(cards)} shown)" if cards and len(cards) < number else ""
    heading = mark(sign.glyph, f"{number:,} {phase}", sign.colour) + left_out
    grid = div(f"{columns};{MONO};font-size:11px;line-height:17px;text-align:center", *tiles)
    return div("margin-top:6px", heading, grid if tiles else "")


def _title(text: str, room: int) -> str:
    """The beginning of the text that takes at most `room` bytes as an attribute."""
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
        for name in (snapshot.unit, "phase", "device", "where and what", "last line")
    )
    rows = []
    for card in cards[: bounds.ROWS]:
        sign = PHASES[card.phase]
        cells = (
            str(card.rank),
            f"{mark(sign.glyph, card.phase, sign.colour)} {facts.when(card, snapshot)}",
            " · ".join(escaped(one, 40) for one in (card.device, card.host) if one),
            " · ".join(escaped(one, 100) for one in facts.what(card)),
            code(card.line, 100) if card.line else "",
        )
        styles = (narrow, narrow, wide, wide, wide)
        rows.append(
            "".join(
                f'<td style="{style}">{inner}</td>'
                for style, inner in zip(styles, cells, strict=True)
            )
        )
    more = f"… and {several(len(cards) - bounds.ROWS, 'more rank')}" if cards[bounds.ROWS :] else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:10px 0 0;table-layout:auto;font-size:12px"
    table = f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return div("overflow-x:auto", table, div(f"font-size:12px;{FAINT}", more) if more else "")


def _figures(series: Sequence[Series]) -> str:
    drawn = [figure for one in series[: bounds.FIGURES] if (figure := _figure(one))]
    if not drawn:
        return ""
    if more := series[bounds.FIGURES :]:
        drawn.append(div("", f"and {several(len(more), 'more figure')} in the record"))
    return section("figures", div("display:flex;flex-wrap:wrap;gap:12px 20px", *drawn))


def _figure(series: Series) -> str:
    shape, lasts = chart.frame(series.lines), facts.last_values(series)
    if shape is None:
        return ""
    few = len(series.lines) <= bounds.NAMED
    colours = {rank: LINES[rank % len(LINES)] if few else BLUE for rank in series.lines}
    width, height = _CHART
    picture = base64.b64encode(chart.png(series.lines, colours, width, height)).decode()
    # Equally far apart, as the ticks are; each label's middle is INSET from its edges.
    line = 2 * chart.INSET
    labels = [div("", label) for label in reversed(facts.labels(shape.ticks))]
    small = f"{MONO};font-size:11px;{FAINT}"
    axis = (
        f"display:flex;flex-direction:column;justify-content:space-between;height:{height}px;"
        f"line-height:{line}px;text-align:right;min-width:3.2em;{small}"
    )
    said = f"{series.name}: {facts.over_ranks(lasts)}"
    image = (
        f'<img src="data:image/png;base64,{picture}" width="{width}" height="{height}" '
        f'alt="{escape(facts.cut(said, 200))}" '
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
    """Output in at most `room` bytes, of which the boxes take some 250 each."""
    by_rank: dict[int | None, list[tuple[Excerpt, bounds.Shown]]] = {}
    streams = len(bounds.selected(snapshot))
    room = min(bounds.OUTPUT, max(room - 250 * streams, 100 * streams))
    # Where there is room for a few lines of each, words are worth more than their colours.
    draw = colours.coloured if room > 2000 * streams else colours.uncoloured
    for excerpt, shown in bounds.excerpts(snapshot, room, draw):
        by_rank.setdefault(excerpt.rank, []).append((excerpt, shown))
    if not by_rank:
        return ""
    short = sum(map(bounds.lines_of, snapshot.excerpts)) <= 30
    record = snapshot.record if len(snapshot.cards) > bounds.CARDS else ""
    told = [_of_rank(rank, shown, short, record) for rank, shown in by_rank.items()]
    told.append(div(FAINT, note) if (note := bounds.unshown(snapshot)) else "")
    if len(by_rank) <= bounds.CARDS:
        return section("output", *told)
    summary = f"{faint('<b>output</b>')} of {several(len(by_rank), 'rank')}"
    return div("margin-top:14px", details(summary, "".join(told), False))


def _of_rank(
    rank: int | None, shown: Sequence[tuple[Excerpt, bounds.Shown]], opened: bool, record: str
) -> str:
    """`record` is empty but in a crowd: there, boxes are small and paths short."""
    who = "the cell" if rank is None else f"rank {rank}"
    counts = [
        f"{several(bounds.lines_of(one), 'line')}{bounds.stream_name(one)}" for one, _ in shown
    ]
    boxes = []
    for excerpt, lines in shown:
        left_out = [gap(bounds.gap_text(excerpt, lines, record))] if lines.left_out else []
        boxes.append("<div>stderr</div>" if excerpt.stream == "err" else "")
        edge = ERR if excerpt.stream == "err" else EDGE
        boxes.append(pre([*lines.head, *left_out, *lines.tail], edge, bool(record)))
    return details(f"{who} {faint('· ' + ', '.join(counts))}", "".join(boxes), opened)
