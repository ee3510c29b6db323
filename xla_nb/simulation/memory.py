"""Memory shared by the ranks of one host, for large values, a chunk at a time.

Each rank writes to its own rows, and reads those of others once all have written. Each purpose has
two rows, used in turn, so that a rank may write its next chunk while others still read the last
one. A walk ends when all have read, so other ranks may take part in the next collective.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

_MAX_CHUNK, _MIN_CHUNK = 1 << 22, 1 << 16  # bytes of a chunk
_TOTAL = 1 << 26  # bytes per purpose for all ranks, unless the smallest chunks need more


class SharedMemory:
    """Created before the fork. Allocates memory on use, at most 256 MiB for up to 1,024 ranks."""

    def __init__(self, members: range) -> None:
        self.members = members
        chunk = max(_MIN_CHUNK, min(_MAX_CHUNK, _TOTAL // len(members) & -4096))
        self.nbytes = 4 * len(members) * chunk
        shared = mmap.mmap(-1, self.nbytes)  # shared with the processes that it forks
        self._areas = torch.frombuffer(shared, dtype=torch.uint8).view(4, len(members), chunk)

    def areas(self, dtype: torch.dtype) -> Tensor:
        """[purpose, rank of this host, number]: purposes 0 and 1 are the ranks' inputs, 2 and 3
        their results."""
        return self._areas.view(dtype)


class Walk:
    """One collective of `group` through shared memory. `barrier` returns when all have called it.

    All ranks of the group make the same call, with tensors of the same size.
    """

    def __init__(
        self,
        memory: SharedMemory,
        group: Sequence[int],
        rank: int,
        barrier: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._rows = [other - memory.members.start for other in group]
        self._index = group.index(rank)
        self._barrier = barrier

    def gather(self, flat: Tensor) -> Tensor:
        """[rank, number]: the numbers of every rank of the group."""
        areas = self._memory.areas(flat.dtype)
        gathered = flat.new_empty(len(self._rows), flat.numel())
        for turn, start, stop in _chunks(flat.numel(), areas.shape[2]):
            areas[turn, self._rows[self._index], : stop - start] = flat[start:stop]
            self._barrier()
            gathered[:, start:stop] = self._group_rows(areas[turn])[:, : stop - start]
        self._barrier()
        return gathered

    def deal(self, rows: Tensor) -> Tensor:
        """Send row i to rank i of the group; return the rows received, in the group's order."""
        ranks, count = rows.shape
        areas = self._memory.areas(rows.dtype)
        received = torch.empty_like(rows)
        for turn, start, stop in _chunks(count, areas.shape[2] // ranks):
            size = stop - start
            own_area = areas[turn, self._rows[self._index], : ranks * size]
            own_area.view(ranks, size).copy_(rows[:, start:stop])
            self._barrier()
            parts = self._group_rows(areas[turn])[:, self._index * size : (self._index + 1) * size]
            received[:, start:stop] = parts
        self._barrier()
        return received

    def all_reduce(self, parts: Sequence[Tensor], fold: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows of all ranks, each in several parts, folded into one; each rank folds its share
        of every chunk."""
        ranks, count = len(self._rows), sum(part.numel() for part in parts)
        areas = self._memory.areas(parts[0].dtype)
        reduced = parts[0].new_empty(count)
        last: tuple[int, int, int] | None = None
        for chunk in (*_chunks(count, areas.shape[2] // ranks * ranks), None):
            if chunk is not None:
                turn, start, stop = chunk
                _copy(parts, start, areas[turn, self._rows[self._index], : stop - start])
            self._barrier()
            if chunk is not None:
                share = -(-(stop - start) // ranks)
                own_part = slice(self._index * share, min((self._index + 1) * share, stop - start))
                rows = self._group_rows(areas[turn])[:, own_part]
                areas[2 + turn, self._rows[self._index], : rows.shape[1]] = fold(rows)
            if last is not None:
                self._collect(reduced, areas, *last)
            last = chunk
        self._barrier()
        return reduced

    def _collect(self, reduced: Tensor, areas: Tensor, turn: int, start: int, stop: int) -> None:
        """Copy the result of a chunk, of which each rank has reduced a share."""
        share = -(-(stop - start) // len(self._rows))
        for row in self._rows:
            count = min(share, stop - start)
            reduced[start : start + count] = areas[2 + turn, row, :count]
            start += count

    def move(self, flat: Tensor, source: int | None, sends: bool) -> Tensor | None:
        """Return the tensor that rank `source` of this host sends, if any."""
        areas = self._memory.areas(flat.dtype)
        received = None if source is None else torch.empty_like(flat)
        for turn, start, stop in _chunks(flat.numel(), areas.shape[2]):
            if sends:
                areas[turn, self._rows[self._index], : stop - start] = flat[start:stop]
            self._barrier()
            if received is not None and source is not None:
                row = source - self._memory.members.start
                received[start:stop] = areas[turn, row, : stop - start]
        self._barrier()
        return received

    def _group_rows(self, area: Tensor) -> Tensor:
        """The group's rows; without a copy if the group is every rank of this host."""
        return area if self._rows == [*range(area.shape[0])] else area[self._rows]


def _copy(parts: Sequence[Tensor], start: int, target: Tensor) -> None:
    """Copy the numbers from `start` on, across all parts, until `target` is full."""
    filled = 0
    for part in parts:
        size = min(part.numel() - start, target.numel() - filled)
        if size > 0:
            target[filled : filled + size] = part[start : start + size]
            filled += size
        start = max(0, start - part.numel())


def _chunks(count: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(turn, start, stop) of each chunk."""
    for number, start in enumerate(range(0, count, size)):
        yield number % 2, start, min(start + size, count)
