"""An all_reduce of ranks on several hosts: in each host's memory first, then between the hosts.

A rank reduces its share of what its host's ranks have, exchanges it with those that have the same
share on the other hosts, and gives the result to its own host's ranks. So each value crosses the
network once for a host, not once for a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from xla_nb.simulation.memory import Walk

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


class Levels:
    """`walk` is that of this host's ranks of the group, `peers` those with this rank's share, and
    `swap` sends tensors to ranks and fills others with what they send."""

    def __init__(self, walk: Walk, peers: Sequence[int], rank: int, swap: Swap) -> None:
        self._walk = walk
        self._peers = peers
        self._me = peers.index(rank)
        self._swap = swap

    def all_reduce(self, flat: Tensor, fold: Fold, finish: Fold) -> Tensor:
        """The numbers of all ranks of the group, folded into one: `fold` for those of one host,
        `finish` for what hosts have made of theirs. Equal, bit for bit, on all ranks."""
        share = fold(self._walk.deal(_rows(flat, self._walk.ranks)))
        pieces = _rows(share, len(self._peers))
        received = torch.empty_like(pieces)
        self._exchange(list(pieces), received)
        finished = torch.empty_like(pieces)
        self._exchange([finish(received)] * len(self._peers), finished)
        return self._walk.gather(finished.view(-1)[: share.numel()]).view(-1)[: flat.numel()]

    def _exchange(self, outgoing: Sequence[Tensor], rows: Tensor) -> None:
        """Send one to each peer, and fill the rows with what each of them sends here."""
        rows[self._me] = outgoing[self._me]
        others = [(i, peer) for i, peer in enumerate(self._peers) if i != self._me]
        self._swap({peer: outgoing[i] for i, peer in others}, {peer: rows[i] for i, peer in others})


def _rows(flat: Tensor, count: int) -> Tensor:
    """So many rows of equal length, the last one filled up with zeros."""
    missing = -flat.numel() % count
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(count, -1)
