"""Find the cell in which ranks drifted apart: compare watched variables after each cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xla_nb.messages.events import Concluded
from xla_nb.run.comparing import Compared, sentence
from xla_nb.wording import ranks

_EQUAL = ("equal", "equal except for NaN")
_MISSING = "missing"  # stands for a leaf's path, which begins with a sign or is empty
DRIFT = "drift"  #: the kind of conclusion about it


@dataclass
class _State:
    """last: the label of the last cell after which the variable was compared; equal: by path, the
    label of the last cell after which all ranks had the same leaf; told: the leaves already
    reported as different, as drift or as possibly intended."""

    last: str = ""
    equal: dict[str, str] = field(default_factory=dict)
    told: dict[str, frozenset[int] | None] = field(default_factory=dict)


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
            if news := self._news(var):
                conclusions.append(_conclude(var, cell, state, news))
                state.told |= news
            equal = {leaf.path for leaf in var.leaves if leaf.verdict in _EQUAL}
            equal |= {_MISSING} if not var.missing else set()
            state.equal |= dict.fromkeys(equal, cell)
            state.told = {path: group for path, group in state.told.items() if path not in equal}
            state.last = cell
        return conclusions

    def _news(self, var: Compared) -> dict[str, frozenset[int] | None]:
        """The leaves on which ranks newly differ, each with these ranks. If each rank has its own
        value, that may be intended (None), unless they had the same before."""
        state = self._states[var.name]
        groups: dict[str, frozenset[int] | None] = {}
        for leaf in var.leaves:
            if leaf.verdict == "different":
                groups[leaf.path] = frozenset(leaf.deviating)
            elif leaf.verdict == "no majority":
                groups[leaf.path] = frozenset(var.by_rank) if leaf.path in state.equal else None
        if var.verdict == "not on all":
            groups[_MISSING] = frozenset(var.missing)
        return {path: group for path, group in groups.items() if _is_news(state.told, path, group)}


def _is_news(
    known: Mapping[str, frozenset[int] | None], path: str, group: frozenset[int] | None
) -> bool:
    return path not in known or (group is not None and not group <= (known[path] or frozenset()))


def _conclude(var: Compared, cell: str, state: _State, news: Mapping[str, object]) -> Concluded:
    part = replace(var, leaves=tuple(leaf for leaf in var.leaves if leaf.path in news))
    detail = sentence(part) or f"missing on {ranks(var.missing)}"
    # It may have differed for longer if it was not known to be equal at the last comparison.
    since = (
        "has differed between ranks since"
        if {state.equal.get(path) for path in news} == {state.last}
        else "differs between ranks after"
    )
    is_wrong = any(group is not None for group in news.values())
    how = f"{since} {cell}" if cell else "already differs between ranks"
    text = f"`{var.name}` {how}: {detail}"
    return Concluded(kind=DRIFT, sentence=text, ranks=part.deviating, wrong=is_wrong)
