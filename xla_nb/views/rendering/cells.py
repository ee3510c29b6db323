"""The cells that live ranks have run, newest first: a table in saved HTML."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.rendering.style import AMBER, FAINT, MONO, PHASES, Look
from xla_nb.views.rendering.tags import (
    at_least,
    bit,
    div,
    escaped,
    faint,
    in_parts,
    mark,
    place,
    sentence,
    table,
    unseen,
)
from xla_nb.views.snapshot import Live, RanCell
from xla_nb.wording import several

_NEWEST = 6  # rows that are to be seen at once
_TOLD = "how it went"
_TITLES = ("", "cell", "ranks", _TOLD, "took", "began")
_LONGEST = 300  # characters of how one ended
_DRAWN = 256  # cells that are not drawn again each time that another has ended


def as_html(live: Live | None) -> str:
    """Empty where there are none."""
    if live is None or not live.cells:
        return ""
    drawn = in_parts(live.cells, _table, "cells", (_NEWEST, 0))
    left_out = live.count - len(live.cells)
    more = f"… and {several(left_out, 'earlier cell')}"
    rest = div(f"font-size:12px;{FAINT}", more) if left_out else ""
    return unseen("Cells") + drawn + rest


def _table(cells: Sequence[RanCell]) -> str:
    if not cells:
        return ""
    told = at_least(max(len(cell.told) for cell in cells))
    styles = [f"text-align:left{told if title == _TOLD else ''}" for title in _TITLES]
    return table([faint(title) for title in _TITLES], map(_row, cells), styles)


@functools.lru_cache(_DRAWN)
def _row(cell: RanCell) -> tuple[str, ...]:
    sign = Look("!", AMBER) if cell.found else PHASES[cell.outcome]
    return (
        faint(f"{cell.number:,}"),
        bit("white-space:nowrap", place(cell.label)),
        bit(MONO, escaped(wording.spans(cell.ranks), 80)),
        f"{mark(sign.glyph, '', sign.colour)}{sentence(cell.told, _LONGEST)}",
        bit(f"{MONO};white-space:nowrap", facts.took_of(cell)),
        bit(f"{MONO};white-space:nowrap", facts.time_of_day(cell.began)),
    )
