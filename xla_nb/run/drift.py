"""In which cell ranks drifted apart: watched variables, compared after each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xla_nb.run.comparing import Compared
from xla_nb.run.disagreement import sentence
from xla_nb.wording import ranks


@dataclass
class _Seen:
    """equal: the label of the last cell after which all ranks had the same; last: of the last cell
    after which the variable was looked at; told: whether the ranks were said to differ."""

    equal: str = ""
    last: str = ""
    told: bool = False


class Watch:
    """Says once in which cell ranks drifted apart, and again only after they have agreed.

    names: those that are watched, in order."""

    def __init__(self, names: Iterable[str]) -> None:
        self._seen = {name: _Seen() for name in names}

    @property
    def names(self) -> list[str]:
        return list(self._seen)

    def new(self, compared: Iterable[Compared]) -> list[Compared]:
        """Those of which `after` will speak: their values are worth asking for."""
        return [one for one in compared if self._is_new(one)]

    def after(self, cell: str, compared: Sequence[Compared]) -> list[str]:
        """What is to be said after a cell (`Cell In[7]`); `compared` has the watched names that
        any rank has."""
        lines = [_told(one, cell, self._seen[one.name]) for one in self.new(compared)]
        for one in compared:
            if one.name in self._seen:
                self._take(self._seen[one.name], one, cell)
        return lines

    def _is_new(self, one: Compared) -> bool:
        seen = self._seen.get(one.name)
        return seen is not None and not seen.told and _differs(one)

    def _take(self, seen: _Seen, one: Compared, cell: str) -> None:
        seen.last = cell
        if _differs(one):
            seen.told = True
        elif one.verdict in ("equal", "equal but for NaN"):
            seen.equal, seen.told = cell, False


def _differs(one: Compared) -> bool:
    return one.verdict in ("different", "not on all")


def _told(one: Compared, cell: str, seen: _Seen) -> str:
    what = sentence(one) if one.verdict == "different" else f"missing on {ranks(one.missing)}"
    since = f"since {cell}"
    if not seen.equal:
        first = "already when first compared"
        if cell.startswith("%"):  # before any cell
            since = first
        else:
            since = f"after {cell}" if seen.last else f"{first}, after {cell}"
    elif seen.equal != seen.last:
        since = f"after {cell}; last known to be equal after {seen.equal}"
    return f"`{one.name}` differs between ranks {since}: {what}"
