"""In which cell ranks drifted apart: watched variables, compared after each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xla_nb.protocol.events import Concluded
from xla_nb.run.comparing import Compared
from xla_nb.run.disagreement import sentence
from xla_nb.wording import ranks

_EQUAL = ("equal", "equal but for NaN")
DRIFT = "drift"  #: the kind of what a run has concluded of it


@dataclass
class _Seen:
    """equal: the label of the last cell after which all ranks had the same; last: of the last cell
    after which the variable was looked at; told: "drift" or "note", once the ranks were said to
    differ."""

    equal: str = ""
    last: str = ""
    told: str = ""
    paths: set[str] = field(default_factory=set)  # of its leaves that were equal


class Watch:
    """Says once in which cell ranks drifted apart, and again only after they have agreed.

    names: those that are watched, in order; of some `before` has seen something already."""

    def __init__(self, names: Iterable[str], before: Watch | None = None) -> None:
        known = before._seen if before else {}
        self._seen: dict[str, _Seen] = {name: known.get(name) or _Seen() for name in names}

    @property
    def names(self) -> list[str]:
        return list(self._seen)

    def new(self, compared: Iterable[Compared]) -> list[Compared]:
        """Those of which `after` will speak: their values are worth asking for."""
        return [one for one in compared if self._is_new(one)]

    def after(self, cell: str, compared: Sequence[Compared]) -> list[Concluded]:
        """What is to be said after a cell (`Cell In[7]`): wrong, unless ranks may be meant to
        differ. `compared` has the watched names that any rank has."""
        found = [_drift(one, cell, self._seen[one.name]) for one in self.new(compared)]
        for one in compared:
            if one.name in self._seen:
                self._take(self._seen[one.name], one, cell)
        return found

    def _is_new(self, one: Compared) -> bool:
        seen = self._seen.get(one.name)
        if seen is None or not _differs(one):
            return False
        return not seen.told or (seen.told == "note" and _is_drift(one, seen))

    def _take(self, seen: _Seen, one: Compared, cell: str) -> None:
        seen.last = cell
        if _differs(one):
            seen.told = "drift" if _is_drift(one, seen) or seen.told == "drift" else "note"
        elif one.verdict in _EQUAL:
            seen.equal, seen.told = cell, ""
        seen.paths.update(leaf.path for leaf in one.leaves if leaf.verdict in _EQUAL)


def _differs(one: Compared) -> bool:
    return one.verdict in ("different", "not on all", "no majority")


def _is_drift(one: Compared, seen: _Seen) -> bool:
    """Where each rank has its own, that may be meant so, unless they had the same before."""
    spread = [leaf.path for leaf in one.leaves if leaf.verdict == "no majority"]
    return one.verdict != "no majority" or not seen.paths.isdisjoint(spread)


def _drift(one: Compared, cell: str, seen: _Seen) -> Concluded:
    what = f"missing on {ranks(one.missing)}" if one.verdict == "not on all" else sentence(one)
    since = f"since {cell}"
    if not seen.equal:
        first = "already when first compared"
        if cell.startswith("%"):  # before any cell
            since = first
        else:
            since = f"after {cell}" if seen.last else f"{first}, after {cell}"
    elif seen.equal != seen.last:
        since = f"after {cell}; last known to be equal after {seen.equal}"
    told = f"`{one.name}` differs between ranks {since}: {what}"
    is_wrong = _is_drift(one, seen)
    return Concluded(kind=DRIFT, sentence=told, ranks=one.deviating, wrong=is_wrong)
