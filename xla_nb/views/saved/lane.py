"""A rank's last minute as a strip: what each second went into, from left to right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from xla_nb.views import facts
from xla_nb.views.saved import chart
from xla_nb.views.saved.tags import bit, div, swatch
from xla_nb.views.snapshot import KINDS, Slot

SECONDS, _HEIGHT = 60, 12
_EACH = 5  # units of the drawing for a second; it is shown at half its size
_SEEN = 0.1  # seconds of one second that are to be seen in it
WIDTH = SECONDS * _EACH // 2  # CSS pixels, where there is room
#: The colours of the live panel, light and dark.
_COLOURS = dict(zip(KINDS, ("#d29922", "#1f6feb", "#9aa4af", "#8957e5", "#656d76"), strict=True))


def strip(slots: Sequence[Slot], newest: int, lasted: float) -> str:
    """The seconds before `newest` (since the epoch) as a picture: as many as the run has lasted, at
    least 10 and at most 60."""
    told = ", ".join(f"{word} {facts.span(seconds)}" for word, seconds in facts.lane(slots))
    by_second = {slot.second: slot for slot in slots}
    shown = math.ceil(min(SECONDS, max(10, lasted)))
    seconds = range(newest - shown + 1, newest + 1)
    parts = "".join(_second(n, second, by_second) for n, second in enumerate(seconds))
    picture = chart.drawing(parts, _EACH * shown, _HEIGHT)
    style = f"display:block;margin:3px 0 0;width:100%;min-width:60px;height:{_HEIGHT}px"
    return (
        f'<img src="{chart.address(picture)}" width="{WIDTH}" height="{_HEIGHT}" '
        f'alt="{escape(told)}" title="{escape(told)}" style="{style};max-width:none">'
    )


def _second(number: int, second: int, slots: Mapping[int, Slot]) -> str:
    """What is known of it, from left to right; of the first second what ends with it."""
    slot = slots.get(second)
    parts = slot.parts if slot else ()
    starts = second - 1 not in slots and second + 1 in slots
    left = number + max(0.0, 1 - sum(parts)) * starts
    drawn = ""
    for colour, part in zip(_COLOURS.values(), parts, strict=False):
        wide = min(part, number + 1 - left)
        if wide > 0:
            place = f"x='{_EACH * left:.2f}' width='{_EACH * wide:.2f}' height='{_HEIGHT}'"
            drawn += f"<rect {place} fill='{colour}'/>"
        left += wide
    return drawn


def key(slots: Sequence[Slot]) -> str:
    """What the colours mean that these have, where it is to be seen."""
    most = map(max, zip(*(slot.parts for slot in slots), strict=True))
    words = (
        bit("white-space:nowrap", swatch(colour), f" {word}")
        for (word, colour), part in zip(_COLOURS.items(), most, strict=True)
        if part >= _SEEN
    )
    return div("display:flex;flex-wrap:wrap;gap:0 14px;font-size:12px;margin-top:3px", *words)
