"""When a hang is reported and when it is over, with a clock and a run moved by the test."""

import dataclasses

import pytest

from tests.support import run_double
from xla_nb.messages import events
from xla_nb.monitor import stacks
from xla_nb.monitor.hang import HangWatch
from xla_nb.record import sample
from xla_nb.record.sample import LOCK, Sample

AFTER = 300.0


class Run(run_double.Run):
    """A run whose ranks answer at once; `pids` are those of their processes."""

    def __init__(self, path, ranks=2, pids=(1, 2), silent=()):
        super().__init__(path, ranks)
        self.taken, self.silent, self.asked = [], silent, 0
        self.told = [
            events.JobStarted(host="h", ranks=ranks, simulated=True),
            *(
                events.RankStarted(rank=rank, pid=pid, device="xla:0")
                for rank, pid in enumerate(pids)
            ),
        ]
        for event in self.told:
            self.state.apply(event)
        self.samples = {rank: Sample(at=0.0, since=0.0) for rank in range(ranks)}

    def take(self, event):
        self.taken.append(event)
        self.state.apply(event)

    def sample(self, rank):
        return self.samples[rank]

    def ask_stacks(self):
        self.asked += 1
        for rank in set(self.samples) - set(self.silent):
            stack = f'  File "Cell In[3]", line {rank}, in f\n    g()'
            self.take(events.RankAt(rank=rank, place=f"Cell In[3], line {rank}", stack=stack))

    def has(self, rank, **figures):
        self.samples[rank] = dataclasses.replace(self.samples[rank], **figures)


class Watched:
    """A run and its watch; `at` acts twice per moment: to ask for stacks, then to report."""

    def __init__(self, run, after=AFTER, stops=False):
        self.run = run
        self.watch = HangWatch(run, after, stops=stops)
        self.at(0.0)

    def at(self, *moments):
        """The reports and ends of reports at these moments."""
        before = len(self.run.taken)
        for now in moments:
            for rank in self.run.samples:
                self.run.has(rank, at=now)
            self.watch.act(now)
            self.watch.act(now)
        kinds = (events.HangReported, events.HangOver)
        return [event for event in self.run.taken[before:] if isinstance(event, kinds)]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def watched(run):
    return Watched(run)


# ---------------------------------------------------------------- due


def test_hang_is_reported_exactly_when_the_time_is_over(watched):
    assert watched.at(*range(5, 300, 5)) == []
    (report,) = watched.at(300)
    assert report.verdict == (
        "No progress for over 5 min: rank 0 is at Cell In[3], line 0; rank 1 is at line 1"
    )
    assert report.ranks == (0, 1)
    assert [group.ranks for group in report.groups] == [(0,), (1,)]


def test_hang_is_reported_once(watched):
    watched.at(300)
    assert watched.at(*range(305, 3000, 5)) == []


def test_progress_postpones_the_report(watched):
    watched.run.has(0, steps=1)
    watched.run.has(1, steps=1)
    assert watched.at(200, 495) == []
    assert len(watched.at(505)) == 1


def test_ranks_that_wait_for_nobody_are_the_culprits(watched):
    (both,) = watched.at(300)
    assert both.culprits == (0, 1)
    watched.run.has(0, activity="waiting", operation="all_reduce", missing=(1,), steps=1)
    watched.run.has(1, steps=1)
    watched.at(305)
    (one,) = watched.at(605)
    assert (one.ranks, one.culprits) == ((0, 1), (1,))


def test_single_quiet_rank_is_reported(watched):
    watched.at(295)
    watched.run.has(0, steps=1)
    (report,) = watched.at(300)
    assert report.ranks == (1,)


def test_ranks_that_began_to_wait_later_are_in_the_same_report(watched):
    watched.run.has(0, steps=1)
    watched.at(5)
    (report,) = watched.at(300)
    assert report.ranks == (0, 1)
    assert watched.at(*range(305, 700, 5)) == []


def test_ranks_are_not_asked_for_stacks_early(watched):
    watched.at(*range(5, 300, 5))
    assert watched.run.asked == 0


def test_rank_that_makes_progress_during_the_inquiry_is_not_reported(run):
    watched = Watched(run)
    run.has(0, at=300.0)
    watched.watch.act(300.0)
    run.has(0, steps=1)
    run.has(1, steps=1)
    assert watched.at(300.1) == []


def test_rank_that_does_not_answer_is_still_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "PATIENCE", 0.0)
    (report,) = Watched(Run(tmp_path, silent=(1,))).at(300)
    notes = {group.ranks: group.note for group in report.groups}
    assert "not responding" in notes[1,]


def test_zero_turns_the_clock_off(run):
    assert Watched(run, after=0).at(*range(5, 10_000, 500)) == []


def test_hang_stops_the_run_if_requested(run):
    (report,) = Watched(run, stops=True).at(300)
    assert run.stopped == [f"Stopped at a hang: {report.verdict}"]


def test_hang_does_not_stop_the_run_by_default(watched):
    watched.at(300)
    assert watched.run.stopped == []


# ---------------------------------------------------------------- end, and next report


def test_hang_is_over_when_ranks_progress_and_can_be_reported_again(watched):
    watched.at(300)
    watched.run.has(0, steps=1)
    watched.run.has(1, steps=1)
    (over,) = watched.at(400)
    assert over.why == "Ranks 0, 1 are making progress again"
    assert watched.run.state.hang_over == over.why
    assert watched.at(*range(405, 700, 5)) == []
    (report,) = watched.at(700)
    assert report.ranks == (0, 1)


def test_rank_that_hangs_later_is_reported_later(watched):
    watched.at(200)
    watched.run.has(0, steps=1)
    watched.at(205)
    (first,) = watched.at(300)
    assert first.ranks == (1,)
    assert watched.at(505) == []
    (second,) = watched.at(605)
    assert second.ranks == (0, 1)


def test_slow_run_has_a_limited_number_of_reports(watched):
    reports = 0
    for step, now in enumerate(range(305, 24 * 3600, 305)):  # each step takes longer than the limit
        reports += len([e for e in watched.at(now) if isinstance(e, events.HangReported)])
        for rank in (0, 1):
            watched.run.has(rank, steps=step + 1)
        watched.at(now + 1)
    assert 10 < reports < 50


def test_hang_is_over_when_its_rank_returns(watched):
    watched.at(300)
    watched.run.take(events.RankFinished(rank=1, preview="", nbytes=0))
    assert watched.run.state.hang_over == "Rank 1 returned"
    watched.run.has(0, steps=1)
    assert watched.at(305, 310) == []  # it is over already


# ---------------------------------------------------------------- the lock


def waits_for_the_lock(run, rank, holder, since=0.0):
    run.has(rank, activity="waiting", operation=LOCK, missing=(holder,), since=since)


@pytest.mark.parametrize("after", [AFTER, 0])
def test_lock_of_a_returned_rank_is_reported_soon(run, after):
    watched = Watched(run, after=after)
    waits_for_the_lock(run, 0, holder=1)
    assert watched.at(1, 2, 3, 10) == []  # rank 1 may still release it
    run.take(events.RankFinished(at=11.5, rank=1, preview="", nbytes=0))
    assert watched.at(11) == []  # may have been released since rank 0's sample
    (report,) = watched.at(12)
    assert report.verdict.startswith("Rank 1 has returned; rank 0 has been waiting ")
    assert watched.at(*range(13, 1000, 4)) == []  # a longer wait is nothing new


def test_lock_released_in_the_meantime_is_not_reported(run):
    watched = Watched(run)
    run.take(events.RankFinished(rank=1, preview="", nbytes=0))
    waits_for_the_lock(run, 0, holder=1, since=9.9)  # a momentary sample
    assert watched.at(10) == []
    run.has(0, activity="running", missing=(), since=10.0)
    assert watched.at(11, 12, 13) == []


def test_hang_is_over_when_the_lock_is_acquired_after_all(run):
    watched = Watched(run)
    run.take(events.RankFinished(at=0.5, rank=1, preview="", nbytes=0))
    waits_for_the_lock(run, 0, holder=1)
    assert len(watched.at(5)) == 1
    # Another rank released it.
    run.has(0, activity="running", operation="", missing=(), since=6.0, locks=1)
    (over,) = watched.at(*range(6, 30))
    assert isinstance(over, events.HangOver)


def test_repeated_attempts_to_acquire_the_lock_are_reported_once(run):
    watched = Watched(run)
    run.take(events.RankFinished(at=0.5, rank=1, preview="", nbytes=0))
    told = []
    for now in range(1, 200):
        if now % 4 == 3:  # between two attempts
            run.has(0, activity="running", operation="", missing=(), since=float(now))
        else:
            waits_for_the_lock(run, 0, holder=1, since=now - now % 4 - 1.0)
        told += watched.at(now)
    assert [type(event) for event in told] == [events.HangReported]


# ---------------------------------------------------------------- encoding


def test_report_survives_encoding(watched):
    (report,) = watched.at(300)
    assert events.decode(events.encode(report)) == report


def test_samples_of_an_older_version_can_be_decoded():
    known = sample.encode(Sample(at=1.0, since=0.0)).replace(b'"graphs": 0, ', b"")
    assert sample.decode(known).graphs == 0
