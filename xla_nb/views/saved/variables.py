"""The ranks' variables as a notebook shows them: a table as HTML, and the same as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xla_nb.run.comparing import Compared, Verdict
from xla_nb.views import variables
from xla_nb.views.saved.style import AMBER, EDGE, GREEN, GREY, MONO, RED, SANS
from xla_nb.views.saved.tags import bit, chip, div, escaped, faint, frame, table
from xla_nb.views.variables import TITLES, Row

_SIGNS: dict[Verdict, tuple[str, str]] = {
    "different": ("≠", RED),
    "no majority": ("≠", GREY),
    "not on all": ("◔", AMBER),
    "pending": ("◌", GREY),
    "not compared": ("?", GREY),
    "equal but for NaN": ("=", AMBER),
    "equal": ("=", GREEN),
}
_VALUE = TITLES.index("Value")
_SHORT = 20  # characters of a cell that a narrow page does not break, unless it is a value


class Variables(Mapping[str, Compared]):
    """The variables of live ranks, by name, and whether the ranks agree on them.

    ranks: how many ranks were asked."""

    def __init__(self, compared: Sequence[Compared], ranks: int) -> None:
        self._compared = {one.name: one for one in compared}
        self.ranks = ranks

    def __getitem__(self, name: str) -> Compared:
        return self._compared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._compared)

    def __len__(self) -> int:
        return len(self._compared)

    def __repr__(self) -> str:
        return variables.as_text(list(self.values()), self.ranks)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def _repr_html_(self) -> str:
        compared = list(self.values())
        style = f"{SANS};font-size:13px;line-height:1.5;margin:4px 0;padding:5px 12px"
        notes = (div("font-size:12px", faint(note)) for note in variables.notes(compared))
        return frame(
            f"{style};border:1px solid {EDGE};border-radius:6px",
            div("", escaped(variables.summary(compared, self.ranks))),
            _table(variables.rows(compared)),
            *notes,
        )


def _table(rows: Sequence[Row]) -> str:
    shown = [n for n in range(len(TITLES)) if any(row.cells[n] for row in rows)]
    titles = [faint(TITLES[n]) for n in shown]
    return table(titles, [line for row in rows for line in _lines(row, shown)]) if shown else ""


def _lines(row: Row, shown: Sequence[int]) -> Iterator[Sequence[str]]:
    sign = f"{chip(*_SIGNS[row.verdict])} " if row.verdict in _SIGNS else ""
    last = _cell(row.cells[shown[-1]], whole=True, before=sign)
    yield [*(bit(MONO, _cell(row.cells[n], whole=n != _VALUE)) for n in shown[:-1]), last]
    if row.lines:
        below = (div("overflow-wrap:anywhere", escaped(text, 400)) for text in row.lines)
        yield [div("padding-left:24px", *below)]


def _cell(text: str, *, whole: bool, before: str = "") -> str:
    drawn = before + escaped(text)
    return bit("white-space:nowrap", drawn) if whole and len(text) <= _SHORT else drawn
