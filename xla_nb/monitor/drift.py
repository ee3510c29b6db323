"""Find the cell in which ranks drifted apart: compare watched variables after each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xla_nb.messages.events import Concluded
from xla_nb.monitor.variable_comparison import APART, Compared, sentence
from xla_nb.wording import ranks

_EQUAL = ("equal", "equal except for NaN")
_MISSING = "missing"  # stands for a leaf's path, which begins with a sign or is empty
DRIFT = "drift"  #: the kind of conclusion about it


@dataclass
class _State:
    """Leaves of a variable, by path.

    equal  those that all ranks had the same at the last comparison
    ever   those that all ranks had the same at any comparison
    told   those already reported as different, with the ranks; none if that may be intended
    """

    equal: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    told: dict[str, frozenset[int]] = field(default_factory=dict)


class Watch:
    """Reports for each leaf, once, the cell in which ranks drifted apart; again if another rank
    drifts, or after they have agreed on it.

    names: the watched variables, in order. previous: an earlier watch, whose findings are kept."""

    def __init__(self, names: Iterable[str], previous: Watch | None = None) -> None:
        known = previous._states if previous else {}
        self._states: dict[str, _State] = {name: known.get(name) or _State() for name in names}

    @property
    def names(self) -> list[str]:
        return list(self._states)

    def after(self, cell: str, compared: Sequence[Compared]) -> list[Concluded]:
        """Conclusions after a cell (`Cell In[7]`; "": before the first one): `wrong`, unless ranks
        may differ by design. `compared` has the watched names that any rank has."""
        conclusions = []
        for var in compared:
            if (state := self._states.get(var.name)) is None:
                continue
            if news := _news(var, state):
                conclusions.append(_conclude(var, cell, state, news))
            state.equal = {leaf.path for leaf in var.leaves if leaf.verdict in _EQUAL}
            state.equal |= {_MISSING} if not var.missing else set()
            state.ever |= state.equal
            told = {**state.told, **news}
            state.told = {path: group for path, group in told.items() if path not in state.equal}
        return conclusions


def _news(var: Compared, state: _State) -> dict[str, frozenset[int]]:
    """The leaves on which ranks newly differ, each with these ranks. If each rank has its own
    value, that may be intended (no ranks), unless they had the same before."""
    groups = {
        leaf.path: frozenset(leaf.deviating or (var.by_rank if leaf.path in state.ever else ()))
        for leaf in var.leaves
        if leaf.verdict in APART
    }
    if var.verdict == "not on all":
        groups[_MISSING] = frozenset(var.missing)
    told = state.told
    return {path: g for path, g in groups.items() if path not in told or not g <= told[path]}


def _conclude(
    var: Compared, cell: str, state: _State, news: Mapping[str, frozenset[int]]
) -> Concluded:
    part = replace(var, leaves=tuple(leaf for leaf in var.leaves if leaf.path in news))
    detail = sentence(part) or f"missing on {ranks(var.missing)}"
    # It may have differed for longer if it was not known to be equal at the last comparison.
    was_equal = news.keys() <= state.equal
    since = "has differed between ranks since" if was_equal else "differs between ranks after"
    how = f"{since} {cell}" if cell else "already differs between ranks"
    text = f"`{var.name}` {how}: {detail}"
    return Concluded(kind=DRIFT, sentence=text, ranks=part.deviating, wrong=any(news.values()))
