"""Compare variables between ranks, from their descriptions, and put the result into words:
`rank 2 (fc1.weight: norm 1.41 (ranks 0, 1), 1.38 (rank 2))`. Pure.

Digests show which ranks differ, norms by how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, get_args

from xla_nb.rank.variables import Leaf, Variable
from xla_nb.run.stacks import alike
from xla_nb.wording import in_one_line, ranks, several, shortened

#: different         some ranks have another value than most
#: not on all        some ranks do not have it; those that have it agree
#: no majority       there is no value that most ranks have, by design or not
#: pending           a rank has only recorded it; ranks with a value agree
#: not compared      it cannot be compared, or there was no time; the rest agrees
#: sharded           each rank has its part, by design; the rest agrees
#: equal but for NaN the same, NaN in the same places
#: equal             all ranks have the same value
#: alone             there is only one rank
Verdict = Literal[
    "different", "not on all", "no majority", "pending", "not compared", "sharded",
    "equal but for NaN", "equal", "alone",
]  # fmt: skip
_ORDER: tuple[Verdict, ...] = get_args(Verdict)  # the most important first
_IN_A_SENTENCE, _GROUPS_TOLD = 3, 4  # leaves and groups of ranks listed individually
_LONGEST = 40  # characters of a value or a type
_DIGITS = (6, 9, 12, 17)  # of norms: as few as distinguish them


@dataclass(frozen=True)
class Group:
    """Ranks with the same value."""

    ranks: tuple[int, ...]
    leaf: Leaf


@dataclass(frozen=True)
class ComparedLeaf:
    """A leaf over all ranks.

    groups   ranks that know its value, grouped by value, the largest group first
    missing  ranks that have the variable but not the leaf
    unknown  ranks that do not know its elements, with their descriptions
    """

    path: str
    groups: tuple[Group, ...]
    missing: tuple[int, ...]
    unknown: Mapping[int, Leaf]

    @property
    def majority(self) -> tuple[int, ...]:
        """The largest group, if it is more than half of the ranks that have the variable."""
        every = sum(len(one.ranks) for one in self.groups) + len(self.missing) + len(self.unknown)
        largest = self.groups[0].ranks if self.groups else ()
        return largest if 2 * len(largest) > every else ()

    @cached_property
    def verdict(self) -> Verdict:
        if any(group.leaf.part for group in self.groups):
            return "sharded"
        if len(self.groups) > 1 or self.missing:
            return "different" if self.majority else "no majority"
        if self.pending:
            return "pending"
        if self.unknown:
            return "not compared"
        return "equal but for NaN" if self.groups[0].leaf.nans else "equal"

    @property
    def pending(self) -> tuple[int, ...]:
        """The ranks that have only recorded it."""
        return tuple(rank for rank, held in self.unknown.items() if held.state == "pending")

    @property
    def deviating(self) -> tuple[int, ...]:
        """The ranks that differ from the majority; none if there is none."""
        if self.verdict != "different":
            return ()
        everyone = {*self.missing, *(rank for group in self.groups for rank in group.ranks)}
        return tuple(sorted(everyone.difference(self.majority)))


@dataclass(frozen=True)
class Compared:
    """A variable over all ranks.

    by_rank    its description on each rank that has it
    missing    ranks that do not have it
    leaves     its leaves, those that differ between ranks first
    """

    name: str
    verdict: Verdict
    by_rank: Mapping[int, Variable]
    missing: tuple[int, ...]
    leaves: tuple[ComparedLeaf, ...]

    @property
    def usual(self) -> Variable:
        """The variable on the rank that differs least often."""
        odd = Counter(rank for leaf in self.leaves for rank in leaf.deviating)
        return self.by_rank[min(self.by_rank, key=lambda rank: (odd[rank], rank))]

    @property
    def deviating(self) -> tuple[int, ...]:
        return tuple(sorted({rank for leaf in self.leaves for rank in leaf.deviating}))


def compare(told: Mapping[int, Sequence[Variable]]) -> list[Compared]:
    """Compare every variable that any rank has; sorted by name, those that differ first.

    told: each rank's descriptions of its variables (`rank.variables.describe`)."""
    by_name: dict[str, dict[int, Variable]] = {}
    for rank in sorted(told):
        for variable in told[rank]:
            by_name.setdefault(variable.name, {})[rank] = variable
    found = [_compared(name, by_rank, sorted(told)) for name, by_rank in by_name.items()]
    first: tuple[Verdict, ...] = ("different", "no majority")
    return sorted(found, key=lambda one: ((*first, one.verdict).index(one.verdict), one.name))


def _compared(name: str, by_rank: Mapping[int, Variable], ranks: Sequence[int]) -> Compared:
    by_path: dict[str, dict[int, Leaf]] = {}
    for rank, variable in by_rank.items():
        for leaf in variable.leaves:
            by_path.setdefault(leaf.path, {})[rank] = leaf
    leaves = [_compared_leaf(path, found, by_rank) for path, found in by_path.items()]
    leaves.sort(key=lambda leaf: _ORDER.index(leaf.verdict))
    missing = tuple(rank for rank in ranks if rank not in by_rank)
    verdicts: set[Verdict] = {leaf.verdict for leaf in leaves}
    if missing:
        verdicts.add("not on all")
    worst = min(verdicts, key=_ORDER.index)
    return Compared(name, "alone" if len(ranks) == 1 else worst, by_rank, missing, tuple(leaves))


def _compared_leaf(
    path: str, found: Mapping[int, Leaf], by_rank: Mapping[int, Variable]
) -> ComparedLeaf:
    known = {
        rank: (leaf.kind, leaf.shape, leaf.dtype, leaf.digest)
        for rank, leaf in found.items()
        if leaf.state == "known"
    }
    sets = sorted(alike(known).values(), key=lambda who: (-len(who), who))
    groups = tuple(Group(who, found[who[0]]) for who in sets)
    unknown = {rank: leaf for rank, leaf in found.items() if rank not in known}
    return ComparedLeaf(path, groups, _missing(found, by_rank), unknown)


def _missing(found: Mapping[int, Leaf], by_rank: Mapping[int, Variable]) -> tuple[int, ...]:
    """The ranks without this leaf, except those that had no time for all leaves."""
    return tuple(
        rank
        for rank, variable in by_rank.items()
        if rank not in found and not any(leaf.state == "late" for leaf in variable.leaves)
    )


# ---------------------------------------------------------------- in words


def verdict(one: Compared) -> str:
    """A short verdict: `equal`, `rank 2 differs`, `only on rank 0`."""
    if one.verdict in ("different", "no majority"):
        some = [leaf for leaf in one.leaves if leaf.verdict == one.verdict]
        pending = {rank for leaf in some for rank in leaf.pending}
        told = _differ(one.deviating)
        return f"{told}, pending on {ranks(pending)}" if pending else told
    if one.verdict == "not on all":
        return f"only on {ranks(one.by_rank)}"
    if one.verdict == "pending":
        return f"pending on {ranks({rank for leaf in one.leaves for rank in leaf.unknown})}"
    if one.verdict == "not compared":
        compared = any(leaf.verdict != "not compared" for leaf in one.leaves if leaf.path)
        return "not compared in full" if compared else "not compared"
    return "" if one.verdict == "alone" else one.verdict


def _differ(who: Sequence[int]) -> str:
    """`rank 2 differs`; for no ranks `differs by rank`, which may be intended."""
    if not who:
        return "differs by rank"
    return f"{ranks(who)} {'differs' if len(who) == 1 else 'differ'}"


def sentence(one: Compared) -> str:
    """`rank 2 (fc1.weight: norm 1.41 (ranks 0, 1), 1.38 (rank 2))`, for a variable that differs;
    without ranks if there is no majority."""
    different = [leaf for leaf in one.leaves if leaf.verdict in ("different", "no majority")]
    told = [f"{_named(leaf)}{', '.join(_by_how_much(leaf))}" for leaf in different[:_IN_A_SENTENCE]]
    more = len(different) - len(told)
    told += [f"{more:,} more {'differs' if more == 1 else 'differ'}"] if more else []
    whole = "; ".join(told)
    return f"{ranks(one.deviating)} ({whole})" if one.deviating else whole


def details(one: Compared) -> list[str]:
    """A line for each leaf on which ranks do not agree, with all known details."""
    return [line for line in map(_detail, one.leaves) if line]


def _detail(leaf: ComparedLeaf) -> str:
    name = _named(leaf)
    if leaf.verdict in ("different", "no majority"):
        who = [_differ(leaf.deviating)] if leaf.path else []  # else the variable's verdict says it
        told = [*who, *_by_how_much(leaf)]
        told += [_not_computed(leaf)] if leaf.pending else []
        return f"{name}{'; '.join(told)}"
    if leaf.verdict == "equal but for NaN":
        return f"{name}{several(leaf.groups[0].leaf.nans, 'element')} NaN on every rank"
    if leaf.verdict == "pending":
        return f"{name}{_not_computed(leaf)}"
    if leaf.verdict == "not compared":
        return f"{name}{next(iter(leaf.unknown.values())).why}"
    return ""


def _not_computed(leaf: ComparedLeaf) -> str:
    return f"not computed yet on {ranks(leaf.pending)}"


def _named(leaf: ComparedLeaf) -> str:
    path = shortened(leaf.path.removeprefix("."), 60)
    return f"{path}: " if path else ""


def _by_how_much(leaf: ComparedLeaf) -> list[str]:
    """The differences, coarsest first: existence, type, shape, dtype, value; for elements, NaN
    counts and norms."""
    if leaf.missing:
        return [f"missing on {ranks(leaf.missing)}"]
    forms = (
        ("type", lambda group: group.leaf.kind),
        ("shape", lambda group: str(group.leaf.shape)),
        ("dtype", lambda group: group.leaf.dtype),
    )
    told = [text for label, form in forms if (text := _each(leaf.groups, label, form))]
    if told:
        return told
    if any(group.leaf.value for group in leaf.groups):
        return [_each(leaf.groups, "", lambda group: group.leaf.value or group.leaf.kind)]
    told = [text for text in (_nans(leaf), _norms(leaf)) if text]
    elements = all(one.leaf.shape is not None or one.leaf.norm is not None for one in leaf.groups)
    return told or ["different elements" if elements else "different contents"]


def _nans(leaf: ComparedLeaf) -> str:
    return _each(leaf.groups, "NaN elements", lambda group: f"{group.leaf.nans:,}")


def _norms(leaf: ComparedLeaf) -> str:
    """Norms of tensors and arrays only: a list of numbers is not a vector."""
    held = [one.leaf for one in leaf.groups]
    if any(one.shape is None or one.norm is None or not one.finite for one in held):
        return ""
    for digits in _DIGITS:
        if told := _each(leaf.groups, "norm", partial(_norm, digits)):
            return told
    return ""


def _norm(digits: int, group: Group) -> str:
    return f"{group.leaf.norm:.{digits}g}"


def _each(groups: Sequence[Group], label: str, form: Callable[[Group], str]) -> str:
    """`shape (4, 3) (ranks 0–2), (5, 3) (rank 3)`; "" if it is the same on all ranks."""
    found: dict[str, list[int]] = {}
    for group in groups:
        found.setdefault(in_one_line(form(group), _LONGEST), []).extend(group.ranks)
    if len(found) < 2:
        return ""
    told = [f"{text} ({ranks(who)})" for text, who in found.items()]
    more = len(told) - _GROUPS_TOLD
    told[_GROUPS_TOLD:] = [f"{more} more"] if more > 0 else []
    return f"{label} {', '.join(told)}".strip()
