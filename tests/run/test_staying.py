"""Ranks that do not stop: where they are, and how that is reported."""

import signal
import time

import pytest

from tests.run.conftest import Heard, a_run, ranks
from xla_nb.messages import events
from xla_nb.record import sample
from xla_nb.record.sample import Sample
from xla_nb.run import run as run_module
from xla_nb.run.run import places

NOW = 1000.0  # when the run was stopped, since the epoch


class Staying(Heard):
    """A run that was stopped at NOW."""

    def sees(self, rank, line, at):
        seen = Sample(at=at, since=0.0, place=f"Cell In[3], line {line}")
        self.record.sample(rank).write_bytes(sample.encode(seen))

    def was_interrupted(self, rank, line, at):
        place = f"Cell In[3], line {line}"
        self.take(events.RankInterrupted(rank=rank, place=place, stack="s", at=at))

    def answers(self, rank, line, at):
        self.take(events.RankAt(rank=rank, place=f"Cell In[3], line {line}", stack="s", at=at))

    def note_places(self):
        self._note_places(self.state.ranks.values())


@pytest.fixture
def run(engine):
    made = a_run(engine, kind=Staying)
    for event in ranks(2):
        made.take(event)
    return made


def where(run, *numbers, now=NOW + 1):
    return places([run.state.ranks[number] for number in numbers], now)


# ---------------------------------------------------------------- interrupted again


def test_ranks_without_a_reported_interrupt_get_another_unless_they_handle_sigint(run, engine):
    for event in ranks(3):
        run.take(event)
    for rank, heeds in [(0, True), (1, True), (2, False)]:
        seen = Sample(at=NOW + 0.5, since=NOW, heeds=heeds)
        run.record.sample(rank).write_bytes(sample.encode(seen))
    run.stop()
    run.was_interrupted(1, 7, NOW)
    for seconds in (0.9, 0.95):
        run._act(time.monotonic() + seconds)
    assert engine.interrupted == [[100, 101, 102], [100]]


def test_ranks_that_got_sigterm_are_not_interrupted_again(run, engine):
    run.sees(0, 6, NOW)
    run.stop()
    run.stop()
    run._act(time.monotonic() + 0.9)
    assert engine.interrupted == engine.terminated == [[100, 101]]


# ---------------------------------------------------------------- the last rungs


def test_rank_that_starts_during_a_stop_gets_the_signal_of_the_others(run, engine):
    run.stop()
    run.stop()
    late = ranks(3)[-1]
    run._take_or_end(late)
    assert engine.terminated == [[100, 101], [late.pid]]


def test_kill_is_repeated_before_the_process_that_should_have_killed_is_killed(run, engine):
    for event in (events.RankStopped(rank=0), events.RankStopped(rank=1)):
        run.take(event)
    now = time.monotonic()
    for times in range(1, 4):
        run._act(now + times * (run_module.KILL_PATIENCE + 1))
        assert engine.killed == ["r1"] * times
    assert not run._feed.ended
    run._act(now + 4 * (run_module.KILL_PATIENCE + 1))
    assert run._feed.ended
    assert run._sent == signal.SIGKILL


# ---------------------------------------------------------------- noting


@pytest.mark.parametrize("after", [0.01, 0.5])
def test_sample_newer_than_the_interrupt_shows_where_a_rank_is(run, after):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + after)
    run.note_places()
    assert where(run, 0) == "at Cell In[3], line 6"


@pytest.mark.parametrize("at", [NOW - 0.2, NOW + 0.01, None])  # before, during, never
def test_place_of_an_interrupt_is_marked_as_interrupted(run, at):
    run.was_interrupted(0, 4, NOW)
    if at is not None:
        run.sees(0, 4, at)
    run.note_places()
    assert where(run, 0) == "interrupted at Cell In[3], line 4"


def test_answer_newer_than_the_sample_shows_where_a_rank_is(run):
    run.was_interrupted(0, 4, NOW)
    run.sees(0, 6, NOW + 0.3)
    run.answers(0, 7, NOW + 0.5)
    run.note_places()
    assert where(run, 0) == "at Cell In[3], line 7"


def test_old_sample_is_shown_with_its_age(run):
    run.sees(0, 6, NOW)
    run.note_places()
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
    ("group", "says"),
    [
        ("", "Another stop ends them now."),
        (
            "g",
            "After that, or at another stop, SIGTERM ends ranks 0, 1, and the values there are "
            "lost.",
        ),
    ],
)
def test_notice_states_what_a_second_stop_costs(engine, group, says):
    run = a_run(engine, group=group)
    for event in ranks(2):
        run.take(event)
    run.stop()
    run._act(time.monotonic() + 1.1)
    (told,) = run.state.notices
    sent = "Sent an interrupt to ranks 0, 1, which may take up to 5 s to clean up (grace)."
    assert told.text == f"{sent} {says}"
