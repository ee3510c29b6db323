"""Charts of figures in saved HTML: a picture with its scale, and the last values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import Any, NamedTuple

from xla_nb import wording
from xla_nb.monitor.snapshot import Series
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, chart
from xla_nb.views.rendering.style import AMBER, FAINT, LINES, MONO
from xla_nb.views.rendering.tags import WHOLE, bit, div, escaped, swatch

_WIDTH, _HEIGHT = 380, 108
#: Up to this many ranks have a line each; more are drawn as their mean and a band.
LINED = 2


class Spread(NamedTuple):
    """Finite values of the ranks at one step: mean, maximum, minimum and number of ranks. NaN in a
    gap."""

    x: float
    mean: float
    max: float
    min: float
    ranks: int


def as_html(series: Sequence[Series]) -> str:
    """Render the charts, side by side if there is room."""
    shown, note = bounds.limited(series, bounds.FIGURES, "figure")
    if not shown:
        return ""
    max_width = 640 if len(shown) == 1 else 440  # pixels: equal widths in all rows
    charts = [_chart(of_series(figure), max_width) for figure in shown]
    charts += [div("", f"{note}, in the record")] if note else []
    return div("display:flex;flex-wrap:wrap;gap:8px 24px", *charts)


def of_series(series: Series, focus: int | None = None) -> dict[str, Any]:
    """Describe how a figure is drawn, here and by the page (panel.js).

    name, note, summary   texts; `over` has the last values that no line shows
    steps   the first and the last reported step, no matter the values there
    marks   steps where a line became non-finite
    lines   each with its name, rank (None: all ranks), colour, points and last value; for more than
            LINED ranks, the maximum, minimum and mean of all ranks (the mean with the number
            of ranks at each point) and the line of the rank in `focus`"""
    lasts = facts.last_values(series)
    values, odd_note = facts.over_ranks(lasts), odd(series)
    has_many = len(series.lines) > LINED
    steps = [x for line in series.lines.values() for x, _ in line]
    lines = [
        _line(f"rank {rank}", rank, series.lines[rank], facts.figure(value))
        for rank, value in lasts.items()
        if not has_many or rank == focus
    ]
    spread = over_ranks(series.lines) if has_many else []
    if has_many:
        lines_of_all = {
            name: _line(name, None, [(point.x, getattr(point, name)) for point in spread])
            for name in ("max", "min", "mean")
        }
        lines_of_all["mean"]["ranks"] = [point.ranks for point in spread]
        lines = [*lines_of_all.values(), *lines]
    last_steps = {line[-1][0] for line in series.lines.values() if line}
    last = "last" if len(last_steps) == 1 else "last of each"
    return {
        "name": facts.cut(series.name, 300),
        "note": facts.cut(_join("mean and range" if spread else "", odd_note), 300),
        "over": f"{last} {values}" if has_many else "",
        "summary": facts.cut(f"{series.name}: {_join(values, odd_note)}", 600),
        "steps": (min(steps), max(steps)) if steps else (),
        "marks": sorted({step for turns in series.odd.values() for step, _ in turns}),
        "lines": lines,
        "total": len(lasts),
    }


def _join(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(filter(None, texts))


def _line(name: str, rank: int | None, points: chart.Line, last: str = "") -> dict[str, Any]:
    """Build a line, ordered by step; the last value of a step counts. None where a value cannot be
    drawn."""
    ordered = dict(sorted(points, key=itemgetter(0)))
    ys = [float(f"{y:.7g}") if chart.drawable((0.0, y)) else None for y in ordered.values()]
    colour = LINES[(rank or 0) % len(LINES)]  # the page has its own for all ranks
    points_and_value = {"x": list(ordered), "y": ys, "last": last}
    return {"name": name, "rank": rank, "colour": colour, **points_and_value}


def odd(series: Series) -> str:
    """Describe where a figure became not finite: `first NaN at step 30 (rank 2)`, `NaN since step
    45 (ranks 0–3)`."""
    groups: dict[tuple[float, str], list[int]] = {}
    for rank, turns in sorted(series.odd.items()):
        now = wording.odd(series.lines[rank][-1][1])
        for turn in turns:
            step, kind = turn
            what = f"first {kind} at" if turn == turns[0] else f"{kind} again, last from"
            what = f"{kind} since" if turn == turns[-1] and kind == now else what
            groups.setdefault((step, f"{what} step {facts.figure(step)}"), []).append(rank)
    parts = [f"{text} ({wording.ranks(ranks)})" for (_, text), ranks in sorted(groups.items())]
    return wording.listed(parts, most=2) if parts else ""


def _chart(figure: Mapping[str, Any], max_width: int) -> str:
    caption = _join(figure["over"], figure["note"])
    note = bit(f"font-size:12px;{FAINT}", escaped(caption)) if caption else ""
    # Drawings side by side start at the same height, even if their captions differ in length.
    return (
        f'<figure style="display:flex;flex-direction:column;flex:1 1 320px;min-width:0;'
        f'max-width:{max_width}px;margin:0;{WHOLE}">'
        f'<figcaption style="flex:1;text-align:left;margin:0;font-style:normal">'
        f"<b>{escaped(figure['name'], 80)}</b> {note}</figcaption>"
        + _drawing(figure)
        + _legend(figure)
        + "</figure>"
    )


def _drawing(figure: Mapping[str, Any]) -> str:
    """Draw the lines with their scales; empty if no value is finite."""
    lines: list[tuple[str, chart.Line]] = []
    for line in figure["lines"]:
        ys = (math.nan if y is None else y for y in line["y"])
        lines.append((line["colour"], [*zip(line["x"], ys, strict=True)]))
    values = [y for line in figure["lines"] for y in line["y"] if y is not None]
    if not values:
        return ""
    band: Sequence[chart.Line] = ()
    if len(lines) > LINED:
        (_, high), (_, low), mean = lines
        band, lines = (low, high), [mean]
    left, right = figure["steps"]
    shape = chart.Frame(left, right, chart.ticks(min(values), max(values)))
    marks = [(AMBER, [(x, shape.ticks[0]), (x, shape.ticks[-1])]) for x in figure["marks"]]
    picture = chart.svg([*lines, *marks], _WIDTH, _HEIGHT, shape, band)
    # The labels are spaced like the ticks: the middle of each is INSET from its edges.
    labels = [div("", label) for label in reversed(facts.labels(shape.ticks))]
    small_style = f"{MONO};font-size:12px;{FAINT}"
    axis_style = (
        f"display:flex;flex-direction:column;justify-content:space-between;height:{_HEIGHT}px;"
        f"line-height:{2 * chart.INSET}px;text-align:right;min-width:3.2em;{small_style}"
    )
    image = (
        f'<img src="{chart.address(picture)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'alt="Chart. {escape(facts.cut(figure["summary"], 200))}" '
        f'style="display:block;width:100%;height:{_HEIGHT}px;margin:0;max-width:none">'
    )
    ends = [div("", f"step {facts.figure(shape.left)}"), div("", facts.figure(shape.right))]
    is_one_step = shape.left == shape.right  # drawn in the middle
    justify = "center" if is_one_step else "space-between"
    steps_style = f"display:flex;justify-content:{justify};line-height:16px;{small_style}"
    return div(
        "display:flex;gap:6px",
        div(axis_style, *labels),
        div("flex:1;min-width:0", image, div(steps_style, *ends[: 1 if is_one_step else 2])),
    )


def _legend(figure: Mapping[str, Any]) -> str:
    entries = [
        bit(
            "white-space:nowrap",
            swatch(line["colour"]),
            f" {escaped(line['name'], 40)} ",
            bit(MONO, escaped(line["last"], 60)),
        )
        for line in figure["lines"]
        if line["rank"] is not None
    ]
    style = "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px"
    return div(style, *entries) if entries else ""


_MAX_POINTS = 400  # maximum points of a mean
_FEW = 20  # one in so many points of a mean are few; a single one in a row always is


def over_ranks(lines: Mapping[int, chart.Line]) -> list[Spread]:
    """Combine the finite values of the ranks that have one, step by step.

    Where this set of ranks changes, the mean has a gap, because a mean over other ranks is not
    comparable. It ends before the last few points that only some ranks, which are ahead, have."""
    values = {
        rank: {point[0]: point[1] for point in line if chart.drawable(point)}
        for rank, line in lines.items()
    }
    steps = sorted({step for line in lines.values() for step, _ in line})
    stride = math.ceil(len(steps) / _MAX_POINTS) or 1
    pieces: list[tuple[set[int], list[Spread]]] = []
    for step in sorted({*steps[::stride], *steps[-1:]}):
        at_step = {rank: points[step] for rank, points in values.items() if step in points}
        if not pieces or pieces[-1][0] != at_step.keys():
            pieces.append((set(at_step), []))
        if ys := at_step.values():
            mean = math.fsum(ys) / len(ys)
            pieces[-1][1].append(Spread(step, mean, max(ys), min(ys), len(ys)))
    pieces = [piece for piece in pieces if piece[0]]
    most = max((len(ranks) for ranks, _ in pieces), default=0)
    room = sum(len(points) for _, points in pieces) // _FEW
    while pieces and len(pieces[-1][0]) < most and (room := room + 1 - len(pieces[-1][1])) >= 0:
        pieces.pop()
    spread: list[Spread] = []
    for _, points in pieces:
        if spread:
            between = (spread[-1].x + points[0].x) / 2
            spread.append(Spread(between, math.nan, math.nan, math.nan, 0))
        spread += points
    return spread
