"""Progress bars: of loops under `xla_nb.progress`, of tqdm's lines, of all ranks together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from xla_nb.record.sample import Loop
from xla_nb.views.snapshot import Bar

_KNOWN = 20  # items, from which on tqdm's rate is told
_NUMBER = r"([\d.]+)([kMGTP]?)"
_TQDM = re.compile(
    rf"^(?:(?P<label>.*?): )? *\d+%\|.*\| *(?P<done>{_NUMBER})/(?P<total>{_NUMBER})"
    r" \[[\d:]+<(?P<eta>[\d:]+|\?)(?:, *(?P<rate>[\d.]+[kMGTP]?|\?)(?P<unit>[^\],]*))?"
)


def tqdm(line: str) -> Bar | None:
    """The bar that a line in tqdm's default format (tqdm 4) draws; None for other lines.

    tqdm's rate is a moving average, in which a first item that compiles counts for long."""
    match = _TQDM.match(line)
    if match is None:
        return None
    rate = None if match["rate"] in (None, "?") else _si(match["rate"])
    if rate and match["unit"].startswith("s/"):
        rate = 1 / rate
    eta = None if match["eta"] == "?" else _seconds(match["eta"])
    done, total = _si(match["done"]), _si(match["total"])
    if done < min(total, _KNOWN):
        rate = eta = None
    return Bar(match["label"] or "", done, total, rate, eta)


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
    """One bar for the bars of all ranks: that of the rank that is furthest behind, of loops with
    other labels among those of the most ranks. It is done when the last of them is.

    Its words do not tell how far ranks are apart, which changes at every moment."""
    every = list(bars)
    if not every:
        return None
    label = Counter(one.label for one in every).most_common(1)[0][0]
    each = [one for one in every if one.label == label]
    total = all(one.total for one in each)
    last = min(each, key=lambda one: one.done / (one.total or 1) if total else one.done)
    rates = [one.rate for one in each if one.rate is not None]
    etas = [one.eta for one in each if one.eta is not None]
    return replace(last, rate=min(rates, default=None), eta=max(etas, default=None))
