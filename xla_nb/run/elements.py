"""How the elements of a tensor differ between two ranks, in numbers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from xla_nb.protocol.variables import BLOCK, Values
from xla_nb.wording import several, size


@dataclass(frozen=True)
class Difference:
    """Of the elements of a rank from those of another.

    count    how many differ; NaN differs from any number, and not from NaN
    of       how many there are
    largest  the largest difference between two numbers, `inf` where one of them is; None if none
             can be subtracted
    why      why there are no figures; the others mean nothing then
    """

    count: int = 0
    of: int = 0
    largest: float | None = None
    why: str = ""


def difference(one: Values, other: Values) -> Difference:
    why = one.why or other.why
    if why:
        return Difference(why=f"not counted: {why}")
    if one.data is None or other.data is None:
        return Difference(why=_in_blocks(one, other))
    if one.dtype != other.dtype or len(one.data) != len(other.data):
        return Difference(why="not counted: the value has changed meanwhile")
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        return Difference(why="not counted: the notebook has no NumPy")
    return _counted(
        numpy,
        numpy.frombuffer(one.data, one.dtype),
        numpy.frombuffer(other.data, other.dtype),
    )


def _in_blocks(one: Values, other: Values) -> str:
    if not one.blocks or len(one.blocks) != len(other.blocks):
        return "not counted: too large to be sent"
    count = sum(a != b for a, b in zip(one.blocks, other.blocks, strict=True))
    blocks = several(len(one.blocks), "block")
    return f"in {count:,} of {blocks} of {size(BLOCK)}; too large to be counted by element"


def _counted(numpy: Any, a: Any, b: Any) -> Difference:
    differ = a != b
    if a.dtype.kind in "fc":
        differ &= ~(numpy.isnan(a) & numpy.isnan(b))
    count = int(differ.sum())
    if a.dtype.kind not in "biufc":
        return Difference(count, a.size)
    wide = numpy.complex128 if a.dtype.kind == "c" else numpy.float64
    with numpy.errstate(all="ignore"):
        gaps = abs(a[differ].astype(wide) - b[differ].astype(wide))
    gaps = gaps[~numpy.isnan(gaps)]
    return Difference(count, a.size, float(gaps.max()) if gaps.size else None)
