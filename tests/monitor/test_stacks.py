"""Where each rank is now: its answers, and what is shown if it does not answer."""

import time

import pytest

from tests.support import run_double
from xla_nb.messages import events
from xla_nb.messages.events import StackGroup
from xla_nb.monitor import stacks
from xla_nb.monitor.stacks import Inquiry
from xla_nb.record import sample
from xla_nb.record.sample import Sample

STACK = '  File "Cell In[3]", line 9, in f\n    g()\n  File "Cell In[3]", line 4, in g\n    wait()'


class Run(run_double.Run):
    """A run whose ranks answer at once with (place, stack) from `answers`, by rank."""

    def __init__(self, path, ranks, **answers):
        super().__init__(path, ranks)
        self.answers = {int(rank[1:]): answer for rank, answer in answers.items()}
        for rank in range(ranks):
            started = events.RankStarted(rank=rank, pid=rank, device="xla:0")
            self.state.apply(started)

    def ask_stacks(self):
        for rank, answer in self.answers.items():
            self.answer(rank, *answer)

    def answer(self, rank, place, stack):
        self.state.apply(events.RankAt(rank=rank, place=place, stack=stack))


@pytest.fixture
def run(tmp_path):
    def run(ranks, **answers):
        return Run(tmp_path, ranks, **answers)

    return run


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(stacks, "PATIENCE", 0.0)


# ---------------------------------------------------------------- groups


def test_ranks_at_the_same_place_form_one_group(run):
    found = Inquiry(run(3, r0=("a", "s"), r1=("a", "s"), r2=("a", "s"))).wait()
    assert found == [StackGroup((0, 1, 2), "a", "s")]


def test_ranks_at_one_line_with_different_stacks_form_two_groups(run):
    found = Inquiry(run(2, r0=("a", "one"), r1=("a", "two"))).wait()
    assert [group.ranks for group in found] == [(0,), (1,)]


def test_smallest_group_comes_first(run):
    found = Inquiry(run(4, r0=("a", "s"), r1=("a", "s"), r2=("b", "s"), r3=("a", "s"))).wait()
    assert [group.ranks for group in found] == [(2,), (0, 1, 3)]


def test_lowest_rank_comes_first_among_groups_of_equal_size(run):
    found = Inquiry(run(2, r1=("a", "s"), r0=("b", "s"))).wait()
    assert [group.ranks for group in found] == [(0,), (1,)]


def test_innermost_frame_comes_first_with_its_source(run):
    (group,) = Inquiry(run(1, r0=("Cell In[3], line 4", STACK))).wait()
    assert group.stack == (
        '  File "Cell In[3]", line 4, in g\n    wait()\n  File "Cell In[3]", line 9, in f\n    g()'
    )


def test_ended_ranks_are_not_asked(run):
    asked = run(2, r1=("a", "s"))
    asked.state.apply(events.RankFinished(rank=0, preview="3", nbytes=1))
    inquiry = Inquiry(asked)
    assert inquiry.settled
    assert inquiry.answers().keys() == {1}
    assert stacks.text(inquiry.groups()) == "rank 1 at a\ns\n\nrank 0: finished"


def test_rank_that_answers_and_then_ends_is_shown(run):
    asked = run(1, r0=("a", "s"))
    inquiry = Inquiry(asked)
    asked.state.apply(events.RankFinished(rank=0, preview="3", nbytes=1))
    assert [group.place for group in inquiry.groups()] == ["a"]


# ---------------------------------------------------------------- missing answers


def test_inquiry_is_settled_by_the_last_answer(run, monkeypatch):
    monkeypatch.setattr(stacks, "PATIENCE", 60.0)
    asked = run(2, r0=("a", "s"))
    inquiry = Inquiry(asked)
    assert not inquiry.settled
    asked.answer(1, "a", "s")
    assert inquiry.settled


def test_wait_returns_with_the_last_answer(run, monkeypatch):
    monkeypatch.setattr(stacks, "PATIENCE", 60.0)
    asked = run(2, r0=("a", "s"))
    inquiry = Inquiry(asked)
    monkeypatch.setattr(asked.changed, "wait", lambda seconds: asked.answer(1, "a", "s"))
    assert [group.ranks for group in inquiry.wait()] == [(0, 1)]


def test_answer_to_an_earlier_inquiry_does_not_count(run, impatient):
    asked = run(1)
    asked.state.apply(events.RankAt(rank=0, place="old", stack="s", at=time.time() - 10))
    (group,) = Inquiry(asked).wait()
    assert (group.place, group.note) == (
        "",
        "not responding (stopped, or blocked in native code)",
    )


def test_silent_rank_is_shown_where_it_was_last_seen(run, impatient):
    asked = run(2, r0=("a", "s"))
    seen = Sample(at=time.time() - 30, since=0.0, place="Cell In[3], line 7")
    asked.record.sample(1).write_bytes(sample.encode(seen))
    silent = Inquiry(asked).wait()[1]
    assert (silent.ranks, silent.place, silent.stack) == ((1,), "Cell In[3], line 7", "")
    assert silent.note.startswith("not responding (stopped, or blocked in native code)")
    assert "last seen here 30 s ago" in silent.note


def test_rank_that_has_not_started_is_joining(tmp_path, impatient):
    (group,) = Inquiry(Starting(tmp_path, 2)).wait()
    assert group == StackGroup((0, 1), "", "", "not started yet: joining the runtime")


def test_live_rank_that_has_not_received_the_cell_is_not_joining(tmp_path, impatient):
    waits = Starting(tmp_path, 2)
    live = tuple(events.RankStarted(rank=rank, pid=11 + rank, device="xla:0") for rank in range(2))
    waits.state.apply(events.JobStarted(host="h", simulated=True, ranks=2, live=live))
    (group,) = Inquiry(waits).wait()
    assert (group.ranks, group.note[:14]) == ((0, 1), "not responding")


class Starting(run_double.Run):
    def ask_stacks(self):
        pass


# ---------------------------------------------------------------- text


def test_text_has_a_paragraph_per_group():
    groups = [StackGroup((1,), "a", "  one"), StackGroup((0, 2, 3), "b", "", "no answer")]
    assert stacks.text(groups) == "rank 1 at a\n  one\n\nranks 0, 2, 3 at b: no answer"


def test_text_without_groups_states_that_no_ranks_run():
    assert stacks.text([]) == "No ranks are running."


# ---------------------------------------------------------------- real ranks

# Imports are in the function; otherwise later cells naming a module would run all of them.
CELL = """
%%xla_spawn -n 2 -o deadlocked --bg --view none
def deadlock(rank):
    import time, torch, torch_xla, torch_xla.core.xla_model as xm
    x = torch.ones(2, device=torch_xla.device())
    if rank == 1:
        while True: time.sleep(0.01)  # rank 1
    xm.all_reduce("sum", x)  # rank 0
"""
ASK = """
import time
from xla_nb.monitor.stacks import Inquiry
deadline = time.monotonic() + 60
def is_deadlocked():
    first, second = map(deadlocked.sample, (0, 1))
    return first and second and first.activity == "waiting" and second.place.endswith("line 6")
while not is_deadlocked():
    assert time.monotonic() < deadline and not deadlocked.done
    time.sleep(0.02)
answers = [(group.ranks, group.place, group.stack) for group in Inquiry(deadlocked).wait()]
"""


def test_stacks_name_each_ranks_line_in_a_deadlock(notebook):
    number = notebook.ok(CELL.strip()).number
    try:
        notebook.ok(ASK)
    finally:
        notebook.ok("deadlocked.stop()\ntry: deadlocked.wait(60)\nexcept xla_nb.RunFailed: pass")
    lines = CELL.strip().splitlines()
    places = [
        f"Cell In[{number}], line {n}"
        for rank in (0, 1)
        for n, line in enumerate(lines, 1)
        if line.endswith(f"# rank {rank}")
    ]
    ranks = "[(ranks, place) for ranks, place, _ in answers]"
    assert notebook.value(ranks) == repr([((0,), places[0]), ((1,), places[1])])
    first = notebook.value("[stack.splitlines()[0] for *_, stack in answers][1]")
    assert f'File "Cell In[{number}]"' in first
