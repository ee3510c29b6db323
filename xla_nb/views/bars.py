"""Progress bars: of loops under `xla_nb.progress`, of tqdm's lines, of all ranks together."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from xla_nb.record.sample import Loop
from xla_nb.views.snapshot import Bar
from xla_nb.wording import several

_NUMBER = r"([\d.]+)([kMGTP]?)"
_TQDM = re.compile(
    rf"^(?:(?P<label>.*?): )? *\d+%\|.*\| *(?P<done>{_NUMBER})/(?P<total>{_NUMBER})"
    r" \[[\d:]+<(?P<eta>[\d:]+|\?)(?:, *(?P<rate>[\d.]+[kMGTP]?|\?)(?P<unit>[^\],]*))?"
)


def tqdm(line: str) -> Bar | None:
    """The bar that a line in tqdm's default format (tqdm 4) draws; None for other lines."""
    match = _TQDM.match(line)
    if match is None:
        return None
    rate = None if match["rate"] in (None, "?") else _si(match["rate"])
    if rate and match["unit"].startswith("s/"):
        rate = 1 / rate
    eta = None if match["eta"] == "?" else _seconds(match["eta"])
    return Bar(match["label"] or "", _si(match["done"]), _si(match["total"]), rate, eta)


def _si(text: str) -> float:
    """`1.5k` as 1500; 0 if it is not a number."""
    scale = 1000.0 ** (" kMGTP".index(text[-1]) if text[-1:] in "kMGTP" and text else 0)
    try:
        return float(text.rstrip("kMGTP")) * scale
    except ValueError:
        return 0.0


def _seconds(clock: str) -> float:
    """`1:02:03` in seconds."""
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return float(seconds)


def bar(loop: Loop) -> Bar:
    """The bar of a loop under `xla_nb.progress`."""
    left = None if loop.total is None else max(0, loop.total - loop.done)
    eta = 0.0 if left == 0 else left / loop.rate if left is not None and loop.rate else None
    return Bar(loop.label, loop.done, loop.total, loop.rate, eta)


def together(bars: Iterable[Bar]) -> Bar | None:
    """One bar for the bars of all ranks; of loops with other labels those of the most ranks. Where
    their loops are alike it is that of the slowest rank, else the sum of all, which is said. It is
    done when the last of them is."""
    every = list(bars)
    if not every:
        return None
    label = Counter(one.label for one in every).most_common(1)[0][0]
    each = [one for one in every if one.label == label]
    totals = [one.total for one in each]
    rates = [one.rate for one in each if one.rate is not None]
    etas = [one.eta for one in each if one.eta is not None]
    eta = max(etas) if etas else None
    if len(set(totals)) > 1:
        return Bar(
            _of(label, "sum", each),
            sum(one.done for one in each),
            None if None in totals else math.fsum(filter(None, totals)),
            sum(rates) if rates else None,
            eta,
        )
    slowest = min(each, key=lambda one: one.done)
    if len({one.done for one in each}) > 1:
        # Without a total, one that has done less may have less to do.
        label = _of(label, "least" if slowest.total is None else "slowest", each)
    elif len(each) < len(every):
        label = f"{label or 'progress'} ({len(each):,} of {several(len(every), 'rank')})"
    return Bar(label, slowest.done, slowest.total, min(rates) if rates else None, eta)


def _of(label: str, which: str, each: Sequence[Bar]) -> str:
    """`train (slowest of 4 ranks)`."""
    return f"{label or 'progress'} ({which} of {several(len(each), 'rank')})"
