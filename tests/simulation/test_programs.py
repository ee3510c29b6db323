"""Ranks that live on run programs one after another, and are in step whatever ended the last."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.harness import Job, Launcher, job

Simulate = Callable[..., Job]
PROGRAMS = 40  # every other one is to fail; with these seeds in each way twice at least
#: Many more, for those who have the time.
LONG = pytest.param(5, 400, marks=pytest.mark.slow)


def many(seed: int, programs: int) -> dict[str, str]:
    return {"SEED": str(seed), "PROGRAMS": str(programs), "ALARM": "500"}


def ends(*hosts: Job) -> Counter[str]:
    """How often programs have ended how, over all ranks; fails, with the seed, if one was wrong."""
    return sum((Counter(each) for host in hosts for each in host.values()), Counter())


@pytest.mark.parametrize(("seed", "programs"), [(24, PROGRAMS), LONG])
def test_every_program_after_a_failed_one_gets_the_right_values(
    simulate: Simulate, seed: int, programs: int
) -> None:
    found = ends(simulate("many_programs", env=many(seed, programs)))
    assert min(found[end] for end in ENDS) > 3, found


@pytest.mark.parametrize(("seed", "programs"), [(62, PROGRAMS), LONG])
def test_every_program_after_a_failed_one_gets_the_right_values_over_hosts(
    launcher: Launcher, seed: int, programs: int
) -> None:
    with launcher.store() as address:
        world: dict[str, Any] = {"ranks": 2, "world_size": 4, "store": address}
        env = many(seed, programs)
        hosts = launcher.run(
            *(job("many_programs", first_rank=n, env=env, **world) for n in (0, 2))
        )
    found = ends(*hosts)
    assert min(found[end] for end in ENDS) > 3, found


ENDS = ("returned", "raised Bad", "raised KeyboardInterrupt", "raised CollectiveMismatch")


def test_a_program_on_some_ranks_refuses_collectives_of_others_by_name(simulate: Simulate) -> None:
    found = simulate("on_some_ranks").values()
    start, end = (
        " needs ",
        ", which do not run this cell (it runs on ranks 0, 2). Run the cell on all ranks",
    )
    groups = ", or pass groups of the ranks that run it."
    assert found[0] == [
        *[4.0] * 3,
        f"all_reduce{start}ranks 1, 3{end}{groups}",
        f"all_reduce{start}ranks 1, 3{end}{groups}",
        f"all_reduce{start}rank 3{end.replace('do', 'does', 1)}{groups}",
        f"rendezvous{start}ranks 1, 3{end}.",
        10.0,
    ]
    assert found == [found[0], [10.0], found[0], [10.0]]


def test_process_groups_are_made_and_used_over_programs(simulate: Simulate) -> None:
    assert simulate("process_groups").values() == [
        [16.0],
        [True, [4.0, 4.0], "all_reduce needs ranks 0", 16.0],
        [True, 16.0],
        [True, [4.0, 4.0], "all_reduce needs ranks 0", 16.0],
    ]


def test_a_thread_that_outlives_its_program_fails_and_disturbs_no_later_one(
    simulate: Simulate,
) -> None:
    outlived, *others = simulate("a_thread_that_outlives_its_program").values()
    assert outlived[0].startswith("A thread of rank 0 was in all_reduce sum f32[150000] after ")
    assert [outlived[1:], *others] == [[10.0] * 3] * 4


def test_a_thread_in_the_middle_of_a_collective_is_waited_for(simulate: Simulate) -> None:
    outlived, *others = simulate("a_thread_that_is_busy_in_a_collective").values()
    assert outlived[0].startswith("A thread of rank 0 was in all_reduce sum f32[150000], part ")
    # Others may have given up before, or hear of it from that rank.
    ways = " returned while |, which had returned| after its cell or program had ended"
    told = re.compile(rf"[Rr]anks? 0\b.*({ways})")
    assert all(told.search(each[0]) for each in others), others
    assert [each[1:] for each in (outlived, *others)] == [[10.0] * 3] * 4


def test_a_thread_of_an_earlier_program_is_refused(simulate: Simulate) -> None:
    for between, right, refused in simulate("a_thread_of_an_earlier_program").values():
        assert "after its cell or program had ended" in between
        assert right == 10.0
        assert re.match(r"Thread 'trainer' of rank \d, started in an earlier cell, called", refused)


def test_a_rank_that_takes_no_part_for_long_holds_nobody_up(simulate: Simulate) -> None:
    assert simulate("ends_without_having_read").values() == [10.0] * 4


def test_what_a_failed_program_left_pending_needs_no_other_rank(simulate: Simulate) -> None:
    """Collectives are executed as they are called: none is among the recorded operations."""
    found = simulate("what_a_failed_program_left_pending").values()
    assert found == [[[10.0] * 2, [80.0] * 2, True, True, 10.0]] * 4
