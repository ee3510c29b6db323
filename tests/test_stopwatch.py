"""Seconds spent on something so far, including the interval in progress."""

import pytest

from xla_nb import stopwatch
from xla_nb.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A function that sets the time."""
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


def test_the_interval_in_progress_is_counted(clock):
    watch = Stopwatch()
    assert (watch.start(), watch.seconds, watch.since) == (True, 0.0, 100.0)
    clock(102.0)
    assert watch.seconds == 2.0
    watch.stop()
    clock(150.0)
    assert (watch.seconds, watch.since) == (2.0, None)


def test_a_restarted_stopwatch_adds_to_its_total(clock):
    watch = Stopwatch()
    for begin, end in ((0.0, 1.0), (10.0, 12.5)):
        clock(begin)
        watch.start()
        clock(end)
        watch.stop()
    assert watch.seconds == 3.5


def test_nested_starts_are_not_counted_twice(clock):
    watch = Stopwatch()
    watch.start()
    clock(101.0)
    assert not watch.start()
    clock(103.0)
    watch.stop()
    assert watch.seconds == 3.0


def test_stopping_without_a_start_counts_nothing(clock):
    watch = Stopwatch()
    watch.stop()
    assert (watch.seconds, watch.since) == (0.0, None)
