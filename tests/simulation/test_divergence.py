"""When ranks diverge, all of them raise an error that lists each rank's call and line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.simulation.harness import Job, Launcher

Simulate = Callable[..., Job]


def mismatch(job: Job, *ranks: int) -> list[str]:
    """The lines of the CollectiveMismatch below its heading. The error must be the same on these
    ranks; its heading names the two groups of ranks, the smaller one first."""
    ended = [job.ranks[rank] for rank in ranks]
    assert {each.how for each in ended} == {"CollectiveMismatch"}, ended
    messages = {each.value.partition("\nTraceback")[0] for each in ended}
    assert len(messages) == 1, messages
    head, *lines = messages.pop().splitlines()
    first, second = (line.strip().partition(":")[0] for line in lines)
    assert head == f"{first.capitalize()} and {second} called different collectives:"
    return [re.sub(r"/\S*/", "", line.strip()) for line in lines]


@pytest.mark.parametrize(
    ("scenario", "most", "other"),
    [
        ("mismatch_operation", "0, 2, 3: all_reduce sum f32[4]", "1: all_gather f32[4] dim 0"),
        ("mismatch_kind", "0–2: all_reduce sum f32[4]", "3: all_reduce max f32[4]"),
        (
            "mismatch_scale",
            "0–2: all_reduce sum scale 9.99999000001e-07 f32[4]",
            "3: all_reduce sum scale 9.99998000004e-07 f32[4]",
        ),
        ("mismatch_shape", "0, 1, 3: all_reduce sum f32[4]", "2: all_reduce sum f32[5]"),
        ("mismatch_dtype", "1–3: all_reduce sum f32[4]", "0: all_reduce sum bf16[4]"),
        (
            "mismatch_groups",
            "1–3: all_reduce sum f32[4] groups [[0,2],[1,3]]",
            "0: all_reduce sum f32[4] groups [[0,1],[2,3]]",
        ),
        ("mismatch_order", "1–3: all_reduce sum f32[3]", "0: all_reduce sum f32[4]"),
    ],
)
def test_mismatch_lists_each_ranks_call_on_every_rank(
    simulate: Simulate, scenario: str, most: str, other: str
) -> None:
    lines = mismatch(simulate(scenario), 0, 1, 2, 3)
    assert len(lines) == 2
    assert any(line.startswith(f"ranks {most} at scenarios.py, line ") for line in lines), lines
    assert any(line.startswith(f"rank {other} at scenarios.py, line ") for line in lines), lines
    assert all("xm.all_" in line for line in lines)  # the text of the line


@pytest.mark.parametrize("late", ["", "_of_late_ranks"])
def test_mismatch_names_a_group_collective_and_a_global_one(simulate: Simulate, late: str) -> None:
    job = simulate(f"mismatch_with_a_group{late}")
    assert {ended.how for ended in job.ranks.values()} == {"CollectiveMismatch"}
    for rank in (0, 1):
        assert "  rank 0: all_reduce sum f32[4] groups [[0,1]] at " in job.ranks[rank].value
        assert re.search(r"  ranks? 1\S*: all_reduce sum f32\[4\] at ", job.ranks[rank].value)
    assert all("rank 0: " in job.ranks[rank].value for rank in (2, 3))  # waiting or raised


def test_ranks_stay_in_step_after_a_caught_interrupt(simulate: Simulate) -> None:
    sums = [[10.0**turn * (1 + 2 + 3 + 4)] * 3 for turn in range(6)]
    assert simulate("interrupted_while_it_waits").values() == [
        sums[1::2] if rank == 2 else sums for rank in range(4)
    ]


@pytest.mark.parametrize("waited", ["0", "1"])
def test_interrupt_inside_a_collective_ends_it_on_all_ranks(
    simulate: Simulate, waited: str
) -> None:
    """Large values take several meetings; at later ones the other ranks would wait for rank 2."""
    told = "CollectiveMismatch rank 2 raised KeyboardInterrupt during all_reduce sum"
    assert simulate("interrupted_in_a_large_one", env={"WAITED": waited}).values() == [
        ["KeyboardInterrupt ", told] if rank == 2 else [told, told] for rank in range(4)
    ]


def test_mismatch_names_the_cell_and_line(simulate: Simulate) -> None:
    lines = mismatch(simulate("mismatch_in_a_cell"), 0, 1, 2, 3)
    where = "at Cell In[5], line 2: return xm.all_reduce('sum', value)"
    assert lines == [
        f"rank 0: all_reduce sum f32[2] {where}",
        f"ranks 1–3: all_reduce sum f32[4] {where}",
    ]


def test_mismatch_in_backward_names_the_line_that_called_backward(simulate: Simulate) -> None:
    lines = mismatch(simulate("mismatch_in_backward"), 0, 1, 2, 3)
    assert [line.partition(": ")[0] for line in lines] == ["rank 0", "ranks 1–3"]
    assert all(line.endswith(": doubled.sum().backward()") for line in lines), lines


def test_mismatch_shows_the_differing_tensor_of_a_long_list(simulate: Simulate) -> None:
    lines = mismatch(simulate("mismatch_in_a_long_list"), 0, 1, 2, 3)
    assert "f32[5]" in lines[0]
    assert "f32[5]" not in lines[1]
    assert max(map(len, lines)) < 400


def test_ranks_stay_in_step_after_a_caught_mismatch(simulate: Simulate) -> None:
    assert simulate("mismatch_caught").values() == [[4.0, 4.0]] * 4


def test_error_names_a_rank_that_returned_early(simulate: Simulate) -> None:
    job = simulate("returns_early")
    assert job.ranks[2].how == "returned"
    for rank in (0, 1, 3):
        assert job.ranks[rank].how == "CollectiveMismatch"
        heading, culprit, *_ = job.ranks[rank].value.splitlines()
        told = r"Rank 2 returned while ranks? [\d, ]+ (was|were) in all_reduce \(.+, line \d+\):"
        assert re.fullmatch(told, heading)
        assert culprit == "  rank 2: returned"


def test_error_names_the_rank_with_an_extra_collective(
    simulate: Simulate,
) -> None:
    assert simulate("calls_one_more").values() == [[]] * 4


def test_error_names_a_rank_that_returned_before_any_collective(simulate: Simulate) -> None:
    job = simulate("returns_before_any")
    assert [ended.how for ended in job.ranks.values()] == ["returned"] + ["CollectiveMismatch"] * 3
    assert all("rank 0: returned" in job.ranks[rank].value for rank in (1, 2, 3))


def test_error_names_a_rank_that_raised_and_its_exception(simulate: Simulate) -> None:
    job = simulate("raises_early")
    assert job.ranks[1].how == "ValueError"
    for rank in (0, 2, 3):
        assert job.ranks[rank].how == "CollectiveMismatch"
        assert "rank 1: raised ValueError" in job.ranks[rank].value


def test_ranks_know_a_late_rank_and_wait_for_it(simulate: Simulate) -> None:
    waits = simulate("late").values()
    assert waits == [[None]] + [[("all_reduce sum f32[4]", (0,)), None]] * 3


def test_error_names_a_killed_rank(simulate: Simulate) -> None:
    ranks = simulate("killed").ranks
    assert sorted(ranks) == [0, 1, 3]
    assert all(ended.value.startswith("rank 2's process ended") for ended in ranks.values())


def test_error_names_only_the_rank_killed_inside_a_collective(simulate: Simulate) -> None:
    ranks = simulate("killed_inside").ranks
    assert sorted(ranks) == [0, 1, 3]
    for ended in ranks.values():
        assert len(ended.value) == 2
        assert all(
            text.startswith("rank 2's process ended while this rank was in all")
            for text in ended.value
        )


def test_exception_inside_a_collective_is_reported_to_the_other_ranks(simulate: Simulate) -> None:
    ranks = simulate("raises_inside").ranks
    assert ranks[2].how == "MemoryError"
    for other in (0, 1, 3):
        assert ranks[other].value.startswith("rank 2 raised MemoryError during all_reduce sum f32[")
        assert ranks[other].value.endswith(", True")


def test_exception_inside_a_collective_is_reported_to_other_hosts(
    launcher: Launcher,
) -> None:
    hosts = launcher.run_hosts("raises_between_hosts", 2)
    ends = {rank: ended.value for host in hosts for rank, ended in host.ranks.items()}
    assert ends[0] == ends[2]
    assert ends[0].startswith("rank 1 raised MemoryError during all_reduce sum f32[")


def test_ranks_are_in_step_after_a_failed_program(simulate: Simulate) -> None:
    assert simulate("two_programs").values() == [[4.0]] * 4


def test_rank_can_end_while_one_of_its_threads_waits(simulate: Simulate) -> None:
    ranks = simulate("leaves_while_a_thread_waits", ranks=2).ranks
    assert [ended.how for ended in ranks.values()] == ["KeyError", "returned"]
