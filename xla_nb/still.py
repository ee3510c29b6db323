"""A run as it stays in the notebook: HTML that needs no style sheet and no script, and text.

The rule: it reads right with no kernel, trusted or not, light or dark. So styles are inline and of
the kinds that JupyterLab leaves in an untrusted notebook (its own pattern for each property; no
`var()`, no `unicode-bidi`, hence <bdi>); colours are the page's own or mid-tones that stand out
from white and from black, and always beside a word. What comes from ranks is `ansi.clean`ed and
escaped, and bounded: the record has the rest.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from xla_nb import ansi, chart
from xla_nb.glance import Bar, Card, Excerpt, Glance, Phase, Series, Trouble

#: Bytes of the whole as HTML; what output may take of them, if the rest leaves it, and in text;
#: what tracebacks and the tiles' titles may take.
LARGEST, OUTPUT, TEXT, TRACEBACKS, TITLES = 380_000, 150_000, 60_000, 40_000, 25_000
#: Ranks that get a card; those named beside a chart; tiles; rows of the table and lines of the
#: text for ranks beyond the cards; groups of errors; figures; streams.
CARDS, NAMED, TILES, ROWS, GROUPS, FIGURES, STREAMS = 16, 8, 1024, 24, 8, 12, 512
_LONGEST = 2000  # characters shown of one line
_WIDTH = 100  # columns of our own sentences in text
_CHART = (350, 96)

_SANS = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace"
_FAINT = "opacity:.72"
_EDGE = "#80808052"
_BLUE, _GREEN, _RED, _AMBER, _GREY = "#3b82d0", "#2f8f57", "#dc4c44", "#a8741a", "#7c7c7c"
_ERR = "#c9622c"
#: Of the first ranks, in the hues of the live panel.
_LINES = (
    "#4081d2",
    "#c26030",
    "#319751",
    "#a960ae",
    "#0096a8",
    "#ab7400",
    "#806fcd",
    "#c55865",
)


@dataclass(frozen=True)
class _Look:
    glyph: str
    colour: str


#: Every phase, those that want attention first.
PHASES: dict[Phase, _Look] = {
    "failed": _Look("✗", _RED),
    "killed": _Look("†", "#c4407f"),
    "stopped": _Look("■", _GREY),
    "waiting": _Look("◔", _AMBER),
    "compiling": _Look("◍", "#8a63d2"),
    "starting": _Look("◌", _GREY),
    "running": _Look("●", _BLUE),
    "finished": _Look("✓", _GREEN),
}
_TROUBLED = ("failed", "killed", "stopped", "waiting")
_ENDED = ("failed", "killed", "stopped", "finished")


def html(glance: Glance) -> str:
    """The run as HTML, at most some 400 kB for up to 256 ranks."""
    state = _state(glance)
    above = [
        _header(glance, state),
        *(_notice(text) for text in glance.notices[:20]),
        _troubles(glance.troubles),
        _bar(glance.bar, state.colour) if glance.bar else "",
        _cards(glance) if len(glance.cards) <= CARDS else _crowd(glance),
        _figures(glance.series),
    ]
    output = _output(glance, LARGEST - sum(map(_size, above)))
    record = _div(f"margin-top:10px;font-size:12px;{_FAINT}", "record: ", _code(glance.record, 400))
    style = (
        f"{_SANS};font-size:13px;line-height:1.5;overflow-wrap:break-word;padding:10px 14px;"
        f"margin:4px 0;border:1px solid {_EDGE};border-left:4px solid {state.colour};"
        "border-radius:6px"
    )
    return f'<div dir="ltr" style="{style}">{"".join([*above, output, record])}</div>'


# --- what is said, in HTML and in text ---------------------------------------------------------


@dataclass(frozen=True)
class _State:
    glyph: str
    word: str
    colour: str


def _state(glance: Glance) -> _State:
    if glance.ok is None:
        word = "stopping" if glance.stopping else "running"
        return _State("●", word, _BLUE)
    phase: Phase = "finished" if glance.ok else "failed"
    if not glance.ok and glance.stopping and not glance.troubles:
        phase = "stopped"
    return _State(PHASES[phase].glyph, phase, PHASES[phase].colour)


def _about(glance: Glance) -> list[str]:
    """The small print below the headline."""
    said = ["simulated TPU host"] if glance.simulated else []
    said += [glance.host] if glance.host else []
    if glance.ok is None:
        said += [f"stopping: {glance.stopping}"] if glance.stopping else []
        said += [
            f"as of {_clock(glance.now)} (refreshed every 10 s while the notebook's kernel lives)"
        ]
    elif glance.started is not None:
        said += [f"started {_clock(glance.started)}"]
    return said


def _clock(epoch: float) -> str:
    """Local time, to the second, with the day: it may be read much later."""
    try:
        return datetime.fromtimestamp(epoch).strftime("%H:%M:%S on %Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def _span(seconds: float) -> str:
    """How long, in two units at most."""
    if not 0 <= seconds < 1e9:
        return "0 s" if seconds < 0 else "?"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def _memory(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit != "GiB" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _used(used: int, limit: int | None) -> str:
    """`3.2 of 16.0 GiB`."""
    if not limit:
        return _memory(used)
    number, unit = _memory(used).split()
    return f"{number if _memory(limit).endswith(unit) else _memory(used)} of {_memory(limit)}"


def _value(number: float) -> str:
    """A figure: whole numbers with commas, others with four digits."""
    if math.isfinite(number) and number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    return f"{number:.4g}"


def _labels(ticks: Sequence[float]) -> list[str]:
    """With as many digits as it takes to tell the ticks apart."""
    said = [_value(tick) for tick in ticks]
    for digits in range(5, 18):
        if len(set(said)) == len(ticks):
            break
        said = [f"{tick:.{digits}g}" for tick in ticks]
    return said


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _ranks(numbers: Iterable[int], most: int = 12) -> str:
    """`rank 3`, or `ranks 0-3, 7`."""
    ordered = sorted(set(numbers))
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    said = [f"{s[0]}-{s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans[:most]]
    if spans[most:]:
        said.append(f"and {sum(map(len, spans[most:]))} more")
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(said)}"


def _when(card: Card, glance: Glance) -> str:
    """How long it has been in its phase; for an ended rank, how long it took to get there."""
    if card.since is None:
        return ""
    if card.phase in _ENDED:
        return f"after {_span(card.since - glance.started)}" if glance.started is not None else ""
    return f"for {_span(max(glance.now - card.since, 0.0))}"


def _facts(card: Card) -> list[tuple[str, str]]:
    """What is known of a rank, name and value; what is not known is not said."""
    said = [("pid", str(card.pid))] if card.pid is not None else []
    if card.rss is not None:
        said.append(("memory", _memory(card.rss)))
    if card.device_used is not None:
        said.append(("on device", _used(card.device_used, card.device_limit)))
    if card.cpu is not None:
        said.append(("CPU", f"{card.cpu:.0%}".replace("%", " %")))
    if card.compiles:
        said.append(("compiles", f"{card.compiles:,} in {_span(card.compile_seconds)}"))
    if card.steps:
        said.append(("steps", f"{card.steps:,}"))
    if card.fallbacks:
        said.append(("ran on the CPU", _fallbacks([card])))
    return said


def _fallbacks(cards: Iterable[Card], most: int = 4) -> str:
    """`aten::nonzero 12, aten::unique 3`: the most frequent."""
    counts: dict[str, int] = {}
    for card in cards:
        for name, number in card.fallbacks.items():
            counts[name] = counts.get(name, 0) + number
    named = sorted(counts.items(), key=lambda item: -item[1])
    said = [f"{_cut(name, 60)} {number:,}" for name, number in named[:most]]
    return ", ".join([*said, f"{len(named) - most} more"] if named[most:] else said)


def _over_all(cards: Sequence[Card]) -> list[tuple[str, str]]:
    """The same for many ranks: least and most of any of them."""
    said = []
    for name, numbers, show in (
        ("memory", [card.rss for card in cards], _memory),
        ("on device", [card.device_used for card in cards], _memory),
        ("CPU", [card.cpu for card in cards], lambda share: f"{share * 100:.0f} %"),
        ("compiles", [card.compiles or None for card in cards], _value),
        ("compile time", [card.compile_seconds or None for card in cards], _span),
        ("steps", [card.steps or None for card in cards], _value),
    ):
        known = [number for number in numbers if number is not None]
        if known:
            said.append((name, _from_to(show(min(known)), show(max(known)))))
    if any(card.fallbacks for card in cards):
        said.append(("ran on the CPU", _fallbacks(cards)))
    return said


def _from_to(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _progress(bar: Bar) -> list[str]:
    """`62 %`, `620 of 1,000`, `12.3/s`, `31 s to go`."""
    said = [f"{_value(bar.done)} done"]
    if bar.total:
        said = [f"{100 * _share(bar):.0f} %", f"{_value(bar.done)} of {_value(bar.total)}"]
    if bar.rate is not None:
        said.append(f"{bar.rate:.3g}/s" if bar.rate < 1000 else f"{bar.rate:,.0f}/s")
    if bar.eta:
        said.append(f"{f'{bar.eta:.0f} s' if 0 <= bar.eta < 59.5 else _span(bar.eta)} to go")
    return said


def _share(bar: Bar) -> float:
    share = bar.done / bar.total if bar.total else 0.0
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _by_phase(cards: Iterable[Card]) -> dict[Phase, list[Card]]:
    """Ranks by phase, the phases that want attention first."""
    found: dict[Phase, list[Card]] = {phase: [] for phase in PHASES}
    for card in sorted(cards, key=lambda card: card.rank):
        found[card.phase].append(card)
    return {phase: alike for phase, alike in found.items() if alike}


def _what(card: Card) -> list[str]:
    """Where it is and what it does there."""
    return [text for text in (card.place, card.detail) if text]


def _first(trouble: Trouble) -> str:
    """Who failed first, where that is not plain from the ranks."""
    if not trouble.first:
        return ""
    return "the first to fail" if len(trouble.ranks) == 1 else f"rank {trouble.ranks[0]} first"


def _lasts(series: Series) -> dict[int, float]:
    """The last value of each rank."""
    return {rank: points[-1][1] for rank, points in sorted(series.lines.items()) if points}


def _over_ranks(lasts: dict[int, float]) -> str:
    finite = [value for value in lasts.values() if math.isfinite(value)]
    if not finite:
        return f"no finite value in {_count(len(lasts), 'rank')}"
    said = _from_to(_value(min(finite)), _value(max(finite)))
    more = f", {len(lasts) - len(finite)} not finite" if len(finite) < len(lasts) else ""
    middle = _value(statistics.median(finite))
    return f"{said} over {_count(len(lasts), 'rank')}, median {middle}{more}"


# --- bounds ------------------------------------------------------------------------------------

#: Makes of a line, and of how many of its characters may be shown, what is written.
_Draw = Callable[[str, int], str]


@dataclass(frozen=True)
class _Shown:
    """Lines of a text: its first, how many were left out, its last."""

    head: list[str]
    left_out: int
    tail: list[str]

    @property
    def size(self) -> int:
        return sum(map(_size, self.head)) + sum(map(_size, self.tail))


def _shown(
    head: Sequence[str], left_out: int, tail: Sequence[str], room: int, draw: _Draw
) -> _Shown:
    """As many lines of the head's beginning and the tail's end as `room` bytes take."""
    if not left_out:
        every = [*head, *tail]
        head, tail = every[: len(every) // 2], every[len(every) // 2 :]
    longest = max(80, min(_LONGEST, room // 4))
    backwards = tail[::-1]
    first = _within(head, room // 2, longest, draw)
    last = _within(backwards, room - sum(map(_size, first)), longest, draw)
    if len(first) < len(head):
        first = _within(head, room - sum(map(_size, last)), longest, draw)
    missing = len(head) + len(tail) - len(first) - len(last)
    return _Shown(first, left_out + missing, last[::-1])


def _within(lines: Iterable[str], room: int, longest: int, draw: _Draw) -> list[str]:
    drawn: list[str] = []
    for line in lines:
        said = draw(line, longest)
        while not drawn and _size(said) > room and longest > 20:  # better short than none
            longest //= 2
            said = draw(line, longest)
        room -= _size(said)
        if room < 0:
            break
        drawn.append(said)
    return drawn


def _excerpts(glance: Glance, room: int, draw: _Draw) -> list[tuple[Excerpt, _Shown]]:
    """All output within `room` bytes: what the short ones do not need, the long ones get."""
    chosen = _chosen(glance)

    def show(excerpt: Excerpt, room: int) -> _Shown:
        return _shown(excerpt.head, excerpt.left_out, excerpt.tail, room, draw)

    most = min(room, 4 * room // max(len(chosen), 1))
    first = [show(excerpt, most) for excerpt in chosen]
    level = _level([shown.size for shown in first], room)
    return [
        (excerpt, shown if shown.size <= level else show(excerpt, level))
        for excerpt, shown in zip(chosen, first, strict=True)
    ]


def _chosen(glance: Glance) -> list[Excerpt]:
    """The streams that are shown, in the order of ranks; the job's and those of ranks in trouble
    first, should there be too many."""
    urgency = {phase: number for number, phase in enumerate(PHASES)}
    phases = {card.rank: urgency[card.phase] for card in glance.cards}

    def rank(excerpt: Excerpt) -> int:
        return -1 if excerpt.rank is None else excerpt.rank

    found = [excerpt for excerpt in glance.excerpts if _lines(excerpt)]
    found.sort(key=lambda excerpt: (phases.get(rank(excerpt), -1), rank(excerpt)))
    return sorted(found[:STREAMS], key=rank)


def _level(sizes: Iterable[int], room: int) -> int:
    """The bound on each that lets all of them fit: water finding its level."""
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        if size * (len(ordered) - number) > room:
            return room // (len(ordered) - number)
        room -= size
    return max(ordered, default=0)


def _size(text: str) -> int:
    """In bytes, with the line's end."""
    return 1 + (len(text) if text.isascii() else len(text.encode()))


def _cut(text: str, longest: int) -> str:
    """Plain text in one line, its end left out when it is long."""
    said = ansi.plain(text[: 4 * longest]).replace("\n", " ")
    return said if len(said) <= longest and len(text) <= 4 * longest else f"{said[:longest]}…"


def _more(characters: int) -> str:
    return f" … {characters:,} more characters"


def _plain_line(line: str, longest: int) -> str:
    said = ansi.plain(line[:longest])
    return said + _more(len(line) - longest) if len(line) > longest else said


def _left_out(excerpt: Excerpt, shown: _Shown, within: str = "") -> str:
    """`within`: the folder that the reader knows the file to be in."""
    path = _cut(excerpt.path.removeprefix(f"{within}/") if within else excerpt.path, 400)
    return f"… {_count(shown.left_out, 'line')} left out, in {path}"


# --- HTML --------------------------------------------------------------------------------------


def _div(style: str, *inner: str) -> str:
    return f"<div{_styled(style)}>{''.join(inner)}</div>"


def _bit(style: str, *inner: str) -> str:
    return f"<span{_styled(style)}>{''.join(inner)}</span>"


def _styled(style: str) -> str:
    return f' style="{style}"' if style else ""


def _text(text: str, longest: int = 300) -> str:
    """Words from anywhere, in one line, apart from the direction of what surrounds them."""
    return f"<bdi>{escape(_cut(text, longest))}</bdi>"


def _code(text: str, longest: int = 300) -> str:
    return _bit(f"{_MONO};font-size:12px", _text(text, longest))


def _mark(glyph: str, word: str, colour: str) -> str:
    return _bit(f"color:{colour};font-weight:600;white-space:nowrap", f"{glyph} {word}")


def _faint(*inner: str) -> str:
    return _bit(_FAINT, *inner)


#: The first of a row to the left, the last to the right.
_APART = "display:flex;justify-content:space-between;align-items:baseline;gap:0 8px"


def _section(title: str, *inner: str) -> str:
    heading = _div(f"margin:14px 0 5px;font-size:12px;font-weight:600;{_FAINT}", title)
    return heading + "".join(inner)


def _pre(lines: Iterable[str], edge: str, small: bool = False) -> str:
    """A box that scrolls by itself; long lines wrap in it. Small ones are for hundreds of boxes."""
    style = f"white-space:pre-wrap;border-left:3px solid {edge}"
    if small:
        style += ";margin:0;padding-left:8px"
    else:
        style += (
            ";font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;word-break:normal;overflow:auto;"
            "max-height:30em;margin:4px 0 8px;padding:6px 10px;background:#80808014"
        )
    return f'<pre style="{style}">{chr(10).join(lines)}</pre>'


def _details(summary: str, inner: str, opened: bool) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inner}</details>"


def _header(glance: Glance, state: _State) -> str:
    about = " · ".join(_text(said, 200) for said in _about(glance))
    return "".join(
        [
            _div(
                f"{_APART};font-size:14px",
                _bit(
                    "min-width:0",
                    _mark(state.glyph, state.word, state.colour),
                    f"&nbsp; <b>{_text(glance.cell, 80)}</b> ",
                ),
                _bit(f"{_MONO};font-size:12px;white-space:nowrap", _span(glance.elapsed)),
            ),
            _div("font-size:14px", _text(glance.headline, 600)),
            _div(f"font-size:12px;{_FAINT}", about),
        ]
    )


def _notice(text: str) -> str:
    style = f"margin-top:6px;padding:3px 10px;border-left:3px solid {_AMBER};background:{_AMBER}1a"
    return _div(style, f"<b>note</b> {_text(text, 600)}")


def _troubles(troubles: Sequence[Trouble]) -> str:
    if not troubles:
        return ""
    room = TRACEBACKS // min(len(troubles), GROUPS)
    told = [_trouble(one, room, not number) for number, one in enumerate(troubles[:GROUPS])]
    if more := troubles[GROUPS:]:
        ranks = _ranks(rank for trouble in more for rank in trouble.ranks)
        told.append(_div("", f"and {_count(len(more), 'other error')}, in {ranks}"))
    return _section("what went wrong", *told)


def _trouble(trouble: Trouble, room: int, opened: bool) -> str:
    first = _first(trouble)
    summary = " ".join(
        [
            _mark(PHASES["failed"].glyph, _ranks(trouble.ranks), _RED),
            _faint(f"({first})") if first else "",
            f"<b>{_text(trouble.title)}</b>",
            f"{_faint('at')} {_text(trouble.place)}" if trouble.place else "",
        ]
    )
    lines = trouble.text.split("\n") if trouble.text else []
    shown = _shown(lines, 0, (), room * 3 // 4, _line)
    gap = [_gap(f"… {_count(shown.left_out, 'line')} left out")] if shown.left_out else []
    inner = _pre([*shown.head, *gap, *shown.tail], _RED) if lines else ""
    if others := trouble.others:
        said = _within(others[:10], room // 4, max(80, room // 40), _line)
        more = len(others) - len(said)
        said += [_gap(f"… and {more} more")] if more else []
        inner += _faint("the same with other words:") + _pre(said, _RED)
    return _details(summary, inner, opened) if inner else _div("", summary)


def _bar(bar: Bar, colour: str) -> str:
    done = f"width:{100 * _share(bar):.1f}%;height:5px;border-radius:3px;background:{colour}"
    said = " · ".join(piece.replace(" ", "\xa0") for piece in _progress(bar))
    return _div(
        "margin-top:6px",
        _div(
            f"{_APART};flex-wrap:wrap",
            _bit("min-width:0", _text(bar.label or "progress", 80)),
            f" {_bit(f'{_MONO};font-size:12px', said)}",
        ),
        _div("height:5px;border-radius:3px;background:#80808038", _div(done)) if bar.total else "",
    )


def _cards(glance: Glance) -> str:
    """Cards in pairs, so that four stand four in a row or two by two, never three and one."""
    cards = [_card(card, glance) for card in sorted(glance.cards, key=lambda card: card.rank)]
    pair = "display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:8px"
    pairs = [_div(pair, *cards[start : start + 2]) for start in range(0, len(cards), 2)]
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(390px,100%),1fr))"
    return _div(f"margin-top:12px;{columns};gap:8px", *pairs) if pairs else ""


def _card(card: Card, glance: Glance) -> str:
    look = PHASES[card.phase]
    host = card.host if card.host != glance.host else ""
    where = " · ".join(_text(one, 60) for one in (card.device, host) if one)
    style = f"border:1px solid {_EDGE};border-top:3px solid {look.colour};border-radius:5px"
    return _div(
        f"{style};padding:5px 10px 7px;min-width:0;overflow:hidden",
        _div(_APART, f"<b>rank {card.rank}</b> ", _mark(look.glyph, card.phase, look.colour)),
        _div(f"{_APART};flex-wrap:wrap;font-size:12px", _faint(where), f" {_when(card, glance)}"),
        *(_div("", _text(one, 160)) for one in _what(card)),
        *(_fact(name, value) for name, value in _facts(card)),
        *(_bar(bar, look.colour) for bar in card.bars[:4]),
        _last_line(card.line) if card.line else "",
    )


def _fact(name: str, value: str) -> str:
    if len(value) > 20:
        return _div("font-size:12px", _faint(name), f" {_code(value)}")
    value = _bit(f"{_MONO};text-align:right;min-width:0", _text(value))
    return _div(f"{_APART};font-size:12px", _bit(f"white-space:nowrap;{_FAINT}", name), f" {value}")


def _last_line(line: str) -> str:
    style = (
        f"{_MONO};font-size:12px;line-height:1.4;max-height:4.2em;overflow:hidden;"
        f"margin-top:4px;padding-top:3px;border-top:1px solid {_EDGE}"
    )
    return f'<div style="{style}" title="{escape(_cut(line, 200))}">{_text(line, 200)}</div>'


def _crowd(glance: Glance) -> str:
    """More ranks than cards: a tile for each by phase, and a table of those in trouble."""
    groups = _by_phase(glance.cards)
    summary = _div(
        "display:flex;flex-wrap:wrap;gap:2px 20px",
        *(
            _div("font-size:12px", _faint(name), f" {_code(said)}")
            for name, said in _over_all(glance.cards)
        ),
    )
    room, tiles = TILES, []
    for phase, cards in groups.items():
        tiles.append(_tiles(phase, cards[:room], len(cards), glance))
        room = max(room - len(cards), 0)
    troubled = [card for phase, cards in groups.items() if phase in _TROUBLED for card in cards]
    return _section(_count(len(glance.cards), "rank"), summary, *tiles, _table(troubled, glance))


def _tiles(phase: Phase, cards: Sequence[Card], number: int, glance: Glance) -> str:
    look = PHASES[phase]
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(34px,1fr));gap:2px"
    room = TITLES // min(len(glance.cards), TILES)
    style = f"background:{look.colour}3d;border-radius:2px"
    tiles = []
    for card in cards:
        said = " · ".join(
            [f"rank {card.rank} {phase} {_when(card, glance)}", *_what(card), card.line]
        )
        title = _title(said, room)
        tiles.append(f'<span style="{style}" title="{title}">{card.rank}</span> ')
    left_out = f" (the first {len(cards)} shown)" if cards and len(cards) < number else ""
    heading = _mark(look.glyph, f"{number:,} {phase}", look.colour) + left_out
    grid = _div(f"{columns};{_MONO};font-size:11px;line-height:17px;text-align:center", *tiles)
    return _div("margin-top:6px", heading, grid if tiles else "")


def _title(text: str, room: int) -> str:
    """The beginning of the text that takes at most `room` bytes as an attribute."""
    longest = min(160, room)
    while _size(escape(_cut(text, longest))) > room and longest > 40:
        longest = longest * 3 // 4
    return escape(_cut(text, longest))


def _table(cards: Sequence[Card], glance: Glance) -> str:
    if not cards:
        return ""
    cell = "text-align:left;vertical-align:top;padding:2px 14px 2px 0"
    narrow, wide = f"{cell};white-space:nowrap", f"{cell};min-width:9em"
    head = "".join(
        f'<th style="{cell};font-weight:600">{name}</th>'
        for name in ("rank", "phase", "device", "where and what", "last line")
    )
    rows = []
    for card in cards[:ROWS]:
        look = PHASES[card.phase]
        cells = (
            str(card.rank),
            f"{_mark(look.glyph, card.phase, look.colour)} {_when(card, glance)}",
            " · ".join(_text(one, 40) for one in (card.device, card.host) if one),
            " · ".join(_text(one, 100) for one in _what(card)),
            _code(card.line, 100) if card.line else "",
        )
        styles = (narrow, narrow, wide, wide, wide)
        rows.append(
            "".join(
                f'<td style="{style}">{inner}</td>'
                for style, inner in zip(styles, cells, strict=True)
            )
        )
    more = f"… and {_count(len(cards) - ROWS, 'more rank')}" if cards[ROWS:] else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:10px 0 0;table-layout:auto;font-size:12px"
    table = f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return _div("overflow-x:auto", table, _div(f"font-size:12px;{_FAINT}", more) if more else "")


def _figures(series: Sequence[Series]) -> str:
    drawn = [figure for one in series[:FIGURES] if (figure := _figure(one))]
    if not drawn:
        return ""
    if more := series[FIGURES:]:
        drawn.append(_div("", f"and {_count(len(more), 'more figure')} in the record"))
    return _section("figures", _div("display:flex;flex-wrap:wrap;gap:12px 20px", *drawn))


def _figure(series: Series) -> str:
    shape, lasts = chart.frame(series.lines), _lasts(series)
    if shape is None:
        return ""
    few = len(series.lines) <= NAMED
    colours = {rank: _LINES[rank % len(_LINES)] if few else _BLUE for rank in series.lines}
    width, height = _CHART
    picture = base64.b64encode(chart.png(series.lines, colours, width, height)).decode()
    # Equally far apart, as the ticks are; each label's middle is INSET from its edges.
    line = 2 * chart.INSET
    labels = [_div("", label) for label in reversed(_labels(shape.ticks))]
    small = f"{_MONO};font-size:11px;{_FAINT}"
    axis = (
        f"display:flex;flex-direction:column;justify-content:space-between;height:{height}px;"
        f"line-height:{line}px;text-align:right;min-width:3.2em;{small}"
    )
    said = f"{series.name}: {_over_ranks(lasts)}"
    image = (
        f'<img src="data:image/png;base64,{picture}" width="{width}" height="{height}" '
        f'alt="{escape(_cut(said, 200))}" '
        f'style="display:block;width:100%;height:{height}px;margin:0">'
    )
    ends = [_div("", f"step {_value(shape.left)}"), _div("", _value(shape.right))]
    under = "display:flex;justify-content:space-between;line-height:14px"
    return _div(
        "flex:0 1 410px;min-width:0",
        _div("", f"<b>{_text(series.name, 80)}</b> ", "" if few else _small_print(lasts)),
        _div(
            "display:flex;gap:6px",
            _div(axis, *labels),
            _div("flex:1;min-width:0", image, _div(f"{under};{small}", *ends)),
        ),
        _legend(lasts, colours) if few else "",
    )


def _small_print(lasts: dict[int, float]) -> str:
    return _bit(f"font-size:12px;{_FAINT}", f"last {_over_ranks(lasts)}")


def _legend(lasts: dict[int, float], colours: dict[int, str]) -> str:
    named = (
        _bit(
            "white-space:nowrap",
            _bit(f"color:{colours[rank]}", "●"),
            f" rank {rank} ",
            _bit(_MONO, _value(value)),
        )
        for rank, value in lasts.items()
    )
    return _div("display:flex;flex-wrap:wrap;gap:0 8px;font-size:12px", *named)


def _output(glance: Glance, room: int) -> str:
    """Output in at most `room` bytes, of which the boxes take some 250 each."""
    by_rank: dict[int | None, list[tuple[Excerpt, _Shown]]] = {}
    streams = len(_chosen(glance))
    room = min(OUTPUT, max(room - 250 * streams, 100 * streams))
    # Where there is room for a few lines of each, words are worth more than their colours.
    draw = _line if room > 2000 * streams else _uncoloured
    for excerpt, shown in _excerpts(glance, room, draw):
        by_rank.setdefault(excerpt.rank, []).append((excerpt, shown))
    if not by_rank:
        return ""
    short = sum(map(_lines, glance.excerpts)) <= 30
    record = glance.record if len(glance.cards) > CARDS else ""
    told = [_of_rank(rank, shown, short, record) for rank, shown in by_rank.items()]
    told.append(_div(_FAINT, note) if (note := _unshown(glance)) else "")
    if len(by_rank) <= CARDS:
        return _section("output", *told)
    summary = f"{_faint('<b>output</b>')} of {_count(len(by_rank), 'rank')}"
    return _div("margin-top:14px", _details(summary, "".join(told), False))


def _unshown(glance: Glance) -> str:
    more = sum(1 for excerpt in glance.excerpts if _lines(excerpt)) - STREAMS
    return f"… and the output of {_count(more, 'more stream')}, in the record" if more > 0 else ""


def _of_rank(
    rank: int | None, shown: Sequence[tuple[Excerpt, _Shown]], opened: bool, record: str
) -> str:
    """`record` is empty but in a crowd: there, boxes are small and paths short."""
    who = "the cell" if rank is None else f"rank {rank}"
    counts = [f"{_count(_lines(one), 'line')}{_stream(one)}" for one, _ in shown]
    boxes = []
    for excerpt, lines in shown:
        gap = [_gap(_left_out(excerpt, lines, record))] if lines.left_out else []
        boxes.append("<div>stderr</div>" if excerpt.stream == "err" else "")
        edge = _ERR if excerpt.stream == "err" else _EDGE
        boxes.append(_pre([*lines.head, *gap, *lines.tail], edge, bool(record)))
    return _details(f"{who} {_faint('· ' + ', '.join(counts))}", "".join(boxes), opened)


def _stream(excerpt: Excerpt) -> str:
    return " of stderr" if excerpt.stream == "err" else ""


def _lines(excerpt: Excerpt) -> int:
    return len(excerpt.head) + excerpt.left_out + len(excerpt.tail)


def _gap(text: str) -> str:
    return f"<i>{escape(text)}</i>"


def _line(line: str, longest: int) -> str:
    """One line of output in its colours."""
    shown = line[:longest]
    # Beyond that it is a picture, or somebody who wants to fill the notebook.
    many = shown.count("\x1b") > 40
    pieces = [(ansi.Style(), ansi.plain(shown))] if many else ansi.spans(ansi.clean(shown))
    drawn = [
        _bit(css, escape(piece)) if (css := _css(style)) else escape(piece)
        for style, piece in pieces
    ]
    cut = [_gap(_more(len(line) - longest))] if len(line) > longest else []
    return "".join([*drawn, *cut])


def _uncoloured(line: str, longest: int) -> str:
    return escape(_plain_line(line, longest))


#: The terminal's sixteen as mid-tones, for letters on the page's own ground.
_SIXTEEN = (
    "#6e6e6e",
    "#dc4c44",
    "#2f8f57",
    "#a8741a",
    "#3b82d0",
    "#b5479b",
    "#0e8a8a",
    "#8a8a8a",
    "#7c7c7c",
    "#e8635c",
    "#3a9d66",
    "#b88326",
    "#5594dc",
    "#c565ad",
    "#2a9d9d",
    "#949494",
)
_ENDS = {0: (0, 0, 0), 7: (229, 229, 229), 15: (255, 255, 255)}  # where they have a ground


def _css(style: ansi.Style) -> str:
    """The look of a piece of output; colours are kept apart from any page they may stand on."""
    fg, bg = (style.bg, style.fg) if style.inverse else (style.fg, style.bg)
    rules = []
    if bg is not None or style.inverse:
        ground = (104, 104, 104) if bg is None else _rgb(bg)
        ink = None if fg is None else _rgb(fg)
        if ink is None or abs(_brightness(ink) - _brightness(ground)) < 90:
            ink = (0, 0, 0) if _brightness(ground) > 140 else (255, 255, 255)
        rules += [f"color:{_hex(ink)}", f"background:{_hex(ground)}"]
    elif fg is not None:
        rules.append(f"color:{_SIXTEEN[fg] if isinstance(fg, int) else _hex(_middle(fg))}")
    rules += ["font-weight:bold"] if style.bold else []
    rules += ["opacity:.7"] if style.dim else []
    rules += ["font-style:italic"] if style.italic else []
    lines = ["underline"] * style.underline + ["line-through"] * style.strike
    rules += [f"text-decoration:{' '.join(lines)}"] if lines else []
    return ";".join(rules)


_RGB = tuple[int, int, int]


def _rgb(colour: ansi.Colour) -> _RGB:
    if isinstance(colour, tuple):
        return colour
    if colour in _ENDS:
        return _ENDS[colour]
    red, green, blue = bytes.fromhex(_SIXTEEN[colour][1:])
    return red, green, blue


def _hex(colour: _RGB) -> str:
    return f"#{bytes(colour).hex()}"


def _brightness(colour: _RGB) -> float:
    red, green, blue = colour
    return (299 * red + 587 * green + 114 * blue) / 1000


def _middle(colour: _RGB) -> _RGB:
    """The nearest that can be read on white and on black."""
    brightness = _brightness(colour)
    if brightness > 150:
        red, green, blue = (int(part * 150 / brightness) for part in colour)
    else:
        red, green, blue = (min(255, int(part + max(0, 95 - brightness))) for part in colour)
    return red, green, blue


# --- plain text --------------------------------------------------------------------------------


def text(glance: Glance) -> str:
    """The same in plain text."""
    state = _state(glance)
    lines = [
        f"{state.glyph} {state.word}: {_cut(glance.cell, 80)}: {_cut(glance.headline, 600)} "
        f"({_span(glance.elapsed)})",
        " · ".join(_cut(said, 200) for said in _about(glance)),
        *(f"note: {_cut(notice, 600)}" for notice in glance.notices[:20]),
        *_troubles_in_text(glance.troubles),
    ]
    if glance.bar:
        lines.append(_bar_in_text(glance.bar))
    lines += _ranks_in_text(glance)
    lines += _figures_in_text(glance.series)
    lines += _output_in_text(glance)
    lines += ["", f"record: {_cut(glance.record, 400)}"]
    return "\n".join(lines)


def _troubles_in_text(troubles: Sequence[Trouble]) -> list[str]:
    room = TRACEBACKS // max(min(len(troubles), GROUPS), 1)
    lines = [line for trouble in troubles[:GROUPS] for line in _trouble_in_text(trouble, room)]
    if more := troubles[GROUPS:]:
        ranks = _ranks(rank for trouble in more for rank in trouble.ranks)
        lines.append(f"and {_count(len(more), 'other error')}, in {ranks}")
    return lines


def _trouble_in_text(trouble: Trouble, room: int) -> list[str]:
    first = f" ({_first(trouble)})" if _first(trouble) else ""
    place = f", at {_cut(trouble.place, 200)}" if trouble.place else ""
    lines = ["", f"{_ranks(trouble.ranks)}{first}: {_cut(trouble.title, 300)}{place}"]
    told = trouble.text.split("\n") if trouble.text else []
    shown = _shown(told, 0, (), room * 3 // 4, _plain_line)
    lines += shown.head
    lines += [f"… {_count(shown.left_out, 'line')} left out"] if shown.left_out else []
    lines += shown.tail
    if trouble.others:
        said = _within(trouble.others[:10], room // 4, 300, _plain_line)
        more = len(trouble.others) - len(said)
        lines += ["the same with other words:", *(f"  {other}" for other in said)]
        lines += [f"  … and {more} more"] if more else []
    return lines


def _bar_in_text(bar: Bar) -> str:
    return f"{_cut(bar.label or 'progress', 80)}: {' · '.join(_progress(bar))}"


def _ranks_in_text(glance: Glance) -> list[str]:
    groups = _by_phase(glance.cards)
    cards = [card for alike in groups.values() for card in alike]
    if not cards:
        return []
    lines = [""]
    if len(cards) > CARDS:
        lines += [
            f"{PHASES[phase].glyph} {len(alike):,} {phase}: {_ranks(card.rank for card in alike)}"
            for phase, alike in groups.items()
        ]
        lines += _filled([f"{name} {said}" for name, said in _over_all(cards)])
        cards = [card for card in cards if card.phase in _TROUBLED]
    else:
        cards = sorted(cards, key=lambda card: card.rank)
    for card in cards[:ROWS]:
        lines += _card_in_text(card, glance)
    if cards[ROWS:]:
        lines.append(f"… and {_count(len(cards) - ROWS, 'more rank')}")
    return lines


def _card_in_text(card: Card, glance: Glance) -> list[str]:
    where = " ".join(_cut(one, 60) for one in (card.device, card.host) if one)
    first = f"rank {card.rank}: {PHASES[card.phase].glyph} {card.phase} {_when(card, glance)}"
    said = [where] if where else []
    said += [_cut(one, 200) for one in _what(card)]
    said += [f"{name} {value}" for name, value in _facts(card)]
    said += [_bar_in_text(bar) for bar in card.bars[:4]]
    said += [f"last line: {_cut(card.line, 200)}"] if card.line else []
    return _filled([first.rstrip(), *said])


def _filled(said: Sequence[str]) -> list[str]:
    """One after the other, in lines of _WIDTH columns where that can be."""
    lines = list(said[:1])
    for one in said[1:]:
        if len(lines[-1]) + len(one) + 2 <= _WIDTH:
            lines[-1] += f", {one}"
        else:
            lines.append(f"  {one}")
    return lines


def _figures_in_text(series: Sequence[Series]) -> list[str]:
    lines = []
    for one in series[:FIGURES]:
        lasts = _lasts(one)
        if 0 < len(lasts) <= NAMED:
            said = ", ".join(f"rank {rank} {_value(value)}" for rank, value in lasts.items())
        else:
            said = _over_ranks(lasts)
        lines.append(f"{_cut(one.name, 80)}, last: {said}")
    lines += [f"and {_count(len(series) - FIGURES, 'more figure')}"] if series[FIGURES:] else []
    return ["", *lines] if lines else []


def _output_in_text(glance: Glance) -> list[str]:
    lines = []
    record = glance.record if len(glance.cards) > CARDS else ""
    for excerpt, shown in _excerpts(glance, TEXT, _plain_line):
        who = "the cell" if excerpt.rank is None else f"rank {excerpt.rank}"
        lines += ["", f"{who}, {_count(_lines(excerpt), 'line')}{_stream(excerpt)}:"]
        lines += shown.head
        lines += [_left_out(excerpt, shown, record)] if shown.left_out else []
        lines += shown.tail
    return [*lines, note] if (note := _unshown(glance)) else lines
