"""The ranks' variables as a table: rows for the text and for the HTML of a notebook."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xla_nb.run import comparing
from xla_nb.run.comparing import Compared, Verdict
from xla_nb.views import facts
from xla_nb.wording import several, shortened, size, spans

#: Names that are shown, lines below one and below all; names that differ come first.
ROWS, LINES, ALL_LINES = 100, 12, 200
TITLES = ("Name", "Type", "Value", "Device", "Size", "Ranks", "Across ranks")
_WIDTH, _GAP = 100, 2
#: Characters that a column has where there is no room for all of it.
_NARROW = (18, 12, 20, 6, 8, 6, 18)
_LONGEST = 80  # characters of a cell


@dataclass(frozen=True)
class Row:
    """A variable: its cells in the order of TITLES, and in `lines` where ranks do not agree."""

    verdict: Verdict
    cells: tuple[str, ...]
    lines: tuple[str, ...]


def rows(compared: Sequence[Compared]) -> list[Row]:
    drawn, room = [], ALL_LINES
    for one in compared[:ROWS]:
        drawn.append(_row(one, min(LINES, room)))
        room -= min(room, len(drawn[-1].lines))
    return drawn


def _row(one: Compared, most: int) -> Row:
    usual = one.usual
    if usual.shape is None:
        value = usual.text
    else:
        single = usual.leaves[0].value
        value = f"{single or usual.shape} {usual.dtype}"
    cells = (
        one.name,
        usual.type,
        value,
        usual.device,
        size(usual.nbytes) if usual.nbytes else "",
        spans(one.by_rank),
        comparing.verdict(one),
    )
    lines = [facts.cut(line, 400) for line in comparing.details(one)]
    more = len(lines) - most
    lines[most:] = [f"… and {several(more, 'more line')}"] if more > 0 else []
    return Row(one.verdict, tuple(facts.cut(cell, _LONGEST) for cell in cells), tuple(lines))


def summary(compared: Sequence[Compared], ranks: int) -> str:
    """`12 names on 4 ranks: 2 differ, 1 pending`."""
    counts = Counter(one.verdict for one in compared)
    words: dict[Verdict, str] = {
        "different": "differ" if counts["different"] > 1 else "differs",
        "no majority": "without a majority",
        "not on all": "not on all ranks",
        "pending": "pending",
        "not compared": "not compared in full",
    }
    told = [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
    start = f"{several(len(compared), 'name')} on {several(ranks, 'rank')}"
    return f"{start}: {', '.join(told)}" if told else start


def notes(compared: Sequence[Compared]) -> list[str]:
    """What is to be known about the table as a whole."""
    told = []
    if len(compared) > ROWS:
        told.append(f"… and {several(len(compared) - ROWS, 'more name')}")
    if any(leaf.verdict == "pending" for one in compared for leaf in one.leaves):
        told.append("Pending: recorded on the device and not computed yet.")
    return told


def as_text(compared: Sequence[Compared], ranks: int) -> str:
    """The table in lines of at most 100 characters."""
    drawn = rows(compared)
    if not drawn:
        return summary(compared, ranks)
    shown = [n for n in range(len(TITLES)) if any(row.cells[n] for row in drawn)]
    table = [[TITLES[n] for n in shown], *([row.cells[n] for n in shown] for row in drawn)]
    widths = _widths(table, [_NARROW[n] for n in shown])
    head, *body = (_line(cells, widths) for cells in table)
    lines = [head]
    for line, row in zip(body, drawn, strict=True):
        lines += [line, *_below(row.lines)]
    return "\n".join([*lines, summary(compared, ranks), *notes(compared)])


def _widths(table: Sequence[Sequence[str]], narrow: Sequence[int]) -> list[int]:
    """As wide as the widest cell; where that is too much, the widest columns are cut first."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    room = _WIDTH - _GAP * (len(widths) - 1)
    while sum(widths) > room:
        over = [width - least for width, least in zip(widths, narrow, strict=True)]
        widths[over.index(max(over))] -= 1
    return widths


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    cut = (shortened(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True))
    return (" " * _GAP).join(cut).rstrip()


def _below(lines: Iterable[str]) -> list[str]:
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, _WIDTH, initial_indent="    ", subsequent_indent="      ")
    ]
