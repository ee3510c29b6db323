"""Ranks that do not stop: where they are, and how that is reported."""

import pytest

from tests.run.conftest import ranks
from tests.support import run_double
from xla_nb.messages import events
from xla_nb.record import sample
from xla_nb.record.sample import Sample
from xla_nb.run import stopping
from xla_nb.run.stopping import may_take, note_places, unheard

NOW = 1000.0  # when the run was stopped, since the epoch


class Run(run_double.Run):
    """A run that was stopped at NOW."""

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


def where(run, *numbers, now=NOW + 1):
    return stopping.in_words(run.state, numbers, now)


# ---------------------------------------------------------------- interrupted again


def test_ranks_without_a_reported_interrupt_get_another_unless_they_handle_sigint(run):
    for event in ranks(3):
        run.take(event)
    for rank, heeds in [(0, True), (1, True), (2, False)]:
        seen = Sample(at=NOW + 0.5, since=NOW, heeds=heeds)
        run.record.sample(rank).write_bytes(sample.encode(seen))
    run.was_interrupted(1, 7, NOW)
    assert [rank.rank for rank in unheard(run, [0, 1, 2])] == [0]


# ---------------------------------------------------------------- noting


@pytest.mark.parametrize("after", [0.01, 0.5])
def test_sample_newer_than_the_interrupt_shows_where_a_rank_is(run, after):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + after)
    note_places(run, [0])
    assert where(run, 0) == "at Cell In[3], line 6"


@pytest.mark.parametrize("at", [NOW - 0.2, NOW + 0.01, None])  # before, during, never
def test_place_of_an_interrupt_is_marked_as_interrupted(run, at):
    run.was_interrupted(0, 4, NOW)
    if at is not None:
        run.sees(0, 4, at)
    note_places(run, [0])
    assert where(run, 0) == "interrupted at Cell In[3], line 4"


def test_answer_newer_than_the_sample_shows_where_a_rank_is(run):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + 0.3)
    run.answers(0, 7, NOW + 0.5)
    note_places(run, [0])
    assert where(run, 0) == "at Cell In[3], line 7"


def test_old_sample_is_shown_with_its_age(run):
    run.sees(0, 6, NOW)
    note_places(run, [0])
    assert where(run, 0, now=NOW + 30) == "last seen at Cell In[3], line 6, 30 s ago"


def test_ranks_at_different_places_are_listed_separately(run):
    run.was_interrupted(0, 4, NOW)
    run.answers(1, 7, NOW)
    told = "rank 0 interrupted at Cell In[3], line 4 and rank 1 at Cell In[3], line 7"
    assert where(run, 0, 1) == told


def test_ranks_at_unknown_places_give_no_text(run):
    assert where(run, 0, 1) == ""


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
