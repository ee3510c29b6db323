"""A cell's own `jax.distributed.initialize`, in real ranks and alone."""

from __future__ import annotations

import pytest

from tests.support.worlds.worlds import Worlds
from xla_nb.runtimes.jax_guard import Guard, Membership, WorldMismatch, check

MINE = Membership(4, 4, 1, (1,))


def test_calls_that_match_the_run_do_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes").values() == [6.0] * 4


def test_a_call_after_the_devices_are_open_does_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes_late").values() == [6.0] * 4


def test_a_call_at_the_top_of_the_cell_is_checked_in_the_ranks(worlds: Worlds) -> None:
    assert worlds.run("initializes_at_the_top").values() == [6.0] * 4
    for ended in worlds.run("another_world_at_the_top").ranks:
        assert ended.how == "WorldMismatch"
        assert "(num_processes=8), but this run has 4 ranks. Launch with -n 8" in ended.value
        assert ended.status == 1


def test_a_rank_can_catch_the_refusal_of_another_world(worlds: Worlds) -> None:
    for rank, (count, number) in enumerate(worlds.run("another_world").values()):
        assert "(num_processes=8), but this run has 4 ranks. Launch with -n 8" in count
        assert f"(process_id={rank + 1}), but this is rank {rank}. Pass the number" in number


def test_functions_of_multihost_utils_reach_all_ranks(worlds: Worlds) -> None:
    for rank, values in enumerate(worlds.run("multihost").values()):
        assert values == {
            "stacked": [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0], [30.0, 31.0]],
            "joined": [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0],
            "from the first": {"a": 0, "b": [0.0]},
            "from the third": 2,
            "whole": [0.0, 1.0, 2.0, 3.0],
            "own part": [float(rank)],
            "differs": "AssertionError" if rank else "",  # each is compared with the first
            "initialized": True,
        }


def test_several_hosts_are_not_told_a_number_of_ranks() -> None:
    with pytest.raises(WorldMismatch, match=r"8 ranks\. Change -n or --hosts"):
        check(Membership(8, 4, 1), 16, None, None)


@pytest.mark.parametrize("ids", [0, [0, 1], (2,)])
def test_devices_of_other_ranks_are_refused(ids: object) -> None:
    with pytest.raises(WorldMismatch, match="local_device_ids"):
        check(MINE, None, None, ids)
    check(Membership(4, 4, 1), None, None, ids)


def test_an_early_call_is_checked_once_the_rank_is_known() -> None:
    guard = Guard()
    guard.initialize(process_id=0)
    with pytest.raises(WorldMismatch, match="process_id"):
        guard.admit(MINE)
