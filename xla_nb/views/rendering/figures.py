"""Charts of what ranks reported, in saved HTML: a picture with its scale, and the last values."""

from __future__ import annotations

import bisect
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from operator import itemgetter
from typing import Any

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, chart
from xla_nb.views.rendering.style import AMBER, BLUE, FAINT, LINES, MONO
from xla_nb.views.rendering.tags import WHOLE, bit, div, escaped, swatch
from xla_nb.views.snapshot import Series

_WIDTH, _HEIGHT = 380, 108
#: Up to so many ranks have a line each; the lines of more are their mean and a band.
LINED = 2


@dataclass(frozen=True)
class Figure:
    """What one chart shows. `notes`: what its lines are, the last values that no legend has, and
    where one became no finite number. `legend` names its lines, with their last values; `steps` are
    the first and the last one that was reported, whatever the values there."""

    name: str
    notes: tuple[str, str, str]
    summary: str
    lines: chart.Lines
    colours: Mapping[int, str]
    band: chart.Band
    legend: Mapping[int, tuple[str, str]]
    marks: Sequence[float]
    steps: Sequence[float]


def as_html(series: Sequence[Series]) -> str:
    """The charts beside each other, where there is room."""
    shown, more = bounds.limited(series, bounds.FIGURES, "figure")
    if not shown:
        return ""
    charts = [_chart(of_series(one)) for one in shown]
    charts += [div("", f"{more}, in the record")] if more else []
    return div("display:flex;flex-wrap:wrap;gap:8px 24px", *charts)


def of_series(series: Series) -> Figure:
    lasts = facts.last_values(series)
    over = facts.over_ranks(lasts)
    turned = odd(series)
    marks = sorted({step for turns in series.odd.values() for step, _ in turns})
    summary = f"{series.name}: {_joined(over, turned)}"
    every = [x for line in series.lines.values() for x, _ in line if chart.drawable((x, 0.0))]
    steps = (min(every), max(every)) if every else ()
    if len(series.lines) > LINED:
        mean, band = over_ranks(series.lines, series.thinned)
        ends = {line[-1][0] for line in series.lines.values() if line}
        last = "last" if len(ends) == 1 else "last of each"
        notes = "mean and range", f"{last} {over}", turned
        return Figure(series.name, notes, summary, {0: mean}, {0: BLUE}, band, {}, marks, steps)
    colours = {rank: LINES[rank % len(LINES)] for rank in series.lines}
    legend = {rank: (f"rank {rank}", facts.figure(value)) for rank, value in lasts.items()}
    notes = "", "", turned
    return Figure(series.name, notes, summary, series.lines, colours, (), legend, marks, steps)


def _joined(*texts: str) -> str:
    """Those that say something."""
    return "; ".join(filter(None, texts))


def as_news(series: Series, focus: int | None = None) -> dict[str, Any]:
    """What the page draws of a figure (panel.js): lines, each with its name, its rank (None: of all
    ranks), its points and its last value; of more than LINED ranks their highest and lowest values,
    their mean, and the line of the rank in `focus`."""
    figure, lasts = of_series(series), facts.last_values(series)
    what, _, turned = figure.notes
    many = len(series.lines) > LINED
    lines = [
        _line(f"rank {rank}", rank, series.lines[rank], facts.figure(last))
        for rank, last in lasts.items()
        if not many or rank == focus
    ]
    if many:
        high, low = ([(x, ends[side]) for x, *ends in figure.band] for side in (1, 0))
        of_all = {"max": high, "min": low, "mean": figure.lines[0]}
        lines = [*(_line(name, None, points) for name, points in of_all.items()), *lines]
    return {
        "name": facts.cut(figure.name, 300),
        "note": facts.cut(_joined(what, turned), 300),
        "summary": facts.cut(figure.summary, 600),
        "steps": figure.steps,
        "marks": figure.marks,
        "lines": lines,
    }


def _line(
    name: str, rank: int | None, points: Sequence[chart.Point], last: str = ""
) -> dict[str, Any]:
    """In the order of steps, of which the last value counts; None for what cannot be drawn."""
    placed = (point for point in points if chart.drawable((point[0], 0.0)))
    ordered = dict(sorted(placed, key=itemgetter(0)))
    ys = [float(f"{y:.7g}") if chart.drawable((0.0, y)) else None for y in ordered.values()]
    return {"name": name, "rank": rank, "x": list(ordered), "y": ys, "last": last}


def odd(series: Series) -> str:
    """From where a figure was no finite number: `NaN from step 30 (rank 2)`, or is none since."""
    places: dict[tuple[float, str], list[int]] = {}
    for rank, turns in series.odd.items():
        line = series.lines.get(rank, [])
        lasts = bool(line) and not math.isfinite(line[-1][1])
        for place in turns:
            since = "since" if lasts and place == turns[-1] else "from"
            step, kinds = place
            what = wording.listed(kinds, "or")
            places.setdefault((step, f"{what} {since}"), []).append(rank)
    told = [
        f"{what} step {facts.figure(step)} ({wording.ranks(ranks)})"
        for (step, what), ranks in sorted(places.items())
    ]
    return wording.listed(told, most=2) if told else ""


def _chart(figure: Figure) -> str:
    shape = chart.frame(figure.lines, figure.band)
    if shape is not None:  # a step without a finite number may lie beyond the last one with one
        left, right = min([shape.left, *figure.steps]), max([shape.right, *figure.steps])
        shape = replace(shape, left=left, right=right)
    if shape is None and not figure.legend:
        return div("flex:1 1 100%", escaped(figure.summary, 200))
    drawing = "" if shape is None else _drawing(figure, shape)
    note = bit(f"font-size:12px;{FAINT}", escaped(told)) if (told := _joined(*figure.notes)) else ""
    return (
        # Drawings beside each other begin at one height, though a caption is longer than another.
        f'<figure style="display:flex;flex-direction:column;flex:1 1 320px;min-width:0;'
        f'max-width:440px;margin:0;{WHOLE}">'
        f'<figcaption style="flex:1;text-align:left;margin:0;font-style:normal">'
        f"<b>{escaped(figure.name, 80)}</b> {note}</figcaption>"
        + drawing
        + _legend(figure)
        + "</figure>"
    )


def _drawing(figure: Figure, shape: chart.Frame) -> str:
    """The lines with their scales."""
    marks = {-1 - n: [(x, shape.low), (x, shape.high)] for n, x in enumerate(figure.marks)}
    colours = dict(figure.colours) | dict.fromkeys(marks, AMBER)
    picture = chart.svg({**figure.lines, **marks}, colours, _WIDTH, _HEIGHT, figure.band, shape)
    # The labels are spaced like the ticks: the middle of each is INSET from its edges.
    labels = [div("", label) for label in reversed(facts.labels(shape.ticks))]
    small = f"{MONO};font-size:12px;{FAINT}"
    axis = (
        f"display:flex;flex-direction:column;justify-content:space-between;height:{_HEIGHT}px;"
        f"line-height:{2 * chart.INSET}px;text-align:right;min-width:3.2em;{small}"
    )
    image = (
        f'<img src="{chart.address(picture)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'alt="{escape(_spoken(figure, shape))}" '
        f'style="display:block;width:100%;height:{_HEIGHT}px;margin:0;max-width:none">'
    )
    ends = [div("", f"step {facts.figure(shape.left)}"), div("", facts.figure(shape.right))]
    under = f"display:flex;justify-content:space-between;line-height:16px;{small}"
    return div(
        "display:flex;gap:6px",
        div(axis, *labels),
        div("flex:1;min-width:0", image, div(under, *ends)),
    )


def _spoken(figure: Figure, shape: chart.Frame) -> str:
    """The chart in words, for who cannot see it."""
    low, *_, high = facts.labels(shape.ticks)
    steps = f"steps {facts.figure(shape.left)} to {facts.figure(shape.right)}"
    return f"Chart. {facts.cut(figure.summary, 200)}. From {low} to {high} over {steps}."


def _legend(figure: Figure) -> str:
    named = (
        bit(
            "white-space:nowrap",
            swatch(figure.colours[number]),
            f" {escaped(name, 40)} ",
            bit(MONO, escaped(value, 60)),
        )
        for number, (name, value) in figure.legend.items()
    )
    style = "display:flex;flex-wrap:wrap;gap:0 12px;font-size:12px"
    return div(style, *named) if figure.legend else ""


_MOST = 400  # points of a mean


def over_ranks(
    lines: chart.Lines, thinned: Container[int] = ()
) -> tuple[list[chart.Point], list[tuple[float, float, float]]]:
    """The mean of all finite values, points (x, y), and its band, points (x, lowest, highest).

    A rank counts where it has a point, and one of those `thinned` between two points from which
    others were left out, on a straight line: these are at most twice as far apart as is usual for
    it. Where others count than before, the mean of fewer is no fall of it: it has a gap there; and
    it ends before lone last points of those that are ahead."""
    places = {
        rank: sorted(point for point in line if chart.drawable((point[0], 0.0)))
        for rank, line in lines.items()
    }
    each = {rank: tuple(zip(*points, strict=True)) for rank, points in places.items() if points}
    every = sorted({x for xs, _ in each.values() for x in xs})
    stride = math.ceil(len(every) / _MOST) or 1
    pieces: list[tuple[set[int], list[tuple[float, list[float]]]]] = []
    for x in sorted({*every[::stride], *every[-1:]}):
        found = {rank: _value(xs, ys, x, rank in thinned) for rank, (xs, ys) in each.items()}
        values = {rank: y for rank, y in found.items() if y is not None and chart.drawable((x, y))}
        if not pieces or pieces[-1][0] != values.keys():
            pieces.append((set(values), []))
        pieces[-1][1].append((x, list(values.values())))
    pieces = [piece for piece in pieces if piece[0]]
    while len(pieces) > 1 and len(pieces[-1][1]) == 1 and pieces[-1][0] < pieces[-2][0]:
        pieces.pop()
    mean: list[chart.Point] = []
    band: list[tuple[float, float, float]] = []
    for _, points in pieces:
        if mean:
            between = (mean[-1][0] + points[0][0]) / 2
            mean.append((between, math.nan))
            band.append((between, math.nan, math.nan))
        mean += [(x, math.fsum(ys) / len(ys)) for x, ys in points]
        band += [(x, min(ys), max(ys)) for x, ys in points]
    return mean, band


def _value(xs: Sequence[float], ys: Sequence[float], x: float, thinned: bool) -> float | None:
    """The value of a line at x; None outside it, and in a gap."""
    if not xs[0] <= x <= xs[-1]:
        return None
    right = bisect.bisect_left(xs, x)
    if xs[right] == x:
        return ys[right]
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    if not thinned or x1 - x0 > 2 * (xs[-1] - xs[0]) / (len(xs) - 1):
        return None
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
