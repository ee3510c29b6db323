"""The operations between ranks, on CPU tensors: reduce, gather, scatter, exchange, permute.

Small values travel with the meeting: a few kilobytes, or more at the board of a host. For larger
values each rank reduces a share, through memory shared by the ranks of a host, or in pieces at
meetings. Results are equal, bit for bit, on all ranks of a group. CPU arithmetic only: XLA and
torch_xla's names are in `torch_names`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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
        self._lock = programs.lock

    def all_reduce(
        self, reduction: Reduction, tensors: Sequence[Tensor], groups: Groups
    ) -> list[Tensor]:
        reduction.check(tensors)
        packs = make_packs(tensors, rows=1)
        with (
            self.programs.lock,
            self._meet(f"all_reduce {reduction}", tensors, groups, packs) as meeting,
        ):
            for index, pack in enumerate(packs):
                pack.put(meeting.all_reduce(index, reduction))
        return collect_results(packs)

    def all_gather(
        self, tensors: Sequence[Tensor], dim: int, groups: Groups, name: str = "all_gather"
    ) -> list[Tensor]:
        for tensor in tensors:
            _check_dim(name, tensor, dim)
        packs = make_packs(tensors, rows=1)
        with (
            self.programs.lock,
            self._meet(name, tensors, groups, packs, f"dim {dim}") as meeting,
        ):
            for index, pack in enumerate(packs):
                pack.put_gathered(meeting.gather(index), dim)
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
        with self._lock, self._meet(name, tensors, groups, packs, f"dim {dim}") as meeting:
            for index, pack in enumerate(packs):
                pack.put(reduction.fold(meeting.deal(index)))
        return [shard.movedim(0, dim).contiguous() for shard in collect_results(packs)]

    def all_to_all(
        self, tensor: Tensor, split: int, concat: int, count: int, groups: Groups
    ) -> Tensor:
        _check_dim("all_to_all", tensor, concat)
        _check_split("all_to_all", tensor, split, count, len(self._group(groups)))
        pieces = torch.stack(tensor.chunk(count, split)) if count > 1 else tensor[None]
        packs = make_packs([pieces], rows=count)
        detail = f"split {split} concat {concat}"
        with (
            self.programs.lock,
            self._meet("all_to_all", [tensor], groups, packs, detail) as meeting,
        ):
            received = meeting.deal(0).reshape(pieces.shape)
        return torch.cat(received.unbind(), concat)

    def permute(self, tensor: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
        """Each pair's target gets its source's tensor; a rank that is not a target gets zeros."""
        grouping.check_pairs(pairs, self.size)
        sources = [int(source) for source, _ in pairs]
        targets = [int(target) for _, target in pairs]
        detail = f"pairs {grouping.plain(pairs)}"
        packs = make_packs([tensor], rows=1)
        with (
            self.programs.lock,
            self._meet("collective_permute", [tensor], (), packs, detail) as meeting,
        ):
            source = dict(zip(targets, sources, strict=True)).get(self.rank)
            target = dict(zip(sources, targets, strict=True)).get(self.rank)
            received = meeting.move(0, source, target)
        return torch.zeros_like(tensor) if received is None else received.view(tensor.shape)

    def send_receive(self, tensor: Tensor, source: int, target: int) -> Tensor:
        """Point to point: only these two ranks meet. Returns this rank's resulting tensor."""
        grouping.check_rank("send/recv", source, self.size)
        grouping.check_rank("send/recv", target, self.size)
        if source == target:
            return tensor.clone()
        packs = make_packs([tensor], rows=1)
        pair = [[source, target]]
        with self._lock, self._meet("send/recv", [tensor], pair, packs) as meeting:
            is_target = self.rank == target
            received = meeting.move(0, source if is_target else None, None if is_target else target)
        return tensor if received is None else received.view(tensor.shape)

    def rendezvous(self, payload: bytes, name: str = "rendezvous") -> list[bytes]:
        """Every rank's payload, of any length, in rank order."""
        with self._lock:
            (lengths,) = self.all_gather([torch.tensor([len(payload)])], 0, [], name)
            longest = int(lengths.max())
            if not longest:
                return [b""] * self.size
            padded = bytearray(payload.ljust(longest, b"\0"))
            (data,) = self.all_gather([torch.frombuffer(padded, dtype=torch.uint8)], 0, [], name)
        rows = data.view(self.size, longest)
        return [row[:n].numpy().tobytes() for row, n in zip(rows, lengths.tolist(), strict=True)]

    def _meet(
        self,
        name: str,
        tensors: Sequence[Tensor],
        groups: Groups,
        packs: Sequence[Pack],
        detail: str = "",
    ) -> _Meeting:
        group = self._group(groups)
        what = [name, *map(show, tensors)]
        if detail:
            what.append(detail)
        if groups:
            what.append(f"groups {grouping.plain(groups)}")
        members = grouping.ranks_to_meet(groups, group, self.size)
        return _Meeting(self, " ".join(what), group, members, packs)

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
        self._carrier = carrier
        self._agreement = carrier.programs.agreement
        self._what = what
        self._group = group
        self._members = members
        self._packs = packs
        self._index = group.index(carrier.rank) if carrier.rank in group else 0
        self._rows: list[Tensor] | None = None  # of every pack, if sent with the frames
        self._walk: Walk | None = None  # for larger ones, on one host
        self._local_ranks = list(group)  # ranks of the group on this host
        self._peers: list[int] = []  # on other hosts, for all_reduce
        self._part = 0  # barriers and swaps so far, the same on every rank

    def __enter__(self) -> _Meeting:
        agreement = self._agreement
        if sum(pack.nbytes for pack in self._packs) <= agreement.room(self._members):
            payload = [view(pack.flat) for pack in self._packs]
            self._rows = self._parse(agreement.meet(self._what, self._members, payload))
            return self
        self._choose_path()
        try:
            agreement.meet(self._what, self._members)
        except KeyboardInterrupt as error:  # the others will start without this rank
            agreement.break_off(self._what, error)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._agreement.confirm(
                self._what, self._local_ranks if self._walk or self._peers else ()
            )
        elif self._rows is None:  # others are in the middle of the collective
            self._agreement.break_off(self._what, error)

    def _choose_path(self) -> None:
        """Choose the path of large values: shared memory if the whole group is on this host."""
        memory, rank = self._carrier.memory, self._carrier.rank
        self._local_ranks = [other for other in self._group if other in memory.members]
        if len(self._local_ranks) == len(self._group):
            self._walk = Walk(memory, self._group, rank, self._barrier)
        else:
            self._peers = grouping.same_share(self._group, rank, len(memory.members))

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

    def _parse(self, payloads: Mapping[int, Buffer]) -> list[Tensor]:
        """For every pack, one row per rank of the group."""
        parsed, start, ranks = [], 0, len(self._group)
        for pack in self._packs:
            end = start + pack.nbytes
            data = bytearray().join([payloads[rank][start:end] for rank in self._group])
            rows = torch.frombuffer(data, dtype=pack.dtype) if data else pack.flat
            parsed.append(rows.view(ranks, pack.flat.numel()))
            start = end
        return parsed

    def gather(self, index: int) -> Tensor:
        """The pack of every rank of the group, one row each."""
        return self._gather(self._packs[index].flat) if self._rows is None else self._rows[index]

    def deal(self, index: int) -> Tensor:
        """Send one row of the pack to each rank of the group; returns the rows received."""
        flat, ranks = self._packs[index].flat, len(self._group)
        shape = ranks, flat.numel() // ranks
        if self._rows is None:
            return self._deal(flat.view(shape))
        return self._rows[index].view(ranks, *shape)[:, self._index]

    def all_reduce(self, index: int, reduction: Reduction) -> Tensor:
        if self._rows is not None:
            return reduction.fold(self._rows[index])
        if self._walk is not None:
            return self._walk.all_reduce(self._packs[index].parts, reduction.fold)
        if self._peers:
            return self._all_reduce_over_hosts(self._packs[index].parts, reduction)
        flat, ranks = self._packs[index].flat, len(self._group)
        padding = -flat.numel() % ranks
        rows = torch.nn.functional.pad(flat, (0, padding)) if padding else flat
        share = reduction.fold(self._deal(rows.view(ranks, -1)))
        return self._gather(share).view(-1)[: flat.numel()]

    def _all_reduce_over_hosts(self, parts: Sequence[Tensor], reduction: Reduction) -> Tensor:
        """Reduce in each host's memory first; then the ranks with the same share, one on each host,
        fold theirs. So each value crosses the network once per host, not once per rank."""
        host_reduction = Reduction(reduction.kind)

        def fold(rows: Tensor) -> Tensor:
            return reduction.fold(self._exchange(self._peers, host_reduction.fold(rows)))

        carrier = self._carrier
        return Walk(carrier.memory, self._local_ranks, carrier.rank, self._barrier).all_reduce(
            parts, fold
        )

    def _swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send the tensors in `outgoing` to ranks, and fill those in `incoming` with what ranks
        send: in pieces, of which other ranks of this host may have fewer, or none."""
        self._part += 1
        sent, received = ({r: view(t) for r, t in side.items()} for side in (outgoing, incoming))
        members = sorted({self._carrier.rank, *outgoing, *incoming})
        size = max(map(len, (*sent.values(), *received.values())), default=0)
        for start in range(0, size, _PIECE):
            piece = slice(start, start + _PIECE)
            dealt = {rank: data[piece] for rank, data in sent.items()}
            payloads = self._meet_again(members, dealt, start)
            for rank, data in received.items():
                data[piece] = payloads[rank]

    def move(self, index: int, source: int | None, target: int | None) -> Tensor | None:
        """Send the pack to `target` and return the pack of `source`; either may be None."""
        is_own = source is not None and source == self._carrier.rank
        sends = target is not None and target != self._carrier.rank
        if self._walk is not None:  # all ranks take part in each of its steps
            received = self._walk.move(self._packs[index].flat, None if is_own else source, sends)
            return self._packs[index].flat.clone() if is_own else received
        if is_own:
            return self._packs[index].flat.clone()
        if self._rows is not None:
            return None if source is None else self._rows[index][self._group.index(source)]
        buffer = torch.empty_like(self._packs[index].flat)
        self._swap(
            {target: self._packs[index].flat} if sends and target is not None else {},
            {source: buffer} if source is not None else {},
        )
        return None if source is None else buffer

    def _gather(self, flat: Tensor) -> Tensor:
        if self._walk is not None:
            return self._walk.gather(flat)
        return self._exchange(self._group, flat)

    def _exchange(self, ranks: Sequence[int], flat: Tensor) -> Tensor:
        """The tensors of these ranks, including this one, one row each."""
        rows = flat.new_empty(len(ranks), flat.numel())
        rows[ranks.index(self._carrier.rank)] = flat
        self._swap_rows(ranks, [flat] * len(ranks), rows)
        return rows

    def _deal(self, rows: Tensor) -> Tensor:
        if self._walk is not None:
            return self._walk.deal(rows)
        received = torch.empty_like(rows)
        received[self._index] = rows[self._index]
        self._swap_rows(self._group, rows.unbind(), received)
        return received

    def _swap_rows(
        self, ranks: Sequence[int], outgoing: Sequence[Tensor], received: Tensor
    ) -> None:
        others = [(i, rank) for i, rank in enumerate(ranks) if rank != self._carrier.rank]
        self._swap({r: outgoing[i] for i, r in others}, {r: received[i] for i, r in others})


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
