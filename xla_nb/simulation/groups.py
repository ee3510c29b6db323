"""Check the groups of ranks passed to collectives: refuse what XLA refuses, but at the call.

torch_xla or XLA would raise only when the graph is compiled, or not at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import index

from xla_nb.wording import several

Groups = Sequence[Sequence[int]]


def find_group(groups: Groups, rank: int, size: int) -> list[int]:
    """The ranks of this rank's group."""
    if not groups:
        return list(range(size))
    check(groups, size)
    for group in groups:
        if rank in group:
            return [int(other) for other in group]
    raise ValueError(f"Rank {rank} is in none of the groups {plain(groups)}.")


def ranks_to_meet(groups: Groups, group: Sequence[int], size: int) -> Sequence[int]:
    """The ranks that must meet: all in the groups, except those in a group of one."""
    if len(group) == 1:
        return group
    participants = {int(rank) for members in groups if len(members) > 1 for rank in members}
    return sorted(participants) or range(size)


def same_share(group: Sequence[int], rank: int, ranks_here: int) -> list[int]:
    """The ranks of a group that reduce the same share as this rank, one on each host; empty unless
    the group spans several hosts and has the same number of ranks, at least 2, on each."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for other in group:
        hosts[other // ranks_here].append(other)
    local = hosts[rank // ranks_here]
    if len(hosts) < 2 or len(local) < 2 or {*map(len, hosts.values())} != {len(local)}:
        return []
    position = local.index(rank)
    return [members[position] for members in hosts.values()]


def check(groups: Groups, size: int) -> None:
    _check_list("groups", groups)
    counts = Counter(index(rank) for group in groups for rank in group)
    for rank, count in counts.items():
        check_rank("groups", rank, size)
        if count > 1:
            raise ValueError(f"groups: rank {rank} appears {count} times in {plain(groups)}.")
    if not all(len(group) for group in groups):
        raise ValueError(f"groups: {plain(groups)} contains an empty group.")


def check_pairs(pairs: Groups, size: int) -> None:
    """Check the (source, target) pairs of a collective_permute."""
    _check_list("pairs", pairs)
    for side in zip(*pairs, strict=True):
        for rank in side:
            check_rank("collective_permute", index(rank), size)
        if len(set(side)) < len(pairs):
            raise ValueError(
                f"collective_permute: {list(pairs)} names a source or a target twice. "
                "Name each at most once."
            )


def check_rank(name: str, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"{name}: rank {rank} is out of range for {several(size, 'rank')}.")


def plain(groups: Groups) -> str:
    return str([[int(rank) for rank in group] for group in groups]).replace(" ", "")


def _check_list(name: str, ranks: object) -> None:
    if not isinstance(ranks, list):
        raise TypeError(
            f"{name} must be a list (torch_xla accepts only lists), not {type(ranks).__name__}."
        )
