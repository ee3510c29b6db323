"""Table of the cells that live ranks have run, newest first, in saved HTML."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.messages.events import ProgramBegan, ProgramEnded
from xla_nb.monitor.state import ProgramState
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
_OUTCOME = "outcome"
_TITLES = ("", "cell", "ranks", _OUTCOME, "took", "started")
_LONGEST = 300  # characters of an outcome
_CACHED_ROWS = 256  # rows cached, so they are not drawn again whenever another cell ends


def as_html(live: Live | None) -> str:
    """Render the table; empty if there are no cells."""
    if live is None or not live.cells:
        return ""
    html = in_parts(live.cells, _table, "cells", (_NEWEST, 0))
    left_out = live.count - len(live.cells)
    note = f"… and {several(left_out, 'earlier cell')}"
    footer = div(f"font-size:12px;{FAINT}", note) if left_out else ""
    return unseen("Cells") + html + footer


def _table(cells: Sequence[ProgramState]) -> str:
    if not cells:
        return ""
    wrap_style = at_least(max(len(_outcome(cell.ended)) for cell in cells))
    rows = (_row(cell.place, cell.began, cell.ended) for cell in cells)
    styles = [f"text-align:left{wrap_style if title == _OUTCOME else ''}" for title in _TITLES]
    return table([faint(title) for title in _TITLES], rows, styles)


@functools.lru_cache(_CACHED_ROWS)
def _row(number: int, began: ProgramBegan, ended: ProgramEnded | None) -> tuple[str, ...]:
    sign, time = PHASES["running"], ""
    if ended is not None:
        sign = FOUND if ended.found and ended.outcome == "finished" else PHASES[ended.outcome]
        time = wording.took(ended.at - began.at if ended.elapsed is None else ended.elapsed)
    return (
        faint(f"{number:,}"),
        bit("white-space:nowrap", place(began.label)),
        bit(MONO, escaped(wording.spans(began.ranks), 80)),
        f"{mark(sign.glyph, '', sign.colour)}{sentence(_outcome(ended), _LONGEST)}",
        bit(f"{MONO};white-space:nowrap", time),
        bit(f"{MONO};white-space:nowrap", facts.time_of_day(began.at)),
    )


def _outcome(ended: ProgramEnded | None) -> str:
    """The outcome: running, finished or the error, and any problem found."""
    if ended is None:
        return "running"
    finished = ended.outcome == "finished"
    outcome = ended.outcome if finished else ended.headline or "ended with the ranks"
    return "; ".join(filter(None, [outcome, ended.found]))
