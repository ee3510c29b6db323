"""Compare variables between ranks, from their descriptions, and put the result into words:
`rank 2 (fc1.weight: norm 1.41 (ranks 0, 1), 1.38 (rank 2))`. Pure.

Digests show which ranks differ, norms by how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from xla_nb.monitor.stacks import alike
from xla_nb.rank.variables import Leaf, Variable
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
APART: tuple[Verdict, ...] = "different", "no majority"
_MAX_LEAVES, _MAX_GROUPS = 3, 4  # leaves and groups of ranks listed individually
_MAX_LENGTH = 40  # characters of a value or a type
_DIGITS = (6, 9, 12, 17)  # of norms: as few as distinguish them


@dataclass(frozen=True)
class ComparedLeaf:
    """A leaf over all ranks.

    known    its description on each rank that knows its value
    unknown  its description on each rank that does not
    missing  ranks that have the variable but not the leaf
    """

    path: str
    known: Mapping[int, Leaf]
    unknown: Mapping[int, Leaf]
    missing: tuple[int, ...]

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """The ranks that know its value, grouped by value, the largest group first. A shard's
        elements do not count: they differ by design."""
        values = {
            rank: (leaf.kind, leaf.shape, leaf.dtype, "" if leaf.part else leaf.digest)
            for rank, leaf in self.known.items()
        }
        return sorted(alike(values).values(), key=len, reverse=True)

    @property
    def deviating(self) -> tuple[int, ...]:
        """The ranks that differ from the majority: the largest group, if it is more than half of
        the ranks that have the variable. None if there is no majority."""
        majority = self.groups[0] if self.groups else ()
        others = {*self.known, *self.missing}.difference(majority)
        return tuple(sorted(others)) if len(majority) > len(others) + len(self.unknown) else ()

    @property
    def pending(self) -> tuple[int, ...]:
        """The ranks that have only recorded it."""
        return tuple(rank for rank, leaf in self.unknown.items() if leaf.state == "pending")

    @cached_property
    def verdict(self) -> Verdict:
        if len(self.groups) > 1 or self.missing:
            return "different" if self.deviating else "no majority"
        if any(leaf.part for leaf in self.known.values()):
            return "sharded"
        if self.unknown:
            return "pending" if self.pending else "not compared"
        return "equal except for NaN" if self.known[self.groups[0][0]].nans else "equal"


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
        return self.by_rank[min(self.by_rank, key=lambda rank: deviations[rank])]

    @property
    def deviating(self) -> tuple[int, ...]:
        return tuple(sorted({rank for leaf in self.leaves for rank in leaf.deviating}))

    @property
    def pending(self) -> set[int]:
        """The ranks that have only recorded a part of it."""
        return {rank for leaf in self.leaves for rank in leaf.pending}


def compare(variables: Mapping[int, Sequence[Variable]]) -> list[Compared]:
    """Compare every variable that any rank has; sorted by name, those that differ first.

    variables: each rank's descriptions of its variables (`rank.variables.describe`)."""
    by_name: dict[str, dict[int, Variable]] = {}
    for rank in sorted(variables):
        for variable in variables[rank]:
            by_name.setdefault(variable.name, {})[rank] = variable
    results = [_compare(name, by_rank, sorted(variables)) for name, by_rank in by_name.items()]
    return sorted(results, key=lambda one: ((*APART, one.verdict).index(one.verdict), one.name))


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
    known = {rank: leaf for rank, leaf in leaf_by_rank.items() if leaf.state == "known"}
    unknown = {rank: leaf for rank, leaf in leaf_by_rank.items() if rank not in known}
    # Except those that had no time for all leaves.
    missing = tuple(
        rank
        for rank, variable in by_rank.items()
        if rank not in leaf_by_rank and not any(leaf.state == "late" for leaf in variable.leaves)
    )
    return ComparedLeaf(path, known, unknown, missing)


# ---------------------------------------------------------------- in words


def verdict(comparison: Compared) -> str:
    """A short verdict: `equal`, `rank 2 differs`, `only on rank 0`."""
    pending = f"pending on {ranks(comparison.pending)}" if comparison.pending else ""
    if comparison.verdict in APART:
        text = _differ(comparison.deviating)
        return f"{text}, {pending}" if pending else text
    if comparison.verdict == "not on all":
        return f"only on {ranks(comparison.by_rank)}"
    if comparison.verdict == "pending":
        return pending
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
    different = [leaf for leaf in comparison.leaves if leaf.verdict in APART]
    clauses = [f"{_label(leaf)}{', '.join(_differences(leaf))}" for leaf in different[:_MAX_LEAVES]]
    omitted = len(different) - len(clauses)
    clauses += [f"{omitted:,} more {'differs' if omitted == 1 else 'differ'}"] if omitted else []
    text = "; ".join(clauses)
    return f"{ranks(comparison.deviating)} ({text})" if comparison.deviating else text


def details(comparison: Compared) -> list[str]:
    """A line for each leaf on which ranks do not agree, with all known details."""
    is_alone = comparison.verdict == "alone"  # with nothing to agree with
    leaves = [leaf for leaf in comparison.leaves if not is_alone or leaf.pending]
    return [line for line in map(_detail, leaves) if line]


def _detail(leaf: ComparedLeaf) -> str:
    clauses = []
    if leaf.verdict in APART:
        # Of a variable without parts, its verdict names the ranks.
        clauses += [_differ(leaf.deviating)] if leaf.path else []
        clauses += _differences(leaf)
    if leaf.verdict == "equal except for NaN":
        nans = next(iter(leaf.known.values())).nans
        clauses.append(f"{several(nans, 'element')} NaN on every rank")
    if leaf.verdict == "not compared":
        clauses.append(next(iter(leaf.unknown.values())).why)
    if leaf.pending:
        clauses.append(f"not computed yet on {ranks(leaf.pending)}")
    return f"{_label(leaf)}{'; '.join(clauses)}" if clauses else ""


def _label(leaf: ComparedLeaf) -> str:
    path = shortened(leaf.path.removeprefix("."), 60)
    return f"{path}: " if path else ""


def _differences(leaf: ComparedLeaf) -> list[str]:
    """The differences, coarsest first: existence, type, shape, dtype, value; for elements, NaN
    counts and norms."""
    if leaf.missing:
        return [f"missing on {ranks(leaf.missing)}"]
    known = leaf.known.values()
    has_elements = all(x.shape is not None or x.norm is not None for x in known)
    norms = ""
    # Of tensors and arrays only: a list of numbers is not a vector.
    if all(x.shape is not None and x.norm is not None and x.finite for x in known):
        distinct = (n for n in _DIGITS if len({f"{x.norm:.{n}g}" for x in known}) > 1)
        digits = next(distinct, 0)
        norms = _by_text(leaf, "norm", lambda x: f"{x.norm:.{digits}g}")
    descriptions = [
        _by_text(leaf, "type", lambda x: x.kind),
        _by_text(leaf, "shape", lambda x: str(x.shape)),
        _by_text(leaf, "dtype", lambda x: x.dtype),
    ]
    values = [_by_text(leaf, "", lambda x: x.value)]
    statistics = [_by_text(leaf, "NaN elements", lambda x: f"{x.nans:,}"), norms]
    for differences in (descriptions, values, statistics):
        if any(differences):
            return [text for text in differences if text]
    return ["different elements" if has_elements else "different contents"]


def _by_text(leaf: ComparedLeaf, label: str, form: Callable[[Leaf], str]) -> str:
    """`shape (4, 3) (ranks 0–2), (5, 3) (rank 3)`; "" if it is the same on all ranks."""
    by_text = alike({rank: in_one_line(form(x), _MAX_LENGTH) for rank, x in leaf.known.items()})
    if len(by_text) < 2:
        return ""
    groups = sorted(by_text.items(), key=lambda item: len(item[1]), reverse=True)
    clauses = [f"{text} ({ranks(numbers)})" for text, numbers in groups]
    omitted = len(clauses) - _MAX_GROUPS
    clauses[_MAX_GROUPS:] = [f"{omitted} more"] if omitted > 0 else []
    return f"{label} {', '.join(clauses)}".strip()
