"""The lines of many ranks as one: their mean, and the band from the lowest to the highest."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
_MOST = 400  # points of a mean


@dataclass(frozen=True)
class Spread:
    """`mean` has points (x, y), `band` (x, lowest, highest); `lost` are the ranks whose last value
    is NaN or infinite, of `ranks` that have one."""

    mean: list[Point]
    band: list[tuple[float, float, float]]
    lost: int = 0
    ranks: int = 0


def over_ranks(lines: Mapping[int, Sequence[Point]]) -> Spread:
    """Of all finite values. A rank counts between its first point and its last one, on straight
    lines between its points: ranks need not report at the same steps."""
    sorted_lines = [sorted(filter(_is_finite, line)) for line in lines.values()]
    each = [([x for x, _ in line], [y for _, y in line]) for line in sorted_lines if line]
    every = sorted({x for xs, _ in each for x in xs})
    stride = math.ceil(len(every) / _MOST) or 1
    at = sorted({*every[::stride], *every[-1:]})
    mean, band = [], []
    for x in at:
        values = [y for xs, ys in each if (y := _value(xs, ys, x)) is not None]
        mean.append((x, math.fsum(values) / len(values)))
        band.append((x, min(values), max(values)))
    ends = [line[-1] for line in lines.values() if line]
    return Spread(mean, band, sum(not _is_finite(end) for end in ends), len(ends))


def _value(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """The value of a line at x; None outside it."""
    if not xs[0] <= x <= xs[-1]:
        return None
    right = bisect.bisect_left(xs, x)
    if xs[right] == x:
        return ys[right]
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _is_finite(point: Point) -> bool:
    return all(abs(number) <= 1e300 for number in point)  # no NaN either
