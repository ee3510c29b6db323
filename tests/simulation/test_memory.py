"""Walks through shared memory give the same results as one process, in one chunk or many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from xla_nb.simulation.memory import SharedMemory, Walk

RANKS = range(5, 8)  # a second host of several
CHUNK = (1 << 22) // 4  # elements of 4 bytes


def row(rank: int, count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32) * rank + rank


def walks(call: Callable[[Walk, int], Tensor | None], group: list[int]) -> dict[int, Tensor | None]:
    """Results of the call on each rank of the group; every rank is a thread."""
    memory, barrier = SharedMemory(RANKS), threading.Barrier(len(group))

    def run(rank: int) -> Tensor | None:
        return call(Walk(memory, group, rank, lambda: barrier.wait(60) and None), rank)

    with ThreadPoolExecutor(len(group)) as pool:
        return dict(zip(group, pool.map(run, group), strict=True))


@pytest.mark.parametrize("count", [0, 1, 5, CHUNK, CHUNK + 1, 3 * CHUNK + 2])
@pytest.mark.parametrize("group", [[5, 6, 7], [7, 5], [6]])
def test_all_reduce_folds_rows_into_one(count: int, group: list[int]) -> None:
    def reduce(walk: Walk, rank: int) -> Tensor:
        parts = [row(rank, count)[: count // 3], row(rank, count)[count // 3 :]]
        return walk.all_reduce(parts, lambda rows: rows.sum(0))

    expected = torch.stack([row(rank, count) for rank in group]).sum(0)
    for result in walks(reduce, group).values():
        assert result is not None and torch.equal(result, expected)


@pytest.mark.parametrize("count", [1, CHUNK + 1, 3 * CHUNK + 2])
def test_gather_returns_all_rows(count: int) -> None:
    expected = torch.stack([row(rank, count) for rank in (7, 5)])
    for result in walks(lambda walk, rank: walk.gather(row(rank, count)), [7, 5]).values():
        assert result is not None and torch.equal(result, expected)


@pytest.mark.parametrize("count", [1, CHUNK + 1, 2 * CHUNK + 2])
def test_deal_gives_each_rank_its_rows(count: int) -> None:
    def deal(walk: Walk, rank: int) -> Tensor:
        return walk.deal(row(rank, 3 * count).view(3, count))

    for index, result in enumerate(walks(deal, [*RANKS]).values()):
        wanted = [row(rank, 3 * count).view(3, count)[index] for rank in RANKS]
        assert result is not None and torch.equal(result, torch.stack(wanted))


@pytest.mark.parametrize("count", [1, CHUNK + 1, 3 * CHUNK + 2])
def test_move_sends_a_row_to_one_rank(count: int) -> None:
    def move(walk: Walk, rank: int) -> Tensor | None:
        return walk.move(row(rank, count), 6 if rank == 7 else None, sends=rank == 6)

    moved = walks(move, [*RANKS])
    assert moved[5] is None and moved[6] is None
    assert moved[7] is not None and torch.equal(moved[7], row(6, count))


def test_shared_memory_stays_small_with_many_ranks() -> None:
    for ranks in (2, 64, 256, 1024):
        assert SharedMemory(range(ranks)).nbytes <= 1 << 28
