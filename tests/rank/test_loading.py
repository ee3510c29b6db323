"""Time that a rank's thread waits for data in its loaders, counted once."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from xla_nb import progress
from xla_nb.rank import loading, reporting
from xla_nb.rank.threads import OfRank


class Clock:
    """A clock that advances only through `take`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def take(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("xla_nb.stopwatch.time", clock)
    return clock


@pytest.fixture
def watch(clock, tmp_path, monkeypatch):
    """The stopwatch of the test's thread, as if the thread ran a rank, with timed loaders."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(base, "__next__", base.__next__)
    own = {"next_item": next_item, "_loader_worker": next_item}  # as in torch_xla
    queues = SimpleNamespace(ParallelLoader=type("ParallelLoader", (), own))
    monkeypatch.setitem(sys.modules, "torch_xla.distributed.parallel_loader", queues)
    loading.watch_loaders()
    monkeypatch.setattr(loading, "_waits", OfRank())
    yield reporting.begin(tmp_path / "rank-0.history", None).loading
    reporting.end()


def next_item(loader, device):
    """Waits on a device's queue, like torch_xla's loader."""
    return loader.get(device)


@pytest.fixture
def slow(clock):
    """A loader of three batches that take a second each."""

    class Slow(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            clock.take(1.0)
            return torch.ones(2)

    return DataLoader(Slow())


def test_only_time_in_the_loader_is_counted(watch, clock, slow):
    for _ in slow:
        clock.take(10.0)
    assert watch.seconds == 3.0


def test_first_wait_of_each_program_is_also_counted_separately(watch, slow):
    list(slow)
    list(slow)
    assert (watch.seconds, watch.first.seconds) == (6.0, 1.0)
    loading.begin()
    list(slow)
    assert (watch.seconds, watch.first.seconds) == (9.0, 2.0)


def test_first_wait_is_that_of_the_first_batch_also_in_a_loop_over_epochs(watch, slow):
    for _ in progress(range(2)):
        list(slow)
    assert (watch.seconds, watch.first.seconds) == (6.0, 1.0)


def test_rank_is_seen_waiting_in_its_first_wait(watch, clock):
    class Late(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            clock.take(7.0)
            seen.append((watch.since, watch.seconds, watch.first.seconds))
            return torch.ones(2)

    seen = []
    list(DataLoader(Late()))
    assert seen == [(0.0, 7.0, 7.0)]


def test_loader_under_progress_is_counted_once(watch, clock, slow):
    assert len(list(progress(slow))) == 3
    assert watch.seconds == 3.0


def test_nested_loaders_are_counted_once(watch, clock, slow):
    class Outer(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            batch = next(iter(slow))
            clock.take(6.0)
            return batch

    list(DataLoader(Outer()))
    assert (watch.seconds, watch.first.seconds) == (14.0, 7.0)


def test_waiting_on_a_device_queue_is_counted(watch, clock):
    loader = sys.modules["torch_xla.distributed.parallel_loader"].ParallelLoader()
    loader.get = lambda device: clock.take(2.0) or f"batch for {device}"
    assert loader.next_item("xla:0") == "batch for xla:0"
    assert watch.seconds == 2.0
    loader.next_item("xla:0")
    assert (watch.seconds, watch.first.seconds) == (4.0, 2.0)


def test_other_iterables_are_not_counted_because_they_may_train(watch, clock):
    list(progress(map(clock.take, range(3))))
    assert watch.seconds == 0.0


def test_loader_read_in_another_thread_is_not_counted(watch, slow):
    thread = threading.Thread(target=list, args=(slow,))
    thread.start()
    thread.join()
    assert watch.seconds == 0.0


def test_wait_ends_when_the_loader_raises(watch, clock):
    class Broken(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            clock.take(2.0)
            return index // (1 - index)

    with pytest.raises(ZeroDivisionError):
        list(DataLoader(Broken()))
    clock.take(10.0)
    assert (watch.seconds, watch.since) == (4.0, None)
