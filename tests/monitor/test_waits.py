"""The sentence of a hang report: true in every case, and no more than is known."""

from dataclasses import replace

import pytest

from xla_nb.messages.events import StackGroup
from xla_nb.monitor.activity import RankStatus
from xla_nb.monitor.waits import groups, verdict, why_over
from xla_nb.record.sample import INPUT, LOCK

FIVE = 300.0  # seconds
AFTER = 300.0


def line(number, cell=3):
    return f"Cell In[{cell}], line {number}"


def at(rank, number=9, call="queue.get", quiet=FIVE, **more):
    """A rank in Python."""
    return RankStatus(rank, quiet=quiet, place=line(number), call=call, **more)


def computing(rank, number=9, cpu=0.98, **more):
    return at(rank, number, call=more.pop("call", ""), cpu=cpu, **more)


def compiling(rank, number=4, lasting=FIVE, **more):
    return at(rank, number, call="", activity="compiling", lasting=lasting, **more)


def reduces(rank, *missing, number=6, lasting=FIVE, quiet=FIVE, operation="all_reduce sum f32[2]"):
    return RankStatus(
        rank,
        quiet=quiet,
        lasting=lasting,
        place=line(number),
        activity="waiting",
        operation=operation,
        missing=missing,
    )


def locks(rank, *holder, number=7, **more):
    return reduces(rank, *holder, number=number, operation=LOCK, **more)


def ended(rank, phase="finished"):
    return RankStatus(rank, phase=phase)


#: (statuses of the ranks, the verdict)
CASES = {
    "one rank asks": (
        [reduces(0, operation=INPUT), reduces(1, 0, number=9)],
        "No progress for over 5 min: rank 0 has been waiting 5 min for an answer at Cell In[3], "
        "line 6; rank 1 has been waiting 5 min in all_reduce at line 9 for rank 0",
    ),
    "one rank elsewhere": (
        [reduces(0, 2), reduces(1, 2), at(2), reduces(3, 2)],
        "No progress for over 5 min: rank 2 is in `queue.get` at Cell In[3], line 9; ranks 0, "
        "1, 3 have been waiting 5 min in all_reduce at line 6 for rank 2",
    ),
    "rank in another cell": (
        [reduces(0, 1), RankStatus(1, quiet=FIVE, place=line(9, cell=2), call="queue.get")],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[2], line 9; rank 0 "
        "has been waiting 5 min in all_reduce at Cell In[3], line 6 for rank 1",
    ),
    "two ranks elsewhere": (
        [reduces(0, 1, 2), at(1), compiling(2)],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[3], line 9; rank 2 "
        "has been compiling for 5 min at line 4; rank 0 has been waiting 5 min in all_reduce at "
        "line 6 for ranks 1, 2",
    ),
    "two ranks at one line": (
        [reduces(0, 1, 2), at(1), at(2)],
        "No progress for over 5 min: ranks 1, 2 are in `queue.get` at Cell In[3], line 9; "
        "rank 0 has been waiting 5 min in all_reduce at line 6 for ranks 1, 2",
    ),
    "missing rank compiles": (
        [reduces(0, 1), compiling(1, lasting=310.0)],
        "No progress for over 5 min: rank 1 has been compiling for 5 min 10 s at Cell In[3], "
        "line 4; rank 0 has been waiting 5 min in all_reduce at line 6 for rank 1",
    ),
    "missing rank computes": (
        [reduces(0, 1), computing(1)],
        "No progress for over 5 min: rank 1 is computing at Cell In[3], line 9 (98 % of a "
        "CPU); rank 0 has been waiting 5 min in all_reduce at line 6 for rank 1",
    ),
    "missing rank makes progress": (
        [reduces(0, 1), computing(1, quiet=3.0)],
        "No progress for over 5 min: rank 0 has been waiting 5 min in all_reduce at Cell In[3], "
        "line 6 for rank 1. Rank 1 is computing at line 9 (98 % of a CPU)",
    ),
    "missing rank is blocked in native code": (
        [reduces(0, 1), at(1, call="", unheard=True)],
        "No progress for over 5 min: rank 1 is not responding (stopped, or blocked in native "
        "code), last seen at Cell In[3], line 9; rank 0 has been waiting 5 min in all_reduce at "
        "line 6 for rank 1",
    ),
    "missing rank sends its result": (
        [reduces(0, 1), RankStatus(1, quiet=FIVE, returned=True)],
        "No progress for over 5 min: rank 1 is sending its result; rank 0 has been waiting 5 min "
        "in all_reduce at Cell In[3], line 6 for rank 1",
    ),
    "missing rank has ended": (
        [reduces(0, 1), ended(1, "died")],
        "No progress for over 5 min: rank 0 has been waiting 5 min in all_reduce at Cell In[3], "
        "line 6 for rank 1. Rank 1 has died",
    ),
    "two ranks wait for each other": (
        [reduces(0, 1), reduces(1, 0, number=8, operation="all_gather f32[2] dim 0")],
        "No progress for over 5 min: rank 0 has been waiting 5 min in all_reduce at Cell In[3], "
        "line 6 for rank 1; rank 1 has been waiting 5 min in all_gather at line 8 for rank 0",
    ),
    "later ranks wait for the hung rank too": (
        [reduces(0, 1, lasting=200.0, quiet=200.0), at(1)],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[3], line 9. Rank 0 "
        "has been waiting 3 min 20 s in all_reduce at line 6 for rank 1",
    ),
    "data is transferred": (
        [reduces(0)],
        "No progress for over 5 min: rank 0 has been waiting 5 min in all_reduce at Cell In[3], "
        "line 6 while data is transferred",
    ),
    # On a TPU no rank reports which ranks it waits for.
    "a TPU": (
        [at(0, 6, "torch_xla.sync"), at(1, 6, "torch_xla.sync"), at(2)],
        "No progress for over 5 min: rank 2 is in `queue.get` at Cell In[3], line 9; ranks 0, 1 "
        "are in `torch_xla.sync` at line 6",
    ),
    "a TPU, all ranks at one line": (
        [at(rank, 6, "torch_xla.sync") for rank in range(4)],
        "No progress for over 5 min: ranks 0–3 are in `torch_xla.sync` at Cell In[3], line 6",
    ),
    "a TPU, one rank compiles": (
        [at(0, 6, "torch_xla.sync"), at(1, 6, "torch_xla.sync"), compiling(2)],
        "No progress for over 5 min: rank 2 has been compiling for 5 min at Cell In[3], line 4; "
        "ranks 0, 1 are in `torch_xla.sync` at line 6",
    ),
    "all ranks compute": (
        [computing(rank, cpu=0.9 + rank / 100) for rank in range(4)],
        "No progress for over 5 min: ranks 0–3 are computing at Cell In[3], line 9 (90 % of a CPU)",
    ),
    "one of several ranks is quiet": (
        [at(0, 6, "f.g", quiet=1.0), at(1)],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[3], line 9",
    ),
    "a hundred minutes": (
        [at(0, quiet=6000.0), at(1, 6, quiet=7500.0)],
        "No progress for over 1 h 40 min: rank 0 is in `queue.get` at Cell In[3], line 9; rank 1 "
        "is in `queue.get` at line 6",
    ),
    "outside cells": (
        [RankStatus(0, quiet=FIVE)],
        "No progress for over 5 min: rank 0 is at an unknown line",
    ),
    "joining the runtime": (
        [RankStatus(0, "starting", FIVE, FIVE), RankStatus(1, "starting", FIVE, FIVE)],
        "No progress for over 5 min: ranks 0, 1 have been joining the runtime for 5 min",
    ),
    "lock of a returned rank": (
        [locks(0, 1, lasting=2.0, quiet=2.0), ended(1), locks(2, 1, lasting=2.0, quiet=2.0)],
        "Rank 1 has returned; ranks 0, 2 have been waiting 2 s for `lock` at Cell In[3], line 7, "
        "which rank 1 holds",
    ),
    "lock of a dead rank": (
        [locks(0, 1, lasting=2.0, quiet=2.0), ended(1, "died")],
        "Rank 1 has died; rank 0 has been waiting 2 s for `lock` at Cell In[3], line 7, which rank "
        "1 holds",
    ),
    "lock of a rank elsewhere": (
        [locks(0, 1), at(1)],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[3], line 9; rank 0 "
        "has been waiting 5 min for `lock` at line 7, which rank 1 holds",
    ),
    "holder of a lock waits for its waiters": (
        [locks(0, 1), reduces(1, 0)],
        "No progress for over 5 min: rank 0 has been waiting 5 min for `lock` at Cell In[3], line "
        "7, which rank 1 holds; rank 1 has been waiting 5 min in all_reduce at line 6 for rank 0",
    ),
    "collective misses a rank waiting for a lock": (
        [reduces(0, 2), ended(1), locks(2, 1)],
        "No progress for over 5 min: rank 0 has been waiting 5 min in all_reduce at Cell In[3], "
        "line 6 for rank 2; rank 2 has been waiting 5 min for `lock` at line 7, which rank 1 "
        "holds. Rank 1 has returned",
    ),
    "rank waits for its own lock": (
        [locks(0, 0)],
        "No progress for over 5 min: rank 0 has been waiting 5 min for `lock` at Cell In[3], line "
        "7, which it holds itself",
    ),
    "lock without a holder": (
        [locks(0)],
        "No progress for over 5 min: rank 0 has been waiting 5 min for `lock` at Cell In[3], "
        "line 7",
    ),
    "collective and other ranks": (
        [reduces(0, 1), at(1), compiling(2)],
        "No progress for over 5 min: rank 1 is in `queue.get` at Cell In[3], line 9; rank 2 "
        "has been compiling for 5 min at line 4; rank 0 has been waiting 5 min in all_reduce at "
        "line 6 for rank 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_states_what_is_known(case):
    statuses, sentence = CASES[case]
    assert verdict(statuses, AFTER) == sentence


def test_verdict_without_a_clock_states_only_certain_hangs():
    statuses = [reduces(0, 1), at(1), locks(2, 3), ended(3)]
    assert verdict(statuses, 0) == (
        "Rank 3 has returned; rank 2 has been waiting 5 min for `lock` at Cell In[3], line 7, "
        "which rank 3 holds"
    )


def test_verdict_omits_short_waits():
    statuses = [reduces(0, 1, lasting=3.0, quiet=3.0), at(1, quiet=3.0), at(2)]
    assert verdict(statuses, AFTER) == (
        "No progress for over 5 min: rank 2 is in `queue.get` at Cell In[3], line 9"
    )


def test_verdict_about_many_places_is_short():
    said = verdict([at(rank, number=rank + 1) for rank in range(256)], AFTER)
    assert said.endswith("; 252 more places in the report")
    assert len(said) < 400
    said = verdict(
        [reduces(0, *range(1, 256)), *(at(rank, number=rank) for rank in range(1, 256))], AFTER
    )
    assert said.endswith("; 252 more places in the report")


# ---------------------------------------------------------------- groups


def placed(groups):
    return [(group.ranks, group.place) for group in groups]


def answers(statuses):
    return {
        one.rank: StackGroup((one.rank,), one.place, f"stack of {one.place}") for one in statuses
    }


def test_rank_waiting_for_no_other_comes_first():
    statuses = [reduces(0, 1), at(1)]
    found = groups(statuses, answers(statuses))
    assert placed(found) == [((1,), line(9)), ((0,), line(6))]
    notes = [group.note for group in found]
    assert notes == ["", "waiting 5 min in all_reduce sum f32[2] for rank 1"]


def test_smallest_group_comes_first_without_collectives():
    statuses = [at(0, 6), at(1, 6), at(2)]
    assert placed(groups(statuses, answers(statuses))) == [((2,), line(9)), ((0, 1), line(6))]


def test_ended_ranks_are_in_no_group():
    assert groups([ended(0)], {}) == []


def test_ranks_with_different_waiting_times_form_one_group_with_both_times():
    statuses = [reduces(0, 2, lasting=400.0), reduces(1, 2)]
    (group,) = groups(statuses, answers(statuses))
    assert group.note == "waiting 5 min to 6 min 40 s in all_reduce sum f32[2] for rank 2"


def test_ranks_waiting_for_the_same_thing_form_one_group_despite_different_details():
    known = [replace(locks(0, 1), cpu=0.01), ended(1), replace(locks(2, 1), unheard=True)]
    assert verdict(known, AFTER).startswith(
        "No progress for over 5 min: ranks 0, 2 have been waiting "
    )


def test_group_notes_that_its_rank_did_not_answer():
    silent = StackGroup((0,), line(9), "", "not responding (stopped, or blocked in native code)")
    (group,) = groups([at(0, unheard=True)], {0: silent})
    assert (group.place, group.stack) == (line(9), "")
    assert group.note.endswith("not responding (stopped, or blocked in native code)")


def test_all_groups_are_kept_but_only_some_have_stacks():
    statuses = [at(rank, number=rank + 1) for rank in range(256)]
    found = groups(statuses, answers(statuses))
    assert sorted(rank for group in found for rank in group.ranks) == list(range(256))
    assert sum(bool(group.stack) for group in found) == 16


# ---------------------------------------------------------------- end of a hang


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ([at(0), at(1)], "Ranks 0, 1 are making progress again"),
        ([ended(0), at(1)], "Rank 0 is no longer running and rank 1 is making progress again"),
    ],
)
def test_why_over_states_what_ended_the_hang(now, sentence):
    assert why_over([0, 1], now) == sentence


def test_why_over_names_only_the_first_of_many_ranks():
    told = "Ranks 0, 2, 4, 6, and 28 more are making progress again"
    assert why_over(range(0, 64, 2), [at(rank) for rank in range(64)]) == told
