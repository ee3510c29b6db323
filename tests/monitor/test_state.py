"""Applying events to the state of a run."""

from dataclasses import replace

import pytest

from xla_nb.messages import events
from xla_nb.messages.exit_status import cause_of_death
from xla_nb.monitor.state import RunState


def fold(*happened, stopping=""):
    state = RunState(stopping=stopping)
    for event in happened:
        state.apply(event)
    return state


def started(ranks):
    return [
        events.JobStarted(host="h", ranks=ranks, simulated=True),
        *(events.RankStarted(rank=r, pid=100 + r, device="xla:0") for r in range(ranks)),
    ]


def finished(rank):
    return events.RankFinished(rank=rank, preview=str(rank), nbytes=1)


def failed(rank):
    return events.RankFailed(rank=rank, kind="E", message="m", text="t", place="p", where="w")


def test_cause_replaces_its_consequence_as_first_trouble():
    consequence = replace(failed(0), follows=True)
    state = fold(*started(3), consequence)
    assert state.first_trouble == 0
    state = fold(*started(3), consequence, events.ProcessDied(pid=102, status=-9))
    assert state.first_trouble == 2
    state = fold(*started(3), failed(1), consequence)
    assert state.first_trouble == 1


def test_run_is_ok_and_settled_when_all_ranks_finish():
    state = fold(*started(2), finished(0), finished(1))
    assert state.ok
    assert state.settled
    assert not state.troubled


def test_ranks_are_known_before_they_start():
    assert set(fold(started(3)[0]).ranks) == {0, 1, 2}


def test_run_with_a_running_rank_is_neither_ok_nor_settled():
    state = fold(*started(2), finished(0))
    assert not state.ok
    assert not state.settled


def test_first_failure_stays_the_first_trouble():
    state = fold(*started(3), failed(2), failed(0))
    assert state.first_trouble == 2
    assert state.troubled


def test_dead_process_kills_its_rank():
    state = fold(*started(2), events.ProcessDied(pid=101, status=-9))
    assert state.ranks[1].phase == "died"
    assert state.ranks[1].death.status == -9
    assert state.first_trouble == 1


def test_dead_process_kills_both_of_its_ranks():
    state = fold(events.JobStarted(host="h", ranks=2, simulated=False))
    for rank in (0, 1):
        state.apply(events.RankStarted(rank=rank, pid=7, device="xla:0"))
    state.apply(events.ProcessDied(pid=7, status=-11))
    assert [state.ranks[r].phase for r in (0, 1)] == ["died", "died"]


def test_process_exit_after_its_rank_finished_changes_nothing():
    state = fold(*started(1), finished(0), events.ProcessDied(pid=100, status=0))
    assert state.ok
    assert not state.troubled


def test_process_that_dies_before_becoming_a_rank_is_trouble():
    state = fold(started(2)[0], events.ProcessDied(pid=55, status=-6))
    assert state.troubled
    assert state.strays[0].status == -6


@pytest.mark.parametrize(
    ("sent", "status", "phase"),
    [
        ((), -2, "stopped"),
        ((), 0, "stopped"),
        ((), 130, "stopped"),  # the status shells give for SIGINT
        ((15,), -15, "stopped"),
        ((15,), 1, "stopped"),  # by a signal handler of the user
        ((15, 9), -9, "stopped"),
        ((), -11, "died"),
        ((), -9, "died"),  # sent by someone else
        ((), 7, "died"),
        ((15,), -6, "died"),
        ((15, 9), -11, "died"),
    ],
)
def test_rank_ended_by_the_stop_is_stopped_and_a_crashing_one_died(sent, status, phase):
    signals = [events.SignalSent(number=number) for number in sent]
    died = events.ProcessDied(pid=100, status=status)
    state = fold(*started(1), *signals, died, stopping="asked")
    assert state.ranks[0].phase == phase
    assert not state.troubled


def test_end_of_the_job_ends_every_rank():
    state = fold(*started(2), finished(0), events.JobEnded(status=-9))
    assert state.ranks[0].phase == "finished"
    assert state.ranks[1].phase == "died"
    assert state.settled


def test_ranks_lost_with_their_job_have_its_cause_of_death():
    state = fold(*started(2), finished(0), events.JobEnded(status=-9))
    assert state.ranks[0].lost == ""
    assert state.ranks[1].lost.startswith("their job was killed by SIGKILL")


def test_ranks_of_a_stopped_run_are_not_lost_with_their_job():
    state = fold(*started(1), events.JobEnded(status=-9), stopping="asked")
    assert (state.ranks[0].phase, state.ranks[0].lost) == ("stopped", "")


def test_job_that_ends_before_its_ranks_start_fails_with_its_cause():
    state = fold(events.JobEnded(status=None, why="the process that starts ranks was killed"))
    assert state.refused is not None
    assert state.refused.message.endswith("the process that starts ranks was killed")
    assert fold(events.JobEnded(status=-9), stopping="asked").refused is None


def test_rank_interrupted_without_a_stop_is_the_first_trouble():
    follows = replace(failed(1), follows=True)
    state = fold(*started(2), follows, events.RankStopped(rank=0))
    assert (state.ranks[0].phase, state.ranks[0].death.status) == ("died", -2)
    assert state.first_trouble == 0


def test_consequential_failure_during_a_stop_counts_as_stopped():
    state = fold(*started(1), replace(failed(0), follows=True), stopping="asked")
    assert state.ranks[0].phase == "stopped"
    assert state.ranks[0].failure is None


def test_own_failure_during_a_stop_counts_as_failed():
    state = fold(*started(1), failed(0), stopping="asked")
    assert state.ranks[0].phase == "failed"


def test_failed_job_is_settled_and_not_ok():
    state = fold(events.JobFailed(kind="E", message="m", text="t"))
    assert state.settled
    assert not state.ok


def test_rank_has_the_place_it_reported():
    state = fold(*started(2), events.RankAt(rank=1, place="p", stack="s", at=12.5))
    assert (state.ranks[1].place, state.ranks[1].stack, state.ranks[1].located) == ("p", "s", 12.5)
    assert state.ranks[0].located is None


def test_newest_reported_place_counts():
    answers = [events.RankAt(rank=0, place=p, stack="s", at=at) for p, at in (("a", 1), ("b", 2))]
    state = fold(*started(1), *answers)
    assert (state.ranks[0].place, state.ranks[0].located) == ("b", 2)


def test_rank_stopped_after_an_interrupt_ends_at_the_interrupted_line():
    struck = events.RankInterrupted(rank=0, place="Cell In[3], line 4", stack="s", at=1)
    later = events.RankAt(rank=0, place="Cell In[3], line 6", stack="t", at=2)
    stop = events.StopRequested(why="w")
    assert fold(*started(1), stop, struck).ranks[0].place == "Cell In[3], line 4"
    assert fold(*started(1), stop, struck, later).ranks[0].place == "Cell In[3], line 6"
    assert fold(*started(1), stop, later, struck).ranks[0].place == "Cell In[3], line 6"
    ended = fold(*started(1), stop, struck, later, events.RankStopped(rank=0))
    assert ended.ranks[0].place == "Cell In[3], line 4"


def test_ended_rank_keeps_its_place():
    state = fold(*started(1), events.RankAt(rank=0, place="p", stack="s", at=12.5), finished(0))
    assert (state.ranks[0].phase, state.ranks[0].located) == ("finished", 12.5)


@pytest.mark.parametrize(
    ("status", "said"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (3, "status 3"), (0, "status 0"), (-99, "signal 99")],
)
def test_cause_of_death_names_the_signal_or_status(status, said):
    assert said in cause_of_death(status)


# ---------------------------------------------------------------- several hosts


def on(host, first, ranks=2, pid=100):
    """A host's job and its ranks; pids are the same on every host."""
    return [
        events.JobStarted(host=host, ranks=ranks, first=first, simulated=True),
        *(
            events.RankStarted(rank=first + r, pid=pid + r, device="xla:0", host=host)
            for r in range(ranks)
        ),
    ]


def two_hosts():
    return [events.HostsPlaced(names=("a", "b")), *on("a", 0), *on("b", 2)]


def test_ranks_know_their_host():
    state = fold(*two_hosts())
    assert {rank.rank: rank.host for rank in state.ranks.values()} == {
        0: "a",
        1: "a",
        2: "b",
        3: "b",
    }
    assert list(state.hosts) == ["a", "b"]


def numbered_across():
    """Ranks are not numbered host by host, and rank 3 has not started:
    host a's ranks start before b's job does."""
    return [
        events.HostsPlaced(names=("a", "b")),
        events.JobStarted(host="a", ranks=2, first=0, simulated=False),
        *(
            events.RankStarted(rank=r, pid=100 + n, device="xla:0", host="a")
            for n, r in enumerate((0, 2))
        ),
        events.JobStarted(host="b", ranks=2, first=2, simulated=False),
        events.RankStarted(rank=1, pid=100, device="xla:0", host="b"),
    ]


def test_started_rank_stays_on_its_host():
    state = fold(*numbered_across())
    assert {number: rank.host for number, rank in sorted(state.ranks.items())} == {
        0: "a",
        1: "b",
        2: "a",
        3: "b",
    }


def test_failed_join_is_not_attributed_to_a_running_rank_of_another_host():
    state = fold(*numbered_across(), replace(failed(2), host="b"))
    assert (state.ranks[2].phase, state.ranks[3].phase) == ("running", "failed")
    assert state.first_trouble == 3


def test_joined_rank_fails_under_its_own_number():
    state = fold(*numbered_across(), replace(failed(2), host="a"))
    assert (state.ranks[2].phase, state.ranks[3].phase) == ("failed", "starting")


def test_run_is_not_settled_before_every_host_has_started():
    state = fold(events.HostsPlaced(names=("a", "b")), *on("a", 0), finished(0), finished(1))
    assert not state.settled
    for event in [*on("b", 2), finished(2), finished(3)]:
        state.apply(event)
    assert state.settled


def test_dead_process_kills_the_rank_on_its_own_host():
    state = fold(*two_hosts(), events.ProcessDied(pid=100, status=-9, host="b"))
    assert [rank.phase for rank in state.ranks.values()] == [
        "running",
        "running",
        "died",
        "running",
    ]
    assert state.first_trouble == 2


def test_run_ends_with_its_last_host():
    state = fold(*two_hosts(), *map(finished, range(4)), events.JobEnded(status=0, host="b"))
    assert state.ended is None
    state.apply(events.JobEnded(status=0, host="a"))
    assert state.ended is not None
    assert state.ok


def test_job_that_ends_before_its_ranks_is_trouble():
    state = fold(*two_hosts(), events.JobEnded(status=-9, host="b"))
    assert [rank.phase for rank in state.ranks.values()] == [
        "running",
        "running",
        "died",
        "died",
    ]
    assert state.troubled


def test_lost_host_takes_its_ranks_with_it():
    state = fold(*two_hosts(), finished(2), events.HostLost(host="b", why="its node died"))
    assert [rank.phase for rank in state.ranks.values()] == [
        "running",
        "running",
        "finished",
        "died",
    ]
    assert state.ranks[3].lost == "its node died"
    assert state.first_trouble == 3
    assert state.ended is None


@pytest.mark.parametrize("stop", [(), (events.StopRequested(why="grace"),)], ids=["", "stopped"])
def test_lost_host_is_the_cause_of_consequential_failures(stop):
    """Even if the loss is detected only after the others were stopped."""
    consequence = replace(failed(0), follows=True)
    state = fold(*two_hosts(), consequence, *stop, events.HostLost(host="b", why="its node died"))
    assert state.first_trouble == 2
    assert state.ranks[2].phase == "died"


def test_host_lost_after_an_independent_failure_is_not_its_cause():
    stop = events.StopRequested(why="grace")
    state = fold(*two_hosts(), failed(0), stop, events.HostLost(host="b", why="its node died"))
    assert state.first_trouble == 0
    assert state.ranks[2].phase == "stopped"


def test_host_lost_before_its_job_started_is_trouble():
    placed = events.HostsPlaced(names=("a", "b"))
    state = fold(placed, *on("a", 0), events.HostLost(host="b", why="its node died"))
    assert state.troubled
    assert not state.settled
    for event in (finished(0), finished(1)):
        state.apply(event)
    assert state.settled
    assert not state.ok


def test_host_lost_after_its_ranks_returned_is_no_trouble():
    state = fold(*two_hosts(), finished(2), finished(3), events.HostLost(host="b", why="gone"))
    assert not state.troubled


def test_losing_the_last_hosts_ends_the_run():
    lost = [events.HostLost(host=host, why="gone") for host in "ab"]
    assert fold(*two_hosts(), *lost).ended is not None


def test_first_failed_host_gives_the_reason():
    refused = [events.JobFailed(kind="K", message=host, text="", host=host) for host in "ab"]
    state = fold(*two_hosts(), *refused)
    assert state.refused.message == "a"
    assert state.settled


# ---------------------------------------------------------------- hangs


def hang(verdict="Rank 0 hangs", ranks=(0,)):
    return events.HangReported(verdict=verdict, ranks=ranks, groups=())


def test_last_hang_report_counts_until_the_hang_is_over():
    state = fold(*started(2), hang("first"), hang("second"))
    assert (state.hang.verdict, state.hang_over) == ("second", "")
    state.apply(events.HangOver(why="Rank 0 made progress"))
    assert state.hang_over == "Rank 0 made progress"
    state.apply(hang("third"))
    assert state.hang_over == ""


def test_hang_is_over_when_its_rank_returns():
    state = fold(*started(2), hang(), finished(1))
    assert state.hang_over == ""
    state.apply(finished(0))
    assert state.hang_over == "Rank 0 returned"


# ---------------------------------------------------------------- questions


def ask(rank, fd=9):
    return events.Asked(rank=rank, pid=10 + rank, fd=fd, ino=1, prompt="name? ")


def test_questions_stay_in_order_until_answered():
    state = RunState()
    for event in (ask(1), ask(0), ask(1, fd=10)):
        state.apply(event)
    assert [(one.rank, one.fd) for one in state.questions] == [(1, 9), (0, 9), (1, 10)]
    state.apply(events.Answered(rank=1, pid=11, fd=9))
    assert [(one.rank, one.fd) for one in state.questions] == [(0, 9), (1, 10)]


def test_ended_rank_has_no_questions():
    state = RunState()
    state.apply(ask(0))
    state.apply(ask(1))
    state.apply(events.RankFinished(rank=0, preview="", nbytes=0))
    assert [one.rank for one in state.questions] == [1]


def test_iterating_over_ranks_and_hosts_survives_new_events():
    state = fold(*started(2))
    reading = [iter(state.ranks.values()), iter(state.hosts.values())]
    first = [next(one) for one in reading]
    state.apply(events.JobStarted(host="other", ranks=2, first=2, simulated=True))
    assert [[one, *rest] for one, rest in zip(first, reading, strict=True)] == [
        [state.ranks[0], state.ranks[1]],
        [state.hosts["h"]],
    ]
