"""Exchanges through shared memory give the same results as one process, in one chunk or many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from xla_nb.simulation.memory import SharedMemory

RANKS = range(5, 8)  # a second host of several
CHUNK = (1 << 22) // 4  # elements of 4 bytes


def row(rank: int, count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32) * rank + rank


def exchanged(
    group: list[int],
    rows: Callable[[int], Tensor],
    sources: Callable[[int], slice] = lambda _: slice(None),
) -> dict[int, Tensor]:
    """What each rank of the group receives; every rank is a thread."""
    memory, barrier = SharedMemory(RANKS), threading.Barrier(len(group))

    def run(rank: int) -> Tensor:
        wait = lambda: barrier.wait(60) and None  # noqa: E731
        return memory.exchange(rows(rank), group, rank, wait, sources(rank))

    with ThreadPoolExecutor(len(group)) as pool:
        return dict(zip(group, pool.map(run, group), strict=True))


@pytest.mark.parametrize("count", [0, 1, CHUNK + 1, 3 * CHUNK + 2])
def test_one_row_reaches_all_ranks(count: int) -> None:
    expected = torch.stack([row(rank, count) for rank in (7, 5)])
    for result in exchanged([7, 5], lambda rank: row(rank, count)[None]).values():
        assert torch.equal(result, expected)


@pytest.mark.parametrize("count", [1, CHUNK + 1, 2 * CHUNK + 2])
def test_each_rank_gets_its_rows(count: int) -> None:
    received = exchanged([*RANKS], lambda rank: row(rank, 3 * count).view(3, count))
    for index, result in enumerate(received.values()):
        wanted = [row(rank, 3 * count).view(3, count)[index] for rank in RANKS]
        assert torch.equal(result, torch.stack(wanted))


@pytest.mark.parametrize("count", [1, CHUNK + 1, 3 * CHUNK + 2])
def test_a_rank_may_read_some_rows_or_none(count: int) -> None:
    def sources(rank: int) -> slice:
        return slice(1, 2) if rank == 7 else slice(0)

    moved = exchanged([*RANKS], lambda rank: row(rank, count)[None], sources)
    assert moved[5].shape == moved[6].shape == (0, count)
    assert torch.equal(moved[7][0], row(6, count))


def test_shared_memory_stays_small_with_many_ranks() -> None:
    for ranks in (2, 64, 256, 1024):
        assert SharedMemory(range(ranks)).nbytes <= 1 << 27
