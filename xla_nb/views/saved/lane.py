"""A rank's last minute as a strip: what each second went into, from left to right."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from xla_nb.views import facts
from xla_nb.views.saved import chart
from xla_nb.views.saved.tags import bit, div, swatch
from xla_nb.views.snapshot import KINDS, Slot

_SECONDS, _HEIGHT = 60, 12
_EACH = 5  # pixels of the picture for a second; it is shown at half its size
WIDTH = _SECONDS * _EACH // 2  # CSS pixels, where there is room
#: The colours of the live panel, light and dark.
_COLOURS = dict(zip(KINDS, ("#d29922", "#1f6feb", "#9aa4af", "#8957e5", "#656d76"), strict=True))


def strip(slots: Sequence[Slot], newest: int) -> str:
    """The 60 s before `newest` (in seconds since the epoch) as a picture."""
    told = ", ".join(f"{word} {facts.span(seconds)}" for word, seconds in facts.lane(slots))
    by_second = {slot.second: slot for slot in slots}
    seconds = range(newest - _SECONDS + 1, newest + 1)
    row = b"".join(_second(by_second.get(second)) for second in seconds)
    picture = base64.b64encode(chart.strip(row, 2 * _HEIGHT)).decode()
    style = f"display:block;margin:3px 0 0;width:100%;min-width:60px;height:{_HEIGHT}px"
    return (
        f'<img src="data:image/png;base64,{picture}" width="{WIDTH}" height="{_HEIGHT}" '
        f'alt="{escape(told)}" title="{escape(told)}" style="{style};max-width:none">'
    )


def _second(slot: Slot | None) -> bytes:
    """Its pixels: red, green, blue and alpha of each; none of it where nothing is known."""
    pixels, end = b"", 0.0
    for colour, part in zip(_COLOURS.values(), slot.parts if slot else (), strict=False):
        end += part
        drawn = bytes.fromhex(f"{colour[1:]}ff")
        pixels += drawn * (min(_EACH, round(end * _EACH)) - len(pixels) // len(drawn))
    return pixels.ljust(4 * _EACH, b"\0")


def key(slots: Sequence[Slot]) -> str:
    """What the colours mean that these have."""
    words = (
        bit("white-space:nowrap", swatch(_COLOURS[word]), f" {word}")
        for word, _ in facts.lane(slots)
    )
    return div("display:flex;flex-wrap:wrap;gap:0 14px;font-size:12px;margin-top:3px", *words)
