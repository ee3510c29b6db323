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

#: different             some ranks have another value than most
#: not on all            some ranks do not have it; those that have it agree
#: no majority           there is no value that most ranks have, by design or not
#: pending               a rank has only recorded it; ranks with a value agree
#: not compared          it cannot be compared, or there was no time; the rest agrees
#: sharded               each rank has its part, by design; the rest agrees
#: equal except for NaN  the same, with NaN in the same places
#: equal                 all ranks have the same value
#: alone                 there is only one rank
Verdict = Literal[
    "different", "not on all", "no majority", "pending", "not compared", "sharded",
    "equal except for NaN", "equal", "alone",
]  # fmt: skip
_ORDER: tuple[Verdict, ...] = get_args(Verdict)  # the most important first
_MAX_LEAVES, _MAX_GROUPS = 3, 4  # leaves and groups of ranks listed individually
_MAX_LENGTH = 40  # characters of a value or a type
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
        total = sum(len(one.ranks) for one in self.groups) + len(self.missing) + len(self.unknown)
        largest = self.groups[0].ranks if self.groups else ()
        return largest if 2 * len(largest) > total else ()

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
        return "equal except for NaN" if self.groups[0].leaf.nans else "equal"

    @property
    def pending(self) -> tuple[int, ...]:
        """The ranks that have only recorded it."""
        return tuple(rank for rank, leaf in self.unknown.items() if leaf.state == "pending")

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
        deviations = Counter(rank for leaf in self.leaves for rank in leaf.deviating)
        return self.by_rank[min(self.by_rank, key=lambda rank: (deviations[rank], rank))]

    @property
    def deviating(self) -> tuple[int, ...]:
        return tuple(sorted({rank for leaf in self.leaves for rank in leaf.deviating}))


def compare(variables: Mapping[int, Sequence[Variable]]) -> list[Compared]:
    """Compare every variable that any rank has; sorted by name, those that differ first.

    variables: each rank's descriptions of its variables (`rank.variables.describe`)."""
    by_name: dict[str, dict[int, Variable]] = {}
    for rank in sorted(variables):
        for variable in variables[rank]:
            by_name.setdefault(variable.name, {})[rank] = variable
    results = [_compare(name, by_rank, sorted(variables)) for name, by_rank in by_name.items()]
    first: tuple[Verdict, ...] = ("different", "no majority")
    return sorted(results, key=lambda one: ((*first, one.verdict).index(one.verdict), one.name))


def _compare(name: str, by_rank: Mapping[int, Variable], ranks: Sequence[int]) -> Compared:
    by_path: dict[str, dict[int, Leaf]] = {}
    for rank, variable in by_rank.items():
        for leaf in variable.leaves:
            by_path.setdefault(leaf.path, {})[rank] = leaf
    leaves = [_compare_leaf(path, leaf_by_rank, by_rank) for path, leaf_by_rank in by_path.items()]
    leaves.sort(key=lambda leaf: _ORDER.index(leaf.verdict))
    missing = tuple(rank for rank in ranks if rank not in by_rank)
    verdicts: set[Verdict] = {leaf.verdict for leaf in leaves}
    if missing:
        verdicts.add("not on all")
    worst = min(verdicts, key=_ORDER.index)
    return Compared(name, "alone" if len(ranks) == 1 else worst, by_rank, missing, tuple(leaves))


def _compare_leaf(
    path: str, leaf_by_rank: Mapping[int, Leaf], by_rank: Mapping[int, Variable]
) -> ComparedLeaf:
    known = {
        rank: (leaf.kind, leaf.shape, leaf.dtype, leaf.digest)
        for rank, leaf in leaf_by_rank.items()
        if leaf.state == "known"
    }
    same = sorted(alike(known).values(), key=lambda group: (-len(group), group))
    groups = tuple(Group(group, leaf_by_rank[group[0]]) for group in same)
    unknown = {rank: leaf for rank, leaf in leaf_by_rank.items() if rank not in known}
    return ComparedLeaf(path, groups, _missing(leaf_by_rank, by_rank), unknown)


def _missing(leaf_by_rank: Mapping[int, Leaf], by_rank: Mapping[int, Variable]) -> tuple[int, ...]:
    """The ranks without this leaf, except those that had no time for all leaves."""
    return tuple(
        rank
        for rank, variable in by_rank.items()
        if rank not in leaf_by_rank and not any(leaf.state == "late" for leaf in variable.leaves)
    )


# ---------------------------------------------------------------- in words


def verdict(comparison: Compared) -> str:
    """A short verdict: `equal`, `rank 2 differs`, `only on rank 0`."""
    if comparison.verdict in ("different", "no majority"):
        leaves = [leaf for leaf in comparison.leaves if leaf.verdict == comparison.verdict]
        pending = {rank for leaf in leaves for rank in leaf.pending}
        text = _differ(comparison.deviating)
        return f"{text}, pending on {ranks(pending)}" if pending else text
    if comparison.verdict == "not on all":
        return f"only on {ranks(comparison.by_rank)}"
    if comparison.verdict == "pending":
        return f"pending on {ranks({rank for leaf in comparison.leaves for rank in leaf.unknown})}"
    if comparison.verdict == "not compared":
        is_partial = any(leaf.verdict != "not compared" for leaf in comparison.leaves if leaf.path)
        return "not compared in full" if is_partial else "not compared"
    return "" if comparison.verdict == "alone" else comparison.verdict


def _differ(numbers: Sequence[int]) -> str:
    """`rank 2 differs`; for no ranks `differs by rank`, which may be intended."""
    if not numbers:
        return "differs by rank"
    return f"{ranks(numbers)} {'differs' if len(numbers) == 1 else 'differ'}"


def sentence(comparison: Compared) -> str:
    """`rank 2 (fc1.weight: norm 1.41 (ranks 0, 1), 1.38 (rank 2))`, for a variable that differs;
    without ranks if there is no majority."""
    different = [leaf for leaf in comparison.leaves if leaf.verdict in ("different", "no majority")]
    clauses = [f"{_label(leaf)}{', '.join(_differences(leaf))}" for leaf in different[:_MAX_LEAVES]]
    omitted = len(different) - len(clauses)
    clauses += [f"{omitted:,} more {'differs' if omitted == 1 else 'differ'}"] if omitted else []
    text = "; ".join(clauses)
    return f"{ranks(comparison.deviating)} ({text})" if comparison.deviating else text


def details(comparison: Compared) -> list[str]:
    """A line for each leaf on which ranks do not agree, with all known details."""
    return [line for line in map(_detail, comparison.leaves) if line]


def _detail(leaf: ComparedLeaf) -> str:
    name = _label(leaf)
    if leaf.verdict in ("different", "no majority"):
        head = [_differ(leaf.deviating)] if leaf.path else []  # else the variable's verdict says it
        clauses = [*head, *_differences(leaf)]
        clauses += [_not_computed(leaf)] if leaf.pending else []
        return f"{name}{'; '.join(clauses)}"
    if leaf.verdict == "equal except for NaN":
        return f"{name}{several(leaf.groups[0].leaf.nans, 'element')} NaN on every rank"
    if leaf.verdict == "pending":
        return f"{name}{_not_computed(leaf)}"
    if leaf.verdict == "not compared":
        return f"{name}{next(iter(leaf.unknown.values())).why}"
    return ""


def _not_computed(leaf: ComparedLeaf) -> str:
    return f"not computed yet on {ranks(leaf.pending)}"


def _label(leaf: ComparedLeaf) -> str:
    path = shortened(leaf.path.removeprefix("."), 60)
    return f"{path}: " if path else ""


def _differences(leaf: ComparedLeaf) -> list[str]:
    """The differences, coarsest first: existence, type, shape, dtype, value; for elements, NaN
    counts and norms."""
    if leaf.missing:
        return [f"missing on {ranks(leaf.missing)}"]
    forms = (
        ("type", lambda group: group.leaf.kind),
        ("shape", lambda group: str(group.leaf.shape)),
        ("dtype", lambda group: group.leaf.dtype),
    )
    texts = [text for label, form in forms if (text := _join_groups(leaf.groups, label, form))]
    if texts:
        return texts
    if any(group.leaf.value for group in leaf.groups):
        return [_join_groups(leaf.groups, "", lambda group: group.leaf.value or group.leaf.kind)]
    nans = _join_groups(leaf.groups, "NaN elements", lambda group: f"{group.leaf.nans:,}")
    texts = [text for text in (nans, _norms(leaf)) if text]
    elements = all(one.leaf.shape is not None or one.leaf.norm is not None for one in leaf.groups)
    return texts or ["different elements" if elements else "different contents"]


def _norms(leaf: ComparedLeaf) -> str:
    """Norms of tensors and arrays only: a list of numbers is not a vector."""
    leaves = [group.leaf for group in leaf.groups]
    if any(x.shape is None or x.norm is None or not x.finite for x in leaves):
        return ""
    for digits in _DIGITS:
        if text := _join_groups(leaf.groups, "norm", partial(_norm, digits)):
            return text
    return ""


def _norm(digits: int, group: Group) -> str:
    return f"{group.leaf.norm:.{digits}g}"


def _join_groups(groups: Sequence[Group], label: str, form: Callable[[Group], str]) -> str:
    """`shape (4, 3) (ranks 0–2), (5, 3) (rank 3)`; "" if it is the same on all ranks."""
    by_text: dict[str, list[int]] = {}
    for group in groups:
        by_text.setdefault(in_one_line(form(group), _MAX_LENGTH), []).extend(group.ranks)
    if len(by_text) < 2:
        return ""
    clauses = [f"{text} ({ranks(numbers)})" for text, numbers in by_text.items()]
    omitted = len(clauses) - _MAX_GROUPS
    clauses[_MAX_GROUPS:] = [f"{omitted} more"] if omitted > 0 else []
    return f"{label} {', '.join(clauses)}".strip()
