"""Find the cell in which ranks drifted apart: compare watched variables after each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xla_nb.messages.events import Concluded
from xla_nb.run.comparing import Compared, sentence
from xla_nb.wording import ranks

_EQUAL = ("equal", "equal but for NaN")
_MISSING = "missing"  # stands for a leaf's path, which begins with a sign or is empty
DRIFT = "drift"  #: the kind of conclusion about it


@dataclass
class _Seen:
    """last: the label of the last cell after which the variable was compared; equal: by path, the
    label of the last cell after which all ranks had the same leaf; told: the leaves already
    reported as different, as drift or as possibly intended."""

    last: str = ""
    equal: dict[str, str] = field(default_factory=dict)
    told: dict[str, frozenset[int] | None] = field(default_factory=dict)


class Watch:
    """Reports for each leaf, once, the cell in which ranks drifted apart; again if another rank
    drifts, or after they have agreed on it.

    names: the watched variables, in order. before: an earlier watch, whose findings are kept."""

    def __init__(self, names: Iterable[str], before: Watch | None = None) -> None:
        known = before._seen if before else {}
        self._seen: dict[str, _Seen] = {name: known.get(name) or _Seen() for name in names}

    @property
    def names(self) -> list[str]:
        return list(self._seen)

    def after(self, cell: str, compared: Sequence[Compared]) -> list[Concluded]:
        """Conclusions after a cell (`Cell In[7]`; "": before the first one): `wrong`, unless ranks
        may differ by design. `compared` has the watched names that any rank has."""
        found = []
        for one in compared:
            if (seen := self._seen.get(one.name)) is None:
                continue
            if fresh := self._fresh(one):
                found.append(_drift(one, cell, seen, fresh))
                seen.told |= fresh
            same = {leaf.path for leaf in one.leaves if leaf.verdict in _EQUAL}
            same |= {_MISSING} if not one.missing else set()
            seen.equal |= dict.fromkeys(same, cell)
            seen.told = {path: how for path, how in seen.told.items() if path not in same}
            seen.last = cell
        return found

    def _fresh(self, one: Compared) -> dict[str, frozenset[int] | None]:
        """The leaves on which ranks newly differ, each with these ranks. If each rank has its own
        value, that may be intended (None), unless they had the same before."""
        seen = self._seen[one.name]
        differ: dict[str, frozenset[int] | None] = {}
        for leaf in one.leaves:
            if leaf.verdict == "different":
                differ[leaf.path] = frozenset(leaf.deviating)
            elif leaf.verdict == "no majority":
                differ[leaf.path] = frozenset(one.by_rank) if leaf.path in seen.equal else None
        if one.verdict == "not on all":
            differ[_MISSING] = frozenset(one.missing)
        return {path: who for path, who in differ.items() if _is_news(seen.told, path, who)}


def _is_news(
    told: Mapping[str, frozenset[int] | None], path: str, who: frozenset[int] | None
) -> bool:
    return path not in told or (who is not None and not who <= (told[path] or frozenset()))


def _drift(one: Compared, cell: str, seen: _Seen, fresh: Mapping[str, object]) -> Concluded:
    some = replace(one, leaves=tuple(leaf for leaf in one.leaves if leaf.path in fresh))
    what = sentence(some) or f"missing on {ranks(one.missing)}"
    # It may have differed for longer if it was not known to be equal at the last comparison.
    since = (
        "has differed between ranks since"
        if {seen.equal.get(path) for path in fresh} == {seen.last}
        else "differs between ranks after"
    )
    wrong = any(who is not None for who in fresh.values())
    how = f"{since} {cell}" if cell else "already differs between ranks"
    told = f"`{one.name}` {how}: {what}"
    return Concluded(kind=DRIFT, sentence=told, ranks=some.deviating, wrong=wrong)
