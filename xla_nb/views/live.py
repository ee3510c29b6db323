"""What there is to see of live ranks: which cells they have run, and since when they are idle.

Whether a rank is idle is known from the events of the notebook, which has given it the cells; what
it does in a cell is known from its samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from xla_nb import ansi
from xla_nb.record.figures import Row, Rows
from xla_nb.record.files import Record
from xla_nb.record.sample import Sample
from xla_nb.run.state import ProgramState, RankState, RunState
from xla_nb.views.snapshot import Live, Phase, RanCell

#: Cells in a picture.
CELLS = 50


def of(state: RunState) -> Live | None:
    """None for any other run."""
    if state.group is None:
        return None
    programs, running = state.programs, state.programs.running
    rested = [programs.rested(rank) or state.ranks[rank].started for rank in state.ranks]
    since = running[0].began.at if running else max(filter(None, rested), default=None)
    return Live(
        name=state.group.name,
        idle=state.group.idle,
        since=since,
        count=programs.count,
        running=len(running),
        lost=programs.lost,
        cells=tuple(map(_cell, programs.newest[:CELLS])),
    )


def _cell(program: ProgramState) -> RanCell:
    began, ended = program.began, program.ended
    cell = RanCell(program.place, began.run, ansi.plain(began.label), began.ranks, began.at)
    if ended is None:
        return cell
    told = ended.elapsed if ended.elapsed is not None else max(0.0, ended.at - began.at)
    headline = ansi.plain(ended.headline)
    found = ansi.plain(ended.found) if ended.outcome == "finished" else ""
    return replace(cell, elapsed=told, outcome=ended.outcome, headline=headline, found=found)


def phase(
    state: RunState, rank: RankState, sample: Sample | None
) -> tuple[Phase, float | None] | None:
    """What a live rank does, and since when; None where its sample tells it.

    A sample may be older than the cell, and one of an idle rank newer than the end of its part."""
    if state.group is None:
        return None
    now = state.programs.now(rank.rank)
    if now is None:
        return "idle", state.programs.rested(rank.rank) or rank.started
    if sample is None or sample.at < now.at:
        return "running", now.at
    if sample.activity == "idle" and sample.since < now.at:
        return "running", now.at
    return None


class RowsOverCells:
    """What a live rank has reported in one cell after another; where a cell counts its steps anew,
    they go on from those of the cells before it."""

    def __init__(self, state: RunState, records: Path, rank: int) -> None:
        """records: the folder of the runs' records."""
        self._programs, self._records, self._rank = state.programs, records, rank
        self._number = 0  # of the cell whose rows are read
        self._rows: Rows | None = None
        self._last = -math.inf  # step so far
        self._shift: float | None = None  # of this cell's steps; None before its first one

    def new(self) -> Iterator[Row]:
        """The rows written since the last call. Raises XlaNbError as `Rows.new`."""
        yield from self._more()
        for program in reversed(self._programs.newest):
            began = program.began
            if began.number > self._number and self._rank in began.ranks:
                record = Record(self._records / began.run)
                self._number, self._rows = began.number, Rows(record.history(self._rank))
                self._shift = None
                yield from self._more()

    def _more(self) -> Iterator[Row]:
        for row in self._rows.new() if self._rows else ():
            if self._shift is None:
                self._shift = self._last + 1 - row.step if row.step <= self._last else 0.0
            step = row.step + self._shift
            if math.isfinite(step):
                self._last = max(self._last, step)
            yield replace(row, step=step)
