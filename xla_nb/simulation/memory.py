"""Memory shared by the ranks of one host, for large values, a chunk at a time.

Each rank writes to its own rows, and reads those of others once all have written. It has two rows,
used in turn, so that it may write its next chunk while others still read the last one. An exchange
ends when all have read, so other ranks may take part in the next collective.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_MAX_CHUNK, _MIN_CHUNK = 1 << 22, 1 << 16  # bytes of a chunk
_TOTAL = 1 << 26  # bytes in each turn for all ranks, unless the smallest chunks need more


class SharedMemory:
    """Created before the fork. Allocates memory on use, at most 128 MiB for up to 1,024 ranks."""

    def __init__(self, members: range) -> None:
        self.members = members
        chunk = max(_MIN_CHUNK, min(_MAX_CHUNK, _TOTAL // len(members) & -4096))
        self.nbytes = 2 * len(members) * chunk
        shared = mmap.mmap(-1, self.nbytes)  # shared with the processes that it forks
        self._areas = torch.frombuffer(shared, dtype=torch.uint8).view(2, len(members), chunk)

    def exchange(
        self,
        rows: Tensor,
        group: Sequence[int],
        rank: int,
        barrier: Callable[[], None],
        sources: slice = slice(None),
    ) -> Tensor:
        """Give each rank of the group its row, or all of them the only one; return the rows from
        `sources`, positions in the group (default: all).

        All ranks of the group make this call, with rows of the same size; `barrier` returns when
        all have called it."""
        width, count = rows.shape
        areas = self._areas.view(rows.dtype)
        places = [other - self.members.start for other in group]
        index, read = group.index(rank), places[sources]
        received = rows.new_empty(len(read), count)
        step = areas.shape[2] // width
        for turn, start in enumerate(range(0, count, step)):
            size = min(step, count - start)
            area = areas[turn % 2, :, : width * size].unflatten(1, (width, size))
            area[places[index]] = rows[:, start : start + size]
            barrier()
            for row, place in zip(received, read, strict=True):
                row[start : start + size] = area[place, index % width]
        barrier()
        return received
