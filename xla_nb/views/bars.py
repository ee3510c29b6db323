"""Progress bars: of loops under `xla_nb.progress`, of tqdm's lines, of all ranks together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from xla_nb.record.sample import Loop
from xla_nb.views.snapshot import Bar

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
    """One bar for the bars of all ranks: where their loops are alike it is that of the slowest
    rank, else the sum of all, which is said. It is done when the last of them is."""
    each = list(bars)
    if not each:
        return None
    totals = [one.total for one in each]
    rates = [one.rate for one in each if one.rate is not None]
    etas = [one.eta for one in each if one.eta is not None]
    eta = max(etas) if etas else None
    if len(set(totals)) == 1:
        slowest = min(each, key=lambda one: one.done)
        which = "" if len({one.done for one in each}) == 1 else " (slowest rank)"
        label = f"{slowest.label}{which}".strip()
        return Bar(label, slowest.done, slowest.total, min(rates) if rates else None, eta)
    return Bar(
        f"{each[0].label} (sum of {len(each)} ranks)".strip(),
        sum(one.done for one in each),
        None if None in totals else math.fsum(total for total in totals if total is not None),
        sum(rates) if rates else None,
        eta,
    )
