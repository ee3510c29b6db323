"""An all_reduce of ranks on several hosts: in each host's memory first, then between the hosts.

A rank reduces its share of what its host's ranks have, and then with those that have the same share
on the other hosts. So each value crosses the network once for a host, not once for a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Fold = Callable[[Tensor], Tensor]
Swap = Callable[[Mapping[int, Tensor], Mapping[int, Tensor]], None]


def same_share(group: Sequence[int], rank: int, ranks_here: int) -> list[int]:
    """The ranks of a group that have this rank's share, one on each host; empty unless the group
    has equally many, and several, ranks on each of several hosts."""
    hosts: defaultdict[int, list[int]] = defaultdict(list)
    for each in group:
        hosts[each // ranks_here].append(each)
    own = hosts[rank // ranks_here]
    if len(hosts) < 2 or len(own) < 2 or {*map(len, hosts.values())} != {len(own)}:
        return []
    share = own.index(rank)
    return [ranks[share] for ranks in hosts.values()]


class Peers:
    """The ranks with the same share, this one among them. `swap` sends tensors to ranks, and fills
    others with what they send."""

    def __init__(self, ranks: Sequence[int], rank: int, swap: Swap) -> None:
        self._ranks = ranks
        self._me = ranks.index(rank)
        self._swap = swap

    def finish(self, share: Tensor, fold: Fold) -> Tensor:
        """What the hosts have made of their shares, folded: equal, bit for bit, on all ranks."""
        hosts = len(self._ranks)
        if hosts == 2:  # as many bytes as below, in one step
            return fold(self._exchange([share] * hosts))
        missing = -share.numel() % hosts
        padded = torch.nn.functional.pad(share, (0, missing)) if missing else share
        finished = fold(self._exchange(padded.view(hosts, -1).unbind()))
        return self._exchange([finished] * hosts).view(-1)[: share.numel()]

    def _exchange(self, outgoing: Sequence[Tensor]) -> Tensor:
        """Send one to each peer; the rows that they send here, in their order."""
        mine = outgoing[self._me]
        rows = mine.new_empty(len(self._ranks), mine.numel())
        rows[self._me] = mine
        others = [(i, peer) for i, peer in enumerate(self._ranks) if i != self._me]
        self._swap({peer: outgoing[i] for i, peer in others}, {peer: rows[i] for i, peer in others})
        return rows
