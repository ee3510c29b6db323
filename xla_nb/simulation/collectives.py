"""The operations between ranks, on CPU tensors: reduce, gather, scatter, exchange, permute.

Small values travel with the meeting: a few kilobytes, or more at the board of a host. For larger
values each rank reduces a share, through memory shared by the ranks of a host, or in pieces at
meetings. Results are equal, bit for bit, on all ranks of a group. CPU arithmetic only: XLA and
torch_xla's names are in `torch_names`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._dtype_abbrs import dtype_abbrs

from xla_nb.simulation import groups as grouping
from xla_nb.simulation.board import Buffer
from xla_nb.simulation.groups import Groups
from xla_nb.simulation.memory import SharedMemory, Walk
from xla_nb.simulation.packs import Pack, collect_results, make_packs, view
from xla_nb.simulation.programs import Programs
from xla_nb.wording import listed

_PIECE = 1 << 20  # bytes of a tensor that ranks of several hosts exchange at a time


def show(tensor: Tensor) -> str:
    """A tensor's type and shape, abbreviated: f32[4,8]."""
    return f"{dtype_abbrs[tensor.dtype]}[{','.join(map(str, tensor.shape))}]"


@dataclass(frozen=True)
class Reduction:
    """How values are combined: the kind, and a final factor."""

    kind: str
    scale: float = 1.0

    def __str__(self) -> str:
        scale = float(self.scale)  # in full: each rank scales a share of the result
        return self.kind if scale == 1.0 else f"{self.kind} scale {scale!r}"

    def check(self, tensors: Sequence[Tensor]) -> None:
        if self.kind not in _FOLDS:
            kinds = listed(map(repr, _FOLDS), "or")
            raise ValueError(f"Unknown reduce type {self.kind!r}. Choose {kinds}.")
        if self.kind in ("and", "or"):
            for tensor in tensors:
                if tensor.is_floating_point() or tensor.is_complex():
                    raise RuntimeError(
                        f"all_reduce {self.kind}: expected a boolean or integer tensor, "
                        f"got {show(tensor)}"
                    )

    def fold(self, rows: Tensor) -> Tensor:
        """Combine the rows of all ranks into one."""
        if rows.dtype == torch.bool:
            folded = rows.any(0) if self.kind in ("sum", "or", "max") else rows.all(0)
        else:
            folded = _FOLDS[self.kind](rows)
        if self.scale != 1.0:
            folded = folded * _factor(self.scale, folded.dtype)
        return folded


_FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "mul": lambda rows: rows.prod(0, dtype=rows.dtype),
    "and": lambda rows: functools.reduce(torch.bitwise_and, rows.unbind()),
    "or": lambda rows: functools.reduce(torch.bitwise_or, rows.unbind()),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
}


@functools.lru_cache(maxsize=64)
def _factor(scale: float, dtype: torch.dtype) -> Tensor:
    """The scale as a tensor, rounded to the dtype before it multiplies, as XLA does."""
    return torch.tensor(scale).to(dtype)


class Carrier:
    """Performs the collectives of one rank; `bind` connects it to the rank's programs."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory

    def bind(self, programs: Programs) -> None:
        self.programs = programs
        self.rank = programs.rank
        self.size = programs.size

    def all_reduce(
        self, reduction: Reduction, tensors: Sequence[Tensor], groups: Groups
    ) -> list[Tensor]:
        reduction.check(tensors)
        packs = make_packs(tensors, rows=1)
        with self._meet(f"all_reduce {reduction}", tensors, groups, packs) as meeting:
            for pack in packs:
                pack.put(meeting.all_reduce(pack, reduction))
        return collect_results(packs)

    def all_gather(
        self, tensors: Sequence[Tensor], dim: int, groups: Groups, name: str = "all_gather"
    ) -> list[Tensor]:
        for tensor in tensors:
            _check_dim(name, tensor, dim)
        packs = make_packs(tensors, rows=1)
        with self._meet(name, tensors, groups, packs, f"dim {dim}") as meeting:
            for pack in packs:
                pack.put_gathered(meeting.gather(pack), dim)
        return collect_results(packs)

    def reduce_scatter(
        self,
        reduction: Reduction,
        tensors: Sequence[Tensor],
        dim: int,
        shards: int,
        groups: Groups,
    ) -> list[Tensor]:
        reduction.check(tensors)
        for tensor in tensors:
            _check_split("reduce_scatter", tensor, dim, shards, len(self._group(groups)))
        packs = make_packs([tensor.movedim(dim, 0) for tensor in tensors], rows=shards)
        name = f"reduce_scatter {reduction}"
        with self._meet(name, tensors, groups, packs, f"dim {dim}") as meeting:
            for pack in packs:
                pack.put(reduction.fold(meeting.deal(pack)))
        return [shard.movedim(0, dim).contiguous() for shard in collect_results(packs)]

    def all_to_all(
        self, tensor: Tensor, split: int, concat: int, count: int, groups: Groups
    ) -> Tensor:
        _check_dim("all_to_all", tensor, concat)
        _check_split("all_to_all", tensor, split, count, len(self._group(groups)))
        pieces = torch.stack(tensor.chunk(count, split)) if count > 1 else tensor[None]
        packs = make_packs([pieces], rows=count)
        detail = f"split {split} concat {concat}"
        with self._meet("all_to_all", [tensor], groups, packs, detail) as meeting:
            received = meeting.deal(packs[0]).reshape(pieces.shape)
        return torch.cat(received.unbind(), concat)

    def permute(self, tensor: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
        """Each pair's target gets its source's tensor; a rank that is not a target gets zeros."""
        grouping.check_pairs(pairs, self.size)
        detail = f"pairs {grouping.plain(pairs)}"
        received = self._move("collective_permute", tensor, pairs, (), detail)
        return torch.zeros_like(tensor) if received is None else received

    def send_receive(self, tensor: Tensor, source: int, target: int) -> Tensor:
        """Point to point: only these two ranks meet. Returns this rank's resulting tensor."""
        grouping.check_rank("send/recv", source, self.size)
        grouping.check_rank("send/recv", target, self.size)
        if source == target:
            return tensor.clone()
        pair = [source, target]
        received = self._move("send/recv", tensor, [pair], [pair])
        return tensor if received is None else received

    def _move(
        self, name: str, tensor: Tensor, pairs: Groups, groups: Groups, detail: str = ""
    ) -> Tensor | None:
        """Send the tensor to this rank's target, and return that of its source, if any."""
        source = next((int(source) for source, target in pairs if target == self.rank), None)
        target = next((int(target) for source, target in pairs if source == self.rank), None)
        packs = make_packs([tensor], rows=1)
        with self._meet(name, [tensor], groups, packs, detail) as meeting:
            received = meeting.move(packs[0], source, target)
        return None if received is None else received.view(tensor.shape)

    def rendezvous(self, payload: bytes, name: str = "rendezvous") -> list[bytes]:
        """Every rank's payload, of any length, in rank order."""
        with self.programs.lock:
            (lengths,) = self.all_gather([torch.tensor([len(payload)])], 0, [], name)
            longest = int(lengths.max())
            if not longest:
                return [b""] * self.size
            padded = bytearray(payload.ljust(longest, b"\0"))
            (data,) = self.all_gather([torch.frombuffer(padded, dtype=torch.uint8)], 0, [], name)
        rows = data.view(self.size, longest)
        return [row[:n].numpy().tobytes() for row, n in zip(rows, lengths.tolist(), strict=True)]

    @contextlib.contextmanager
    def _meet(
        self,
        name: str,
        tensors: Sequence[Tensor],
        groups: Groups,
        packs: Sequence[Pack],
        detail: str = "",
    ) -> Iterator[_Meeting]:
        group = self._group(groups)
        what = [name, *map(show, tensors)]
        if detail:
            what.append(detail)
        if groups:
            what.append(f"groups {grouping.plain(groups)}")
        members = grouping.ranks_to_meet(groups, group, self.size)
        with self.programs.lock, _Meeting(self, " ".join(what), group, members, packs) as meeting:
            yield meeting

    def _group(self, groups: Groups) -> list[int]:
        return grouping.find_group(groups, self.rank, self.size)


class _Meeting:
    """One collective that its ranks agreed on: moves the packs of a group."""

    def __init__(
        self,
        carrier: Carrier,
        what: str,
        group: Sequence[int],
        members: Sequence[int],
        packs: Sequence[Pack],
    ) -> None:
        self._memory = carrier.memory
        self._rank = carrier.rank
        self._agreement = carrier.programs.agreement
        self._what = what
        self._group = group
        self._members = members
        self._packs = packs
        self._index = group.index(self._rank)
        size = sum(pack.nbytes for pack in packs)
        self._is_small = size <= self._agreement.room(members)  # sent with the frames
        self._local_ranks = [other for other in group if other in self._memory.members]
        self._is_here = len(self._local_ranks) == len(group)  # the whole group is on this host
        self._walk = Walk(self._memory, self._local_ranks, self._rank, self._barrier)
        self._part = 0  # barriers and swaps so far, the same on every rank

    def __enter__(self) -> _Meeting:
        payload = [view(pack.flat) for pack in self._packs] if self._is_small else ()
        payloads = self._agreement.meet(self._what, self._members, payload)
        if self._is_small:
            self._parse(payloads)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._agreement.confirm(self._what, () if self._is_small else self._local_ranks)
        elif not self._is_small:  # others are in the middle of the collective
            self._agreement.break_off(self._what, error)

    def _barrier(self) -> None:
        """Wait until every rank of the group on this host has arrived."""
        self._part += 1
        self._meet_again(self._local_ranks)

    def _meet_again(
        self, ranks: Sequence[int], dealt: Mapping[int, Buffer] | None = None, start: int = 0
    ) -> dict[int, Buffer]:
        """Meet some of the ranks within the collective, for the bytes of a part from `start` on.
        The operation differs from that of the first meeting, because an interrupted rank may begin
        the collective again."""
        what = f"{self._what}, part {self._part}" + (f", from byte {start}" if start else "")
        return self._agreement.meet(what, ranks, dealt=dealt)

    def _parse(self, payloads: Mapping[int, Buffer]) -> None:
        """Set every pack's rows, one for each rank of the group."""
        start = 0
        for pack in self._packs:
            end = start + pack.nbytes
            data = bytearray().join([payloads[rank][start:end] for rank in self._group])
            rows = torch.frombuffer(data, dtype=pack.dtype) if data else pack.flat
            pack.gathered = rows.view(len(self._group), pack.flat.numel())
            start = end

    def gather(self, pack: Pack) -> Tensor:
        """The pack of every rank of the group, one row each."""
        return self._gather(pack.flat) if pack.gathered is None else pack.gathered

    def deal(self, pack: Pack) -> Tensor:
        """Send one row of the pack to each rank of the group; returns the rows received."""
        ranks = len(self._group)
        shape = ranks, pack.flat.numel() // ranks
        if pack.gathered is None:
            return self._deal(pack.flat.view(shape))
        return pack.gathered.view(ranks, *shape)[:, self._index]

    def all_reduce(self, pack: Pack, reduction: Reduction) -> Tensor:
        if pack.gathered is not None:
            return reduction.fold(pack.gathered)
        if self._is_here:
            return self._walk.all_reduce(pack.parts, reduction.fold)
        if peers := grouping.same_share(self._group, self._rank, len(self._memory.members)):
            fold = functools.partial(self._fold_over_hosts, reduction, peers)
            return self._walk.all_reduce(pack.parts, fold)
        flat, ranks = pack.flat, len(self._group)
        padding = -flat.numel() % ranks
        rows = torch.nn.functional.pad(flat, (0, padding)) if padding else flat
        share = reduction.fold(self._deal(rows.view(ranks, -1)))
        return self._gather(share).view(-1)[: flat.numel()]

    def _fold_over_hosts(self, reduction: Reduction, peers: list[int], rows: Tensor) -> Tensor:
        """Reduce this host's rows first, then those of the ranks with the same share, one on each
        host. So each value crosses the network once per host, not once per rank."""
        share = Reduction(reduction.kind).fold(rows)
        return reduction.fold(self._swap_rows(peers, [share] * len(peers)))

    def _swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send the tensors in `outgoing` to ranks, and fill those in `incoming` with what ranks
        send: in pieces, of which other ranks of this host may have fewer, or none."""
        self._part += 1
        sent, received = ({r: view(t) for r, t in side.items()} for side in (outgoing, incoming))
        members = sorted({self._rank, *outgoing, *incoming})
        size = max(map(len, (*sent.values(), *received.values())), default=0)
        for start in range(0, size, _PIECE):
            piece = slice(start, start + _PIECE)
            dealt = {rank: data[piece] for rank, data in sent.items()}
            payloads = self._meet_again(members, dealt, start)
            for rank, data in received.items():
                data[piece] = payloads[rank]

    def move(self, pack: Pack, source: int | None, target: int | None) -> Tensor | None:
        """Send the pack to `target` and return the pack of `source`; either may be None."""
        if pack.gathered is not None:
            return None if source is None else pack.gathered[self._group.index(source)]
        if self._is_here:  # all ranks take part in each of its steps
            return self._walk.move(pack.flat, source, sends=target is not None)
        if source == self._rank:
            return pack.flat.clone()
        received = torch.empty_like(pack.flat)
        outgoing = {} if target is None else {target: pack.flat}
        self._swap(outgoing, {} if source is None else {source: received})
        return None if source is None else received

    def _gather(self, flat: Tensor) -> Tensor:
        if self._is_here:
            return self._walk.gather(flat)
        return self._swap_rows(self._group, [flat] * len(self._group))

    def _deal(self, rows: Tensor) -> Tensor:
        if self._is_here:
            return self._walk.deal(rows)
        return self._swap_rows(self._group, rows.unbind())

    def _swap_rows(self, ranks: Sequence[int], rows: Sequence[Tensor]) -> Tensor:
        """Send each of these ranks its row, and return the rows received, with this rank's own."""
        own = ranks.index(self._rank)
        received = rows[own].new_empty(len(ranks), rows[own].numel())
        received[own] = rows[own]
        others = [(i, rank) for i, rank in enumerate(ranks) if i != own]
        self._swap({r: rows[i] for i, r in others}, {r: received[i] for i, r in others})
        return received


def _check_dim(name: str, tensor: Tensor, dim: int) -> None:
    if not 0 <= dim < tensor.dim():
        raise ValueError(
            f"{name}: {show(tensor)} has no dimension {dim}. XLA counts dimensions from 0."
        )


def _check_split(name: str, tensor: Tensor, dim: int, shards: int, ranks: int) -> None:
    _check_dim(name, tensor, dim)
    if shards != ranks:
        raise ValueError(f"{name}: {shards} shards for a group of {ranks} ranks. Use {ranks}.")
    if tensor.shape[dim] % shards:
        raise ValueError(
            f"{name}: dimension {dim} of {show(tensor)} does not divide into {shards} equal parts."
        )
