"""A cell's own `jax.distributed.initialize`, in real ranks and alone."""

from __future__ import annotations

import pytest

from tests.support.worlds.worlds import Worlds
from xla_nb.runtimes.jax_guard import Guard, Membership, WorldMismatch, check

MINE = Membership("127.0.0.1:4000", 4, 1, (1,))


def test_calls_that_match_the_run_do_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes").values() == [6.0] * 4


def test_a_call_after_the_devices_are_open_does_nothing(worlds: Worlds) -> None:
    assert worlds.run("initializes_late").values() == [6.0] * 4


def test_a_call_at_the_top_of_the_cell_is_checked_in_the_ranks(worlds: Worlds) -> None:
    assert worlds.run("initializes_at_the_top").values() == [6.0] * 4
    for ended in worlds.run("another_world_at_the_top").ranks:
        assert ended.how == "WorldMismatch"
        assert "(num_processes=8) does not match this run, where num_processes is 4" in ended.value
        assert ended.status == 1


def test_a_rank_can_catch_the_refusal_of_another_world(worlds: Worlds) -> None:
    for rank, messages in enumerate(worlds.run("another_world").values()):
        address, count, number = messages
        assert "(coordinator_address='10.0.0.1:1234') does not match this run" in address
        assert "where coordinator_address is '127.0.0.1:" in address
        assert "(num_processes=8) does not match this run, where num_processes is 4" in count
        assert f"(process_id={rank + 1}) does not match" in number
        assert f"where process_id is {rank}. Remove the arguments" in number


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4000", "localhost:1", "127.0.0.1:1", "[::1]:1", None]
)
def test_any_coordinator_address_on_this_machine_matches(address: str | None) -> None:
    check(MINE, address, 4, 1, 1)


@pytest.mark.parametrize("ids", [0, [0, 1], (2,)])
def test_devices_of_other_ranks_are_refused(ids: object) -> None:
    with pytest.raises(WorldMismatch, match="local_device_ids"):
        check(MINE, None, None, None, ids)
    check(Membership("127.0.0.1:4000", 4, 1), None, None, None, ids)


def test_an_early_call_is_checked_once_the_rank_is_known() -> None:
    guard = Guard()
    guard.initialize(process_id=0)
    with pytest.raises(WorldMismatch, match="process_id"):
        guard.admit(MINE)
