"""Ranks that do not stop: when they are asked for stacks, and how that is reported."""

import time

import pytest

from tests.run.conftest import ranks
from tests.support import run_double
from xla_nb.messages import events
from xla_nb.monitor import stacks
from xla_nb.record import sample
from xla_nb.record.sample import Sample
from xla_nb.run import stopping
from xla_nb.run.stopping import Staying, may_take

NOW = 1000.0  # when the run was stopped, since the epoch; 0 on the monotonic clock


class Run(run_double.Run):
    """A run that counts requests for stacks; its clock starts with the stop."""

    asked = 0

    def ask_stacks(self):
        self.asked += 1

    def take(self, event):
        self.state.apply(event)

    def sees(self, rank, line, at):
        seen = Sample(at=at, since=0.0, place=f"Cell In[3], line {line}")
        self.record.sample(rank).write_bytes(sample.encode(seen))

    def was_interrupted(self, rank, line, at):
        place = f"Cell In[3], line {line}"
        self.take(events.RankInterrupted(rank=rank, place=place, stack="s", at=at))

    def answers(self, rank, line, at):
        self.take(events.RankAt(rank=rank, place=f"Cell In[3], line {line}", stack="s", at=at))


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    for event in ranks(2):
        made.take(event)
    return made


@pytest.fixture
def stay(run, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)
    return Staying(run, 0.0)


def where(run, *numbers, now=NOW + 1):
    return stopping.in_words(run.state, numbers, now)


# ---------------------------------------------------------------- asking


def test_ranks_are_asked_soon_after_the_interrupt_and_before_the_next_signal(run, stay):
    asked = []
    for tick in range(100):
        stay.ask_if_due(tick / 10, due=10)
        asked.append(run.asked)
    assert (asked[0], asked[10], asked[80], asked[99]) == (0, 1, 1, 2)


def test_ranks_that_get_no_further_signal_are_asked_once(run, stay):
    for second in range(1, 99):
        stay.ask_if_due(second, due=None)
    assert run.asked == 1


def test_ranks_without_a_reported_interrupt_get_another_unless_they_handle_sigint(run, stay):
    for event in ranks(3):
        run.take(event)
    for rank, heeds in [(0, True), (1, True), (2, False)]:
        seen = Sample(at=NOW + 0.5, since=NOW, heeds=heeds)
        run.record.sample(rank).write_bytes(sample.encode(seen))
    run.was_interrupted(1, 7, NOW)
    found = [stay.unheard(tick / 10, [0, 1, 2]) for tick in range(20)]
    assert [one for one in found if one] == [[0]]
    assert found.index([0]) > 5  # late enough for a new sample


# ---------------------------------------------------------------- noting


@pytest.mark.parametrize("after", [0.01, 0.5])
def test_sample_newer_than_the_interrupt_shows_where_a_rank_is(run, stay, after):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + after)
    stay.note([0])
    assert where(run, 0) == "at Cell In[3], line 6"


@pytest.mark.parametrize("at", [NOW - 0.2, NOW + 0.01, None])  # before, during, never
def test_place_of_an_interrupt_is_marked_as_interrupted(run, stay, at):
    run.was_interrupted(0, 4, NOW)
    if at is not None:
        run.sees(0, 4, at)
    stay.note([0])
    assert where(run, 0) == "interrupted at Cell In[3], line 4"


def test_answer_newer_than_the_sample_shows_where_a_rank_is(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + 0.3)
    run.answers(0, 7, NOW + 0.5)
    stay.note([0])
    assert where(run, 0) == "at Cell In[3], line 7"


def test_old_sample_is_shown_with_its_age(run, stay):
    run.sees(0, 6, NOW)
    stay.note([0])
    assert where(run, 0, now=NOW + 30) == "last seen at Cell In[3], line 6, 30 s ago"


def test_ranks_at_different_places_are_listed_separately(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.answers(1, 7, NOW)
    told = "rank 0 interrupted at Cell In[3], line 4 and rank 1 at Cell In[3], line 7"
    assert where(run, 0, 1) == told


def test_ranks_at_unknown_places_give_no_text(run):
    assert where(run, 0, 1) == ""


# ---------------------------------------------------------------- with stacks


def test_rank_that_did_not_answer_since_the_interrupt_is_not_responding(run, stay, monkeypatch):
    monkeypatch.setattr(stacks, "PATIENCE", 0.0)
    run.was_interrupted(0, 4, NOW)
    stay.ask_if_due(0.5, due=5)
    assert stay.with_stacks([0]) == (
        "rank 0: interrupted at Cell In[3], line 4; not responding since (stopped, or "
        "blocked in native code)"
    )


def test_rank_without_time_to_answer_is_not_called_unresponsive(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.sees(1, 6, NOW + 0.1)
    assert stay.with_stacks([0, 1]) == (
        "rank 0 at Cell In[3], line 4\ns\n\nrank 1 at Cell In[3], line 6"
    )


# ---------------------------------------------------------------- cost of another stop


@pytest.mark.parametrize(
    ("lives", "says"),
    [
        (False, "Stop again to end them now."),
        (
            True,
            "After that, or if you stop again, SIGTERM ends ranks 0, 2, and the values there are "
            "lost.",
        ),
    ],
)
def test_notice_states_what_a_second_stop_costs(lives, says):
    told = may_take([0, 2], 5.0, lives)
    assert told.text == f"Interrupted; ranks 0, 2 may take up to 5 s to clean up (grace). {says}"
    assert told.passing
