"""Show variables of the ranks in a notebook, as an HTML table and as text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xla_nb.monitor import variable_comparison
from xla_nb.monitor.variable_comparison import Compared, Verdict
from xla_nb.views import facts
from xla_nb.views.rendering.style import AMBER, EDGE, GREEN, GREY, MONO, RED, SANS
from xla_nb.views.rendering.tags import (
    at_least,
    bit,
    chip,
    div,
    escaped,
    faint,
    frame,
    table,
    unbroken,
)
from xla_nb.wording import aligned, several, shortened, size, spans

#: Maximum names, lines below one name, and lines in total; names that differ come first.
ROWS, LINES, ALL_LINES = 100, 12, 200
TITLES = ("Name", "Type", "Value", "Device", "Size", "Ranks", "Across ranks")
_WIDEST = 24  # characters of a column of text, except the last
_LONGEST = 80  # characters of a cell
#: How a verdict is shown in the table, and counted in its summary, if at all.
_SHOWN: dict[Verdict, tuple[str, str, str]] = {
    "different": ("≠", RED, "differ{s}"),
    "no majority": ("≠", GREY, "differ{s} by rank"),
    "not on all": ("◔", AMBER, "not on all ranks"),
    "pending": ("◌", GREY, "pending"),
    "not compared": ("?", GREY, "not compared, or not in full"),
    "equal except for NaN": ("=", AMBER, ""),
    "equal": ("=", GREEN, ""),
}
_VALUE = TITLES.index("Value")


class Variables(dict[str, Compared]):
    """Variables of live ranks by name, and whether the ranks agree on them.

    who: the ranks asked, in words: `4 ranks`, `3 of 4 ranks`."""

    def __init__(self, compared: Sequence[Compared], ranks: int, world: int | None = None) -> None:
        """`ranks`: number of ranks asked; `world`: number of all ranks, `ranks` by default."""
        super().__init__({variable.name: variable for variable in compared})
        prefix = "" if world in (None, ranks) else f"{ranks} of "
        self.who = prefix + several(world or ranks, "rank")

    def __repr__(self) -> str:
        lines = [*_text_lines(_rows(self.values())), self._summary(), *self._notes()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        style = f"{SANS};font-size:13px;line-height:1.5;margin:4px 0;padding:5px 12px"
        return frame(
            f"{style};border:1px solid {EDGE};border-radius:6px",
            div("", escaped(self._summary())),
            _html_table(_rows(self.values())),
            *(div("font-size:12px", faint(note)) for note in self._notes()),
        )

    def _summary(self) -> str:
        """`12 names on 4 ranks: 2 differ, 1 pending`."""
        counts = Counter(variable.verdict for variable in self.values())
        parts = [
            f"{counts[verdict]} {words.format(s='s' if counts[verdict] == 1 else '')}"
            for verdict, (_, _, words) in _SHOWN.items()
            if words and counts[verdict]
        ]
        start = f"{several(len(self), 'name')} on {self.who}"
        return f"{start}: {', '.join(parts)}" if parts else start

    def _notes(self) -> list[str]:
        """Notes about the table as a whole."""
        sentences = []
        if len(self) > ROWS:
            sentences.append(f"… and {several(len(self) - ROWS, 'more name')}")
        if any(variable.pending for variable in self.values()):
            sentences.append("Pending: recorded on the device and not computed yet.")
        return sentences


@dataclass(frozen=True)
class Row:
    """A variable: its cells in the order of TITLES, and `lines` that show where ranks disagree."""

    verdict: Verdict
    cells: tuple[str, ...]
    lines: tuple[str, ...]


def _rows(compared: Iterable[Compared]) -> list[Row]:
    rows, room = [], ALL_LINES
    for variable in itertools.islice(compared, ROWS):
        rows.append(_row(variable, min(LINES, room)))
        room -= min(room, len(rows[-1].lines))
    return rows


def _row(variable: Compared, limit: int) -> Row:
    usual = variable.usual
    leaf, devices = usual.leaves[0], {one.device for one in usual.leaves if one.shape is not None}
    cells = (
        variable.name,
        usual.type,
        usual.text if leaf.shape is None else f"{leaf.value or leaf.shape} {leaf.dtype}",
        "several" if len(devices) > 1 else "".join(devices),
        size(usual.nbytes) if usual.nbytes else "",
        spans(variable.by_rank),
        variable_comparison.verdict(variable),
    )
    lines = [facts.cut(line, 400) for line in variable_comparison.details(variable)]
    omitted = len(lines) - limit
    lines[limit:] = [f"… and {several(omitted, 'more line')}"] if omitted > 0 else []
    return Row(variable.verdict, tuple(facts.cut(cell, _LONGEST) for cell in cells), tuple(lines))


def _text_lines(rows: Sequence[Row]) -> list[str]:
    cells = ((*(shortened(one, _WIDEST) for one in row.cells[:-1]), row.cells[-1]) for row in rows)
    details = ((), *(row.lines for row in rows))
    table = zip(aligned(TITLES, cells), details, strict=False)
    return [line for head, below in table for line in (head, *(f"    {text}" for text in below))]


def _html_table(rows: Sequence[Row]) -> str:
    longest = max((len(row.cells[_VALUE]) for row in rows), default=0)
    styles = ["text-align:left"] * len(TITLES)
    styles[_VALUE] += at_least(longest)
    lines = [line for row in rows for line in _html_lines(row)]
    return table([*map(faint, TITLES)], lines, styles) if rows else ""


def _html_lines(row: Row) -> Iterator[Sequence[str]]:
    cells = [cell and unbroken(cell, MONO) for cell in row.cells]
    cells[_VALUE] = bit(f"{MONO};overflow-wrap:anywhere", escaped(row.cells[_VALUE]))
    cells[-1] = escaped(row.cells[-1])
    if row.verdict in _SHOWN:  # in the first column, because a narrow page cuts off the last one
        glyph, colour, _ = _SHOWN[row.verdict]
        cells[0] = f"{chip(glyph, colour)} {cells[0]}"
    yield cells
    if row.lines:
        below = (div("overflow-wrap:anywhere", escaped(text, 400)) for text in row.lines)
        yield [div("padding-left:24px", *below)]
