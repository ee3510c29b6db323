"""Ranks that do not do the same are told so, all of them, with who does what where."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.simulation.harness import Job

Simulate = Callable[..., Job]


def told(job: Job, *ranks: int) -> list[str]:
    """What CollectiveMismatch said on these ranks, line by line; it said the same on all."""
    ended = [job.ranks[rank] for rank in ranks]
    assert {each.how for each in ended} == {"CollectiveMismatch"}, ended
    messages = {each.value.partition("\nTraceback")[0] for each in ended}
    assert len(messages) == 1, messages
    head, *lines = messages.pop().splitlines()
    assert head == "the ranks do not take part in the same collective:"
    return [re.sub(r"/\S*/", "", line.strip()) for line in lines]


@pytest.mark.parametrize(
    ("scenario", "most", "other"),
    [
        ("mismatch_operation", "0, 2, 3: all_reduce sum f32[4]", "1: all_gather f32[4] dim 0"),
        ("mismatch_kind", "0-2: all_reduce sum f32[4]", "3: all_reduce max f32[4]"),
        ("mismatch_shape", "0, 1, 3: all_reduce sum f32[4]", "2: all_reduce sum f32[5]"),
        ("mismatch_dtype", "1-3: all_reduce sum f32[4]", "0: all_reduce sum bf16[4]"),
        (
            "mismatch_groups",
            "1-3: all_reduce sum f32[4] groups [[0,2],[1,3]]",
            "0: all_reduce sum f32[4] groups [[0,1],[2,3]]",
        ),
        ("mismatch_order", "1-3: all_reduce sum f32[3]", "0: all_reduce sum f32[4]"),
    ],
)
def test_every_rank_is_told_who_does_what(
    simulate: Simulate, scenario: str, most: str, other: str
) -> None:
    lines = told(simulate(scenario), 0, 1, 2, 3)
    assert len(lines) == 2
    assert any(line.startswith(f"ranks {most} at scenarios.py, line ") for line in lines), lines
    assert any(line.startswith(f"rank {other} at scenarios.py, line ") for line in lines), lines
    assert all("xm.all_" in line for line in lines)  # the text of the line


def test_the_line_of_a_cell_is_named(simulate: Simulate) -> None:
    lines = told(simulate("mismatch_in_a_cell"), 0, 1, 2, 3)
    where = "at Cell In[5], line 2: return xm.all_reduce('sum', value)"
    assert lines == [
        f"rank 0: all_reduce sum f32[2] {where}",
        f"ranks 1-3: all_reduce sum f32[4] {where}",
    ]


def test_in_backward_the_line_that_called_it_is_named(simulate: Simulate) -> None:
    lines = told(simulate("mismatch_in_backward"), 0, 1, 2, 3)
    assert [line.partition(": ")[0] for line in lines] == ["rank 0", "ranks 1-3"]
    assert all(line.endswith(": doubled.sum().backward()") for line in lines), lines


def test_the_tensor_that_differs_in_a_long_list_is_shown(simulate: Simulate) -> None:
    lines = told(simulate("mismatch_in_a_long_list"), 0, 1, 2, 3)
    assert "f32[5]" in lines[1]
    assert "f32[5]" not in lines[0]
    assert max(map(len, lines)) < 400


def test_a_mismatch_that_is_caught_leaves_the_ranks_in_step(simulate: Simulate) -> None:
    assert simulate("mismatch_caught").values() == [[4.0, 4.0]] * 4


def test_a_rank_that_returned_is_named_at_once(simulate: Simulate) -> None:
    job = simulate("returns_early")
    assert job.ranks[2].how == "returned"
    for rank in (0, 1, 3):
        assert job.ranks[rank].how == "CollectiveMismatch"
        assert "\n  rank 2: returned\n" in job.ranks[rank].value


def test_a_rank_that_returned_before_any_collective_is_named(simulate: Simulate) -> None:
    job = simulate("returns_before_any")
    assert [ended.how for ended in job.ranks.values()] == ["returned"] + ["CollectiveMismatch"] * 3
    assert all("rank 0: returned" in job.ranks[rank].value for rank in (1, 2, 3))


def test_a_rank_that_raised_is_named_with_its_error(simulate: Simulate) -> None:
    job = simulate("raises_early")
    assert job.ranks[1].how == "ValueError"
    for rank in (0, 2, 3):
        assert job.ranks[rank].how == "CollectiveMismatch"
        assert "rank 1: raised ValueError" in job.ranks[rank].value


def test_a_rank_that_never_comes_is_named_after_the_timeout(simulate: Simulate) -> None:
    values = simulate("never_arrives", env={"XLA_NB_COLLECTIVE_TIMEOUT": "0.3"}).values()
    for said in values[:3]:
        assert said.startswith("waited 0 s for rank 3 in all_reduce sum f32[4] at ")


def test_a_rank_that_is_late_is_named_and_waited_for(simulate: Simulate) -> None:
    job = simulate("late")
    assert job.values() == [[None]] + [[("all_reduce sum f32[4]", (0,)), None]] * 3
    lines = [line for line in job.stderr.splitlines() if line.startswith("xla_nb: waited")]
    assert len(lines) == 3
    assert all("for rank 0 in all_reduce sum f32[4] at " in line for line in lines)


@pytest.mark.parametrize("scenario", ["killed", "killed_inside"])
def test_a_rank_that_was_killed_is_named(simulate: Simulate, scenario: str) -> None:
    ranks = simulate(scenario).ranks
    assert sorted(ranks) == [0, 1, 3]
    assert all(ended.value.startswith("rank 2's process ended") for ended in ranks.values())


def test_after_a_program_that_failed_the_next_one_is_in_step(simulate: Simulate) -> None:
    assert simulate("two_programs").values() == [[4.0]] * 4


def test_a_rank_can_end_while_a_thread_of_it_waits(simulate: Simulate) -> None:
    ranks = simulate("leaves_while_a_thread_waits", ranks=2).ranks
    assert [ended.how for ended in ranks.values()] == ["KeyError", "returned"]
