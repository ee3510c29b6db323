"""Show variables of the ranks in a notebook, as an HTML table and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xla_nb.run import comparing
from xla_nb.run.comparing import Compared, Verdict
from xla_nb.views import facts
from xla_nb.views.rendering.style import AMBER, EDGE, GREEN, GREY, MONO, RED, SANS
from xla_nb.views.rendering.tags import at_least, bit, chip, div, escaped, faint, frame, table
from xla_nb.wording import aligned, several, shortened, size, spans

#: Maximum names, lines below one name, and lines in total; names that differ come first.
ROWS, LINES, ALL_LINES = 100, 12, 200
TITLES = ("Name", "Type", "Value", "Device", "Size", "Ranks", "Across ranks")
_WIDEST = 24  # characters of a column of text, except the last
_LONGEST = 80  # characters of a cell
_SIGNS: dict[Verdict, tuple[str, str]] = {
    "different": ("≠", RED),
    "no majority": ("≠", GREY),
    "not on all": ("◔", AMBER),
    "pending": ("◌", GREY),
    "not compared": ("?", GREY),
    "equal except for NaN": ("=", AMBER),
    "equal": ("=", GREEN),
}
_VALUE = TITLES.index("Value")
_SHORT = 20  # characters of a cell that is kept on one line, unless it is a value


class Variables(dict[str, Compared]):
    """Variables of live ranks by name, and whether the ranks agree on them.

    who: the ranks asked, in words: `4 ranks`, `3 of 4 ranks`."""

    def __init__(self, compared: Sequence[Compared], ranks: int, world: int | None = None) -> None:
        """`ranks`: number of ranks asked; `world`: number of all ranks, `ranks` by default."""
        super().__init__({variable.name: variable for variable in compared})
        prefix = "" if world in (None, ranks) else f"{ranks} of "
        self.who = prefix + several(world or ranks, "rank")

    def __repr__(self) -> str:
        return as_text(list(self.values()), self.who)

    def _repr_html_(self) -> str:
        compared = list(self.values())
        style = f"{SANS};font-size:13px;line-height:1.5;margin:4px 0;padding:5px 12px"
        return frame(
            f"{style};border:1px solid {EDGE};border-radius:6px",
            div("", escaped(summary(compared, self.who))),
            _table(rows(compared)),
            *(div("font-size:12px", faint(note)) for note in notes(compared)),
        )


def _table(rows: Sequence[Row]) -> str:
    columns = [n for n in range(len(TITLES)) if any(row.cells[n] for row in rows)]
    titles = [faint(TITLES[n]) for n in columns]
    longest = max((len(row.cells[_VALUE]) for row in rows), default=0)
    styles = [f"text-align:left{at_least(longest) if n == _VALUE else ''}" for n in columns]
    lines = [line for row in rows for line in _lines(row, columns)]
    return table(titles, lines, styles) if columns else ""


def _lines(row: Row, columns: Sequence[int]) -> Iterator[Sequence[str]]:
    sign = f"{chip(*_SIGNS[row.verdict])} " if row.verdict in _SIGNS else ""
    # The sign is in the first column, because a narrow page cuts off the last one.
    cells = [
        _cell(row.cells[n], whole=n != _VALUE, before=sign if n == columns[0] else "")
        for n in columns
    ]
    yield [*(bit(MONO, cell) for cell in cells[:-1]), cells[-1]]
    if row.lines:
        below = (div("overflow-wrap:anywhere", escaped(text, 400)) for text in row.lines)
        yield [div("padding-left:24px", *below)]


def _cell(text: str, *, whole: bool, before: str = "") -> str:
    html = before + escaped(text)
    whole = whole and len(text) <= _SHORT
    return bit(f"white-space:{'nowrap' if whole else 'normal;overflow-wrap:anywhere'}", html)


@dataclass(frozen=True)
class Row:
    """A variable: its cells in the order of TITLES, and `lines` that show where ranks disagree."""

    verdict: Verdict
    cells: tuple[str, ...]
    lines: tuple[str, ...]


def rows(compared: Sequence[Compared]) -> list[Row]:
    built, room = [], ALL_LINES
    for variable in compared[:ROWS]:
        built.append(_row(variable, min(LINES, room)))
        room -= min(room, len(built[-1].lines))
    return built


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
        comparing.verdict(variable),
    )
    lines = [facts.cut(line, 400) for line in comparing.details(variable)]
    omitted = len(lines) - limit
    lines[limit:] = [f"… and {several(omitted, 'more line')}"] if omitted > 0 else []
    return Row(variable.verdict, tuple(facts.cut(cell, _LONGEST) for cell in cells), tuple(lines))


def summary(compared: Sequence[Compared], who: str) -> str:
    """Summarize variables: `12 names on 4 ranks: 2 differ, 1 pending`."""
    counts = Counter(variable.verdict for variable in compared)
    words: dict[Verdict, str] = {
        "different": "differ" if counts["different"] > 1 else "differs",
        "no majority": "differ by rank" if counts["no majority"] > 1 else "differs by rank",
        "not on all": "not on all ranks",
        "pending": "pending",
        "not compared": "not compared, or not in full",
    }
    parts = [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
    start = f"{several(len(compared), 'name')} on {who}"
    return f"{start}: {', '.join(parts)}" if parts else start


def notes(compared: Sequence[Compared]) -> list[str]:
    """Notes about the table as a whole."""
    sentences = []
    if len(compared) > ROWS:
        sentences.append(f"… and {several(len(compared) - ROWS, 'more name')}")
    if any(variable.pending for variable in compared):
        sentences.append("Pending: recorded on the device and not computed yet.")
    return sentences


def as_text(compared: Sequence[Compared], who: str) -> str:
    """Format the table as text."""
    table_rows = rows(compared)
    if not table_rows:
        return summary(compared, who)
    *columns, last = (n for n in range(len(TITLES)) if any(row.cells[n] for row in table_rows))
    cell_rows = (TITLES, *(row.cells for row in table_rows))
    head, *body = aligned(
        [[*(shortened(cells[n], _WIDEST) for n in columns), cells[last]] for cells in cell_rows]
    )
    lines = [head]
    for line, row in zip(body, table_rows, strict=True):
        lines += [line, *(f"    {detail}" for detail in row.lines)]
    return "\n".join([*lines, summary(compared, who), *notes(compared)])
