"""Ranks that do not stop: when they are asked where they are, and what is told of it."""

import pytest

from tests.run.conftest import ranks
from tests.support import run_double
from xla_nb.messages import events
from xla_nb.record import sample
from xla_nb.record.sample import Sample
from xla_nb.run import stopping
from xla_nb.run.stopping import Staying, may_take

NOW = 1000.0  # since the epoch; the run was stopped then, and at 0 of the monotonic clock


class Run(run_double.Run):
    """Counts the questions; its clock begins with the stop."""

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
    monkeypatch.setattr(stopping.time, "time", lambda: NOW)
    return Staying(run, 0.0, NOW)


def where(run, *numbers, now=NOW + 1):
    return stopping.in_words(run.state, numbers, now)


# ---------------------------------------------------------------- asking


def test_they_are_asked_soon_after_the_interrupt_and_again_before_the_next_signal(run, stay):
    asked = []
    for tick in range(100):
        stay.ask_if_due(tick / 10, due=10)
        asked.append(run.asked)
    assert (asked[0], asked[10], asked[80], asked[99]) == (0, 1, 1, 2)


def test_those_that_get_no_further_signal_are_not_asked_again(run, stay):
    for second in range(1, 99):
        stay.ask_if_due(second, due=None)
    assert run.asked == 1


def test_who_has_told_of_no_interrupt_gets_another_unless_the_program_heeds_it_itself(run, stay):
    for event in ranks(3):
        run.take(event)
    for rank, heeds in [(0, True), (1, True), (2, False)]:
        seen = Sample(at=NOW + 0.5, since=NOW, heeds=heeds)
        run.record.sample(rank).write_bytes(sample.encode(seen))
    run.was_interrupted(1, 7, NOW)
    found = [stay.unheard(tick / 10, [0, 1, 2]) for tick in range(20)]
    assert [one for one in found if one] == [[0]]
    assert found.index([0]) > 5  # so that they were sampled since


# ---------------------------------------------------------------- noting


@pytest.mark.parametrize("after", [0.01, 0.5])
def test_a_sample_newer_than_the_interrupt_tells_where_a_rank_is(run, stay, after):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + after)
    stay.note([0])
    assert where(run, 0) == "at Cell In[3], line 6"


@pytest.mark.parametrize("at", [NOW - 0.2, NOW + 0.01, None])  # before it, while it strikes
def test_an_interrupt_is_not_told_as_where_a_rank_is(run, stay, at):
    run.was_interrupted(0, 4, NOW)
    if at is not None:
        run.sees(0, 4, at)
    stay.note([0])
    assert where(run, 0) == "interrupted at Cell In[3], line 4"


def test_an_answer_newer_than_the_sample_tells_where_a_rank_is(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + 0.3)
    run.answers(0, 7, NOW + 0.5)
    stay.note([0])
    assert where(run, 0) == "at Cell In[3], line 7"


def test_what_was_seen_long_ago_is_told_with_its_time(run, stay):
    run.sees(0, 6, NOW)
    stay.note([0])
    assert where(run, 0, now=NOW + 30) == "last seen at Cell In[3], line 6, 30 s ago"


def test_ranks_at_several_places_are_told_apart(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.answers(1, 7, NOW)
    told = "rank 0 interrupted at Cell In[3], line 4 and rank 1 at Cell In[3], line 7"
    assert where(run, 0, 1) == told


def test_of_ranks_of_which_nothing_is_known_nothing_is_told(run):
    assert where(run, 0, 1) == ""


# ---------------------------------------------------------------- with stacks


def test_who_did_not_answer_since_the_interrupt_is_told_so(run, stay):
    run.was_interrupted(0, 4, NOW)
    stay.ask_if_due(0.5, due=5)
    assert stay.with_stacks([0], now=5) == (
        "rank 0: interrupted at Cell In[3], line 4; not responding since (stopped, or "
        "blocked in native code)"
    )


def test_who_had_no_time_to_answer_is_not_said_to_be_blocked(run, stay):
    run.was_interrupted(0, 4, NOW)
    run.sees(1, 6, NOW + 0.1)
    assert stay.with_stacks([0, 1], now=0.1) == (
        "rank 0 at Cell In[3], line 4\ns\n\nrank 1 at Cell In[3], line 6"
    )


# ---------------------------------------------------------------- what another stop costs


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
def test_what_a_second_stop_costs_is_told(lives, says):
    told = may_take([0, 2], 5.0, lives)
    assert told.text == f"Interrupted; ranks 0, 2 may take up to 5 s to clean up (grace). {says}"
    assert told.passing
