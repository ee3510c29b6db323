"""Live ranks run programs one after another and stay in step, however the last one ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.harness import Job, Launcher

Simulate = Callable[..., Job]
PROGRAMS = 40  # every other one fails; with these seeds, in each way at least twice
#: Many more programs, for slow tests.
LONG = pytest.param(5, 400, marks=pytest.mark.slow)


def many(seed: int, programs: int) -> dict[str, str]:
    return {"SEED": str(seed), "PROGRAMS": str(programs), "ALARM": "500"}


def ends(*hosts: Job) -> Counter[str]:
    """Count the ways in which programs ended, over all ranks; fail if one ended wrongly."""
    return sum((Counter(each) for host in hosts for each in host.values()), Counter())


@pytest.mark.parametrize(("seed", "programs"), [(24, PROGRAMS), LONG])
def test_programs_compute_correct_values_after_failed_ones(
    simulate: Simulate, seed: int, programs: int
) -> None:
    found = ends(simulate("many_programs", env=many(seed, programs)))
    assert min(found[end] for end in ENDS) > 3, found


@pytest.mark.parametrize(("seed", "programs"), [(62, PROGRAMS), LONG])
def test_programs_on_two_hosts_compute_correct_values_after_failed_ones(
    launcher: Launcher, seed: int, programs: int
) -> None:
    hosts = launcher.run_hosts("many_programs", 2, env=many(seed, programs))
    found = ends(*hosts)
    assert min(found[end] for end in ENDS) > 3, found


ENDS = ("returned", "raised Bad", "raised KeyboardInterrupt", "raised CollectiveMismatch")


def test_collectives_name_required_ranks_that_do_not_run_the_program(simulate: Simulate) -> None:
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


def test_process_groups_work_across_programs(simulate: Simulate) -> None:
    assert simulate("process_groups").values() == [
        [16.0],
        [True, [4.0, 4.0], "all_reduce needs ranks 0", 16.0],
        [True, 16.0],
        [True, [4.0, 4.0], "all_reduce needs ranks 0", 16.0],
    ]


def test_thread_outliving_its_program_fails_without_affecting_later_programs(
    simulate: Simulate,
) -> None:
    outlived, *others = simulate("a_thread_that_outlives_its_program").values()
    assert outlived[0].startswith("A thread of rank 0 was in all_reduce sum f32[150000] after ")
    assert [outlived[1:], *others] == [[10.0] * 3] * 4


def test_next_program_waits_for_a_thread_inside_a_collective(simulate: Simulate) -> None:
    outlived, *others = simulate("a_thread_that_is_busy_in_a_collective").values()
    assert outlived[0].startswith("A thread of rank 0 was in all_reduce sum f32[150000], part ")
    # Other ranks may have given up before, or learn of it from rank 0.
    ways = " returned while |, which had returned| after its cell or program had ended"
    told = re.compile(rf"[Rr]anks? 0\b.*({ways})")
    assert all(told.search(each[0]) for each in others), others
    assert [each[1:] for each in (outlived, *others)] == [[10.0] * 3] * 4


def test_collective_from_an_earlier_programs_thread_is_refused(simulate: Simulate) -> None:
    for between, right, refused in simulate("a_thread_of_an_earlier_program").values():
        assert "after its cell or program had ended" in between
        assert right == 10.0
        assert re.match(r"Thread 'trainer' of rank \d, started in an earlier cell, called", refused)


def test_rank_outside_many_programs_does_not_delay_others(simulate: Simulate) -> None:
    assert simulate("ends_without_having_read").values() == [10.0] * 4


def test_pending_operations_of_a_failed_program_need_no_other_ranks(simulate: Simulate) -> None:
    """Collectives execute when called, so none are among the pending operations."""
    found = simulate("what_a_failed_program_left_pending").values()
    assert found == [[[10.0] * 2, [80.0] * 2, True, True, 10.0]] * 4
