"""Escalating signals for ranks that do not end by themselves."""

import signal

import pytest

from tests.support.feed import Feed
from xla_nb.run.stopping import KILL_PATIENCE, TERM_PATIENCE, Ladder

HERE = {"": [100, 101]}


@pytest.fixture
def feed():
    return Feed(None)


@pytest.fixture
def ladder(engine):
    return Ladder("r1", engine, grace=4)


def test_nothing_is_due_before_the_first_signal(ladder):
    assert ladder.due is None
    assert not ladder.is_killing


def test_ranks_are_interrupted_then_terminated_then_killed(ladder, engine, feed):
    ladder.climb(10, feed, HERE)
    assert (engine.interrupted, engine.terminated) == ([[100, 101]], [])
    assert ladder.due == 14
    ladder.climb(14, feed, HERE)
    assert (engine.terminated, engine.killed) == ([[100, 101]], [])
    assert ladder.due == 14 + TERM_PATIENCE
    ladder.climb(15, feed, HERE)
    assert engine.killed == ["r1"]
    assert ladder.is_killing


def test_ranks_about_to_start_are_interrupted_not_killed(ladder, engine, feed):
    assert ladder.next_signal(some_run=True) == signal.SIGINT
    ladder.climb(10, feed, {})
    ladder.meet("", 100)
    assert (engine.interrupted[-1], engine.killed) == ([100], [])
    assert ladder.due == 14


@pytest.mark.parametrize("rungs", [0, 1])
def test_run_without_running_ranks_is_killed(ladder, engine, feed, rungs):
    for _ in range(rungs):
        ladder.climb(0, feed, HERE)
    ladder.climb(1, feed, None)
    assert engine.killed == ["r1"]
    assert ladder.is_killing


def test_signals_escalate_from_sigint_to_sigkill(ladder, feed):
    names = []
    for _ in range(4):
        names.append(ladder.next_signal(some_run=True).name)
        ladder.climb(0, feed, HERE)
    assert names == ["SIGINT", "SIGTERM", "SIGKILL", "SIGKILL"]


def test_kill_is_repeated_before_the_feed_is_closed(ladder, engine, feed):
    for second in range(3):
        ladder.climb(second, feed, None)
        assert ladder.due == second + KILL_PATIENCE
    assert engine.killed == ["r1"] * 3
    assert not feed.ended
    ladder.climb(3, feed, None)
    assert feed.ended


def test_rank_that_starts_during_a_stop_gets_the_same_signal(ladder, engine, feed):
    ladder.meet("", 102)
    ladder.climb(0, feed, HERE)
    ladder.meet("", 102)
    assert engine.interrupted == [[100, 101], [102]]
    ladder.climb(4, feed, HERE)
    ladder.meet("", 102)
    assert engine.terminated == [[100, 101], [102]]


def test_only_interrupts_are_repeated(ladder, engine, feed):
    ladder.repeat(HERE)
    ladder.climb(0, feed, HERE)
    ladder.repeat({"": [101]})
    ladder.repeat({})
    assert engine.interrupted == [[100, 101], [101]]
    ladder.climb(4, feed, HERE)
    ladder.repeat(HERE)
    assert (engine.interrupted, engine.terminated) == ([[100, 101], [101]], [[100, 101]])
