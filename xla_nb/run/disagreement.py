"""How ranks disagree on a variable, in words: `rank 2 (fc1.weight: 128 of 128 elements)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xla_nb.run.comparing import Compared, ComparedLeaf, Group
from xla_nb.run.elements import Difference
from xla_nb.wording import in_one_line, ranks, several, shortened

_LONGEST = 40  # characters of a value or a type
_GROUPS = 4  # that are told one by one
_LEAVES = 3  # that are told in a sentence


def verdict(one: Compared) -> str:
    """`equal`, `rank 2 differs`, `only on rank 0`: short."""
    if one.verdict == "different":
        return _differ(one.deviating)
    if one.verdict == "no majority":
        return _spread(leaf for leaf in one.leaves if leaf.verdict == "no majority")
    if one.verdict == "not on all":
        return f"only on {ranks(one.by_rank)}"
    if one.verdict == "pending":
        return f"pending on {ranks(_unknown(one))}"
    if one.verdict == "not compared":
        compared = any(leaf.verdict != "not compared" for leaf in one.leaves if leaf.path)
        return "equal where compared" if compared else "not compared"
    return "" if one.verdict == "alone" else one.verdict


def _differ(who: Sequence[int]) -> str:
    return f"{ranks(who)} {'differs' if len(who) == 1 else 'differ'}"


def _spread(leaves: Iterable[ComparedLeaf]) -> str:
    """It may be meant so: no rank can be said to be the one that differs."""
    groups = [leaf.groups for leaf in leaves]
    if any(len(group.ranks) > 1 for each in groups for group in each):
        return "no majority"
    return "both ranks differ" if all(len(each) == 2 for each in groups) else "differs by rank"


def _unknown(one: Compared) -> set[int]:
    return {rank for leaf in one.leaves for rank in leaf.unknown}


def sentence(one: Compared) -> str:
    """`rank 2 (fc1.weight: 128 of 128 elements, largest difference 0.31)`, of a different one;
    without ranks where there is no majority."""
    different = [leaf for leaf in one.leaves if leaf.verdict in ("different", "no majority")]
    told = [f"{_named(leaf)}{', '.join(_by_how_much(leaf))}" for leaf in different[:_LEAVES]]
    more = len(different) - len(told)
    told += [f"{more:,} more differ"] if more else []
    whole = "; ".join(told)
    return f"{ranks(one.deviating)} ({whole})" if one.deviating else whole


def details(one: Compared) -> list[str]:
    """A line for each leaf on which ranks do not agree, with all that is known of it."""
    lines = [_places(one), *(_detail(leaf) for leaf in one.leaves)]
    return [line for line in lines if line]


def _places(one: Compared) -> str:
    """The devices, if they are not of the same kind: their numbers may be those of the ranks."""
    kinds: dict[str, list[int]] = {}
    for rank, variable in one.by_rank.items():
        kinds.setdefault(variable.device.partition(":")[0] or "none", []).append(rank)
    told = ", ".join(f"{kind} ({ranks(who)})" for kind, who in kinds.items())
    return f"device {told}" if len(kinds) > 1 else ""


def _detail(leaf: ComparedLeaf) -> str:
    name = _named(leaf)
    if leaf.verdict in ("different", "no majority"):
        told_who = _differ(leaf.deviating) if leaf.deviating else _spread([leaf])
        who = [told_who] if leaf.path else []  # else it is said of the variable
        told = [*who, *_by_how_much(leaf), *_nans(leaf), *_norms(leaf)]
        return f"{name}{'; '.join(told)}"
    if leaf.verdict == "equal but for NaN":
        return f"{name}{several(leaf.groups[0].leaf.nans, 'element')} NaN on every rank"
    if leaf.verdict == "pending":
        waiting = [rank for rank, held in leaf.unknown.items() if held.state == "pending"]
        return f"{name}not computed yet on {ranks(waiting)}"
    if leaf.verdict == "not compared":
        return f"{name}{next(iter(leaf.unknown.values())).why}"
    return ""


def _named(leaf: ComparedLeaf) -> str:
    path = shortened(leaf.path.removeprefix("."), 60)
    return f"{path}: " if path else ""


def _by_how_much(leaf: ComparedLeaf) -> list[str]:
    """What differs, the coarsest first: whether it is there, its type, shape, dtype, elements."""
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
    return _elements(leaf)


def _elements(leaf: ComparedLeaf) -> list[str]:
    known = [group.difference for group in leaf.groups if group.difference is not None]
    if not known:
        first = leaf.groups[0].leaf
        inside = first.shape is None and first.norm is None
        return ["different contents" if inside else "different elements"]
    whys = [one.why for one in known if one.why]
    if whys:
        return [whys[0]]
    most = max(known, key=lambda one: one.count)
    up_to = "up to " if len({one.count for one in known}) > 1 else ""
    counts = f"{up_to}{most.count:,} of {several(most.of, 'element')}"
    return [counts, *_largest(known)]


def _largest(known: Iterable[Difference]) -> list[str]:
    gaps = [one.largest for one in known if one.largest is not None]
    return [f"largest difference {max(gaps):.3g}"] if gaps else []


def _nans(leaf: ComparedLeaf) -> list[str]:
    told = _each(leaf.groups, "NaN elements", lambda group: f"{group.leaf.nans:,}")
    return [told] if told else []


def _norms(leaf: ComparedLeaf) -> list[str]:
    if any(group.leaf.value or group.leaf.norm is None for group in leaf.groups):
        return []
    told = _each(leaf.groups, "norm", lambda group: f"{group.leaf.norm:.6g}")
    return [told] if told else []


def _each(groups: Sequence[Group], label: str, form: Callable[[Group], str]) -> str:
    """`shape (4, 3) (ranks 0–2), (5, 3) (rank 3)`; "" if it is the same on all ranks."""
    alike: dict[str, list[int]] = {}
    for group in groups:
        alike.setdefault(in_one_line(form(group), _LONGEST), []).extend(group.ranks)
    if len(alike) < 2:
        return ""
    told = [f"{text} ({ranks(who)})" for text, who in alike.items()]
    more = len(told) - _GROUPS
    told[_GROUPS:] = [f"{more} more"] if more > 0 else []
    return f"{label} {', '.join(told)}".strip()
