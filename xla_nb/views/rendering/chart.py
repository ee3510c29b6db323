"""Line chart as SVG, without axis labels, which the caller sets as text.

A saved page contains it in an `<img>`, because some front ends remove drawings from HTML. It is
stretched to the available width; the widths of lines are not.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Line = Sequence[Point]

#: CSS pixels between the edge and the outermost ticks and line ends: half the line height of a tick
#: label.
INSET = 6
_GREY = "#808080"
_HUGE = 1e300  # beyond it differences overflow
_BAND_OPACITY = 0.35  # opacity of a band
_LINE_WIDTH, _DOT_WIDTH = 1.5, 4.8  # width of a line, and of an isolated point


@dataclass(frozen=True)
class Frame:
    """The range of a chart: x from `left` to `right`, y between the outermost `ticks`."""

    left: float
    right: float
    ticks: tuple[float, ...]


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Return three to six evenly spaced round numbers that enclose `low` and `high`."""
    if math.isclose(low, high, rel_tol=1e-12):  # a mean of equal numbers may differ slightly
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / 3)
    first, last = math.floor(low / step), math.ceil(high / step)
    # If floats are too coarse for the step, return only the ends.
    if last - first < 1 or first * step == (first + 1) * step:
        return low, high
    return tuple(number * step for number in range(first, last + 1))


def svg(
    lines: Sequence[tuple[str, Line]],
    width: int,
    height: int,
    shape: Frame,
    band: Sequence[Line] = (),
) -> str:
    """Draw lines, each with its colour (`#rrggbb`), in `width` by `height` CSS pixels and the frame
    `shape`. `band`: the edges of an area below the first line, in its colour.

    The background is transparent. NaN and infinity are gaps; a single point is a dot.
    """
    parts = [_grid(len(shape.ticks), width, height)]
    edges = (_pieces(edge, shape, width, height) for edge in band)
    for below, above in zip(*edges, strict=False):
        fill = f"fill='{lines[0][0]}' fill-opacity='{_BAND_OPACITY}'"
        parts.append(f"<path d='{_path([*below, *above[::-1]])}Z' {fill}/>")
    for colour, line in lines:
        pen = f"stroke='{colour}' stroke-opacity='.9'"
        for piece in _pieces(line, shape, width, height):
            is_dot = len(piece) == 1
            stroke_width = f"stroke-width='{_DOT_WIDTH if is_dot else _LINE_WIDTH}'"
            parts.append(f"<path d='{_path(piece)}{'h0' * is_dot}' {pen} {stroke_width}/>")
    return drawing("".join(parts), width, height)


def drawing(parts: str, width: int, height: int) -> str:
    """Wrap elements in a picture of `width` by `height` pixels, which may be stretched."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' preserveAspectRatio='none'>"
        "<style>path{vector-effect:non-scaling-stroke;stroke-linecap:round;stroke-linejoin:round}"
        "rect{shape-rendering:crispEdges}"
        f"path:not([fill]){{fill:none}}</style>{parts}</svg>"
    )


def address(picture: str) -> str:
    """Encode a drawing as a URL for an `<img>`."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"


def drawable(point: Point) -> bool:
    return all(abs(number) <= _HUGE for number in point)  # also False for NaN


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 1e-300 else 1e-300
    return next((power * m for m in (1, 2, 5) if power * m >= least * (1 - 1e-9)), power * 10)


def _grid(ticks: int, width: int, height: int) -> str:
    rows = (INSET + n * (height - 2 * INSET) / (ticks - 1) for n in range(ticks))
    path = "".join(f"M0 {row:.1f}H{width}" for row in rows)
    return f"<path d='{path}' stroke='{_GREY}' stroke-opacity='.28'/>"


def _pieces(line: Line, shape: Frame, width: int, height: int) -> list[list[Point]]:
    """Split a line, ordered by x, at its gaps. Returns the parts in pixels."""
    x_scale = (width - 2 * INSET) / ((shape.right - shape.left) or 1.0)
    y_scale = (height - 2 * INSET) / (shape.ticks[-1] - shape.ticks[0])
    offset = (width - 2 * INSET) / 2 if shape.left == shape.right else 0.0
    pieces: list[list[Point]] = [[]]
    for x, y in line:
        if drawable((x, y)):
            pixel = INSET + offset + (x - shape.left) * x_scale
            pieces[-1].append((pixel, height - INSET - (y - shape.ticks[0]) * y_scale))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _path(points: Line) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
