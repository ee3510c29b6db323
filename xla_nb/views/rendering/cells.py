"""Table of the cells that live ranks have run, newest first, in saved HTML."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.messages.events import ProgramBegan, ProgramEnded
from xla_nb.run.state import ProgramState
from xla_nb.views import facts
from xla_nb.views.rendering.style import FAINT, FOUND, MONO, PHASES
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
from xla_nb.views.snapshot import Live
from xla_nb.wording import several

_NEWEST = 6  # rows shown unfolded
_TOLD = "outcome"
_TITLES = ("", "cell", "ranks", _TOLD, "took", "started")
_LONGEST = 300  # characters of an outcome
_DRAWN = 256  # rows cached, so they are not drawn again whenever another cell ends


def as_html(live: Live | None) -> str:
    """Render the table; empty if there are no cells."""
    if live is None or not live.cells:
        return ""
    drawn = in_parts(live.cells, _table, "cells", (_NEWEST, 0))
    left_out = live.count - len(live.cells)
    more = f"… and {several(left_out, 'earlier cell')}"
    rest = div(f"font-size:12px;{FAINT}", more) if left_out else ""
    return unseen("Cells") + drawn + rest


def _table(cells: Sequence[ProgramState]) -> str:
    if not cells:
        return ""
    told = at_least(max(len(_told(cell.ended)) for cell in cells))
    rows = (_row(cell.place, cell.began, cell.ended) for cell in cells)
    styles = [f"text-align:left{told if title == _TOLD else ''}" for title in _TITLES]
    return table([faint(title) for title in _TITLES], rows, styles)


@functools.lru_cache(_DRAWN)
def _row(number: int, began: ProgramBegan, ended: ProgramEnded | None) -> tuple[str, ...]:
    sign, took = PHASES["running"], ""
    if ended is not None:
        sign = FOUND if ended.found and ended.outcome == "finished" else PHASES[ended.outcome]
        took = facts.took(max(0.0, ended.at - began.at if ended.elapsed is None else ended.elapsed))
    return (
        faint(f"{number:,}"),
        bit("white-space:nowrap", place(began.label)),
        bit(MONO, escaped(wording.spans(began.ranks), 80)),
        f"{mark(sign.glyph, '', sign.colour)}{sentence(_told(ended), _LONGEST)}",
        bit(f"{MONO};white-space:nowrap", took),
        bit(f"{MONO};white-space:nowrap", facts.time_of_day(began.at)),
    )


def _told(ended: ProgramEnded | None) -> str:
    """The outcome: running, finished or the error, and any problem found."""
    if ended is None:
        return "running"
    finished = ended.outcome == "finished"
    how = ended.outcome if finished else ended.headline or "ended with the ranks"
    return "; ".join(filter(None, [how, ended.found]))
