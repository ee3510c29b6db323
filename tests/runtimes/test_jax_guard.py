"""A cell's own call of `jax.distributed.initialize`, in real ranks and alone."""

from __future__ import annotations

import pytest

from tests.support.worlds.worlds import Worlds


@pytest.mark.slow
def test_calls_that_match_the_run_do_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes").values() == [6.0] * 4


@pytest.mark.slow
def test_call_after_the_devices_are_open_does_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes_late").values() == [6.0] * 4


def test_call_at_the_top_of_the_cell_is_checked_in_the_ranks(worlds: Worlds) -> None:
    assert worlds.run("initializes_at_the_top").values() == [6.0] * 4
    for ended in worlds.run("another_world_at_the_top").ranks:
        assert ended.how == "UsageError"
        assert "(num_processes=8), but this run has 4 ranks. Launch with another -n" in ended.value
        assert ended.status == 1


@pytest.mark.slow
def test_rank_can_catch_the_error_for_another_world(worlds: Worlds) -> None:
    for refusal in worlds.run("another_world").values():
        assert "(num_processes=8), but this run has 4 ranks. Launch with another -n" in refusal


@pytest.mark.slow
def test_functions_of_multihost_utils_reach_all_ranks(worlds: Worlds) -> None:
    for rank, values in enumerate(worlds.run("multihost").values()):
        assert values == {
            "stacked": [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0], [30.0, 31.0]],
            "joined": [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0],
            "from the first": {"a": 0, "b": [0.0]},
            "from the third": 2,
            "whole": [0.0, 1.0, 2.0, 3.0],
            "own part": [float(rank)],
            "differs": "AssertionError" if rank else "",  # every rank is compared with the first
            "initialized": True,
        }
