"""How long a rank waits for data: in its loaders, in its thread, once."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from xla_nb import progress
from xla_nb.rank import loading, reporting


class Clock:
    """Time that passes only when something takes it."""

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
    monkeypatch.setattr(loading, "time", clock)
    return clock


@pytest.fixture
def executed():
    """How many graphs have been run."""
    return [0]


@pytest.fixture
def watch(clock, executed, tmp_path, monkeypatch):
    """The stopwatch of the test's thread, as if it ran a rank, with timed loaders."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(base, "__next__", base.__next__)
    own = {"next_item": next_item, "_loader_worker": next_item}  # as torch_xla's has them
    queues = SimpleNamespace(ParallelLoader=type("ParallelLoader", (), own))
    monkeypatch.setitem(sys.modules, "torch_xla.distributed.parallel_loader", queues)
    loading.watch_loaders()
    yield reporting.begin(tmp_path / "rank-0.history", None, lambda: executed[0]).loading
    reporting.end()


def next_item(loader, device):
    """As torch_xla's loader waits at the queue of a device."""
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


def test_the_time_in_a_loader_is_counted_and_that_between_is_not(watch, clock, slow):
    for _ in slow:
        clock.take(10.0)
    assert watch.seconds == 2.0


def test_the_first_wait_of_a_program_is_not_counted_those_of_later_epochs_are(watch, slow):
    list(slow)
    list(slow)
    assert watch.seconds == 5.0


def test_what_a_first_wait_takes_beyond_a_start_is_counted(watch, clock):
    class Late(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            for seconds in (7.0, 6.0):
                clock.take(seconds)
                seen.append(watch.since is not None)
            return torch.ones(2)

    seen = []
    list(DataLoader(Late()))
    assert watch.seconds == 5.0
    assert seen == [False, True]


def test_a_loader_in_a_loop_under_progress_is_counted_once(watch, clock, slow):
    assert len(list(progress(slow))) == 3
    assert watch.seconds == 2.0


def test_a_loader_that_reads_another_one_is_counted_whole_and_once(watch, clock, slow):
    class Outer(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            batch = next(iter(slow))
            clock.take(6.0)
            return batch

    list(DataLoader(Outer()))
    assert watch.seconds == 7.0


def test_the_queue_of_a_device_is_counted(watch, clock):
    loader = sys.modules["torch_xla.distributed.parallel_loader"].ParallelLoader()
    loader.get = lambda device: clock.take(2.0) or f"batch for {device}"
    assert loader.next_item("xla:0") == "batch for xla:0"
    assert watch.seconds == 0.0
    loader.next_item("xla:0")
    assert watch.seconds == 2.0


def test_other_iterables_are_counted_under_progress(watch, clock):
    def loaded(_):
        clock.take(0.5)

    for _ in progress(map(loaded, range(3))):
        clock.take(10.0)
    assert watch.seconds == 1.0


def test_a_generator_is_not_counted_since_it_may_train(watch, clock):
    def training():
        for n in range(3):
            clock.take(5.0)
            yield n

    assert list(progress(training())) == [0, 1, 2]
    assert watch.seconds == 0.0


def test_an_iterable_that_runs_graphs_does_more_than_load(watch, clock, executed):
    def trained(n):
        clock.take(5.0)
        executed[0] += 1
        return n

    assert list(progress(map(trained, range(3)))) == [0, 1, 2]
    assert watch.seconds == 0.0


def test_counting_graphs_is_not_waiting_for_data(watch, clock, executed):
    def count():
        clock.take(0.5)
        return executed[0]

    loading.begin(count)
    list(progress(range(40)))
    assert watch.seconds == 0.0


def test_where_graphs_are_not_counted_only_loaders_are(clock, tmp_path, slow):
    book = reporting.begin(tmp_path / "rank-0.history")
    try:
        list(progress(clock.take(1.0) for _ in range(3)))
        assert book.loading.seconds == 0.0
    finally:
        reporting.end()


def test_a_loader_that_is_read_in_another_thread_is_not_waited_for(watch, slow):
    thread = threading.Thread(target=list, args=(slow,))
    thread.start()
    thread.join()
    assert watch.seconds == 0.0


def test_a_loader_that_raises_is_waited_for_no_longer(watch, clock):
    class Broken(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            clock.take(2.0)
            return index // (1 - index)

    with pytest.raises(ZeroDivisionError):
        list(DataLoader(Broken()))
    clock.take(10.0)
    assert (watch.seconds, watch.since) == (2.0, None)
