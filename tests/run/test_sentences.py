"""What a person reads of a run's state."""

from dataclasses import replace

from xla_nb.messages import events
from xla_nb.run import sentences
from xla_nb.run.state import RunState


def run_of(*happened, ranks=4):
    state = RunState()
    state.apply(events.JobStarted(pid=1, host="h", ranks=ranks, simulated=True))
    for rank in range(ranks):
        state.apply(events.RankStarted(rank=rank, local_rank=rank, pid=100 + rank, device="xla:0"))
    for event in happened:
        state.apply(event)
    return state


def failed(rank, message="boom", line=4):
    return events.RankFailed(
        rank=rank,
        kind="ValueError",
        message=message,
        text=f"Traceback …\nValueError: {message}",
        place=f"Cell In[3], line {line}",
        where=f"ValueError\nCell In[3]:{line}",
    )


def finished(rank):
    return events.RankFinished(rank=rank, preview="1", nbytes=1)


def test_a_good_run_is_told_in_one_line():
    state = run_of(*(finished(r) for r in range(4)))
    assert sentences.headline(state) == "4 ranks finished"
    assert sentences.details(state) == []


def test_what_ranks_have_changed_and_do_not_return_is_told_once_all_have_finished():
    done = [finished(r) for r in range(3)]
    told = "Ranks changed `best`; the notebook's copy is unchanged. Return it from the function."
    state = run_of(events.Changed(names=("best",)), *done)
    assert sentences.changes(state) == ""
    state.apply(finished(3))
    assert sentences.changes(state) == told
    state.apply(events.StopRequested(why="Stopped"))
    assert sentences.changes(state) == ""
    assert sentences.changes(run_of(events.Changed(names=("best",)), *done, failed(3))) == ""


def test_several_that_a_cell_has_changed_are_told_together():
    changed = events.Changed(names=("best", "history"), in_cell=True)
    state = run_of(changed, *(finished(r) for r in range(4)))
    assert sentences.changes(state) == (
        "Ranks changed `best` and `history`; the notebook's copies are unchanged. End the cell "
        "with them to get them."
    )


def test_the_headline_names_the_first_rank_to_fail_and_its_line():
    state = run_of(failed(2, "first", line=7))
    headline = "Rank 2 failed at Cell In[3], line 7: ValueError: first"
    assert sentences.headline(state) == headline


def test_when_every_rank_failed_the_headline_says_so():
    state = run_of(*(failed(rank) for rank in (3, 0, 1, 2)))
    assert sentences.headline(state).startswith("All 4 ranks failed (rank 3 first) at Cell In[3]")


def test_ranks_with_the_same_words_at_other_lines_are_counted_with_the_first_ones_line():
    state = run_of(failed(2, line=7), failed(0, line=9))
    headline = "2 of 4 ranks failed (rank 2 first, at Cell In[3], line 7): ValueError: boom"
    assert sentences.headline(state) == headline


def test_other_errors_are_counted_apart_from_the_first():
    state = run_of(failed(2, "first", line=7), failed(0), failed(1), finished(3))
    headline = (
        "Rank 2 failed at Cell In[3], line 7: ValueError: first; 2 others failed for other reasons"
    )
    assert sentences.headline(state) == headline


def test_where_all_failed_with_different_errors_none_is_said_to_have_finished():
    state = run_of(*(failed(rank, line=7) for rank in (1, 0, 2)), failed(3, "other"))
    headline = (
        "3 ranks failed (rank 1 first) at Cell In[3], line 7: ValueError: boom; "
        "rank 3 failed at Cell In[3], line 4: ValueError: other"
    )
    assert sentences.headline(state) == headline


def test_ranks_that_failed_only_since_another_had_are_told_as_such():
    mismatch = {"kind": "CollectiveMismatch", "message": "rank 1 ended", "follows": True}
    state = run_of(failed(1), *(replace(failed(rank, line=6), **mismatch) for rank in (0, 2, 3)))
    headline = (
        "Rank 1 failed at Cell In[3], line 4: ValueError: boom; 3 others failed because of it"
    )
    assert sentences.headline(state) == headline


def test_ranks_that_follow_with_the_same_error_at_the_same_line_still_only_followed():
    state = run_of(failed(1), replace(failed(0), follows=True))
    assert sentences.headline(state).endswith("ValueError: boom; 1 other failed because of it")


def test_ranks_that_died_alike_are_counted_together():
    died = [events.ProcessDied(pid=pid, status=-11) for pid in (101, 103)]
    headline = "2 of 4 ranks died (rank 1 first): crashed with SIGSEGV in native code"
    assert sentences.headline(run_of(*died)) == headline


def test_of_ranks_that_died_differently_the_headline_has_the_first():
    died = [events.ProcessDied(pid=101, status=-11), events.ProcessDied(pid=103, status=3)]
    headline = (
        "Rank 1 crashed with SIGSEGV in native code; rank 3 exited with status 3 before finishing"
    )
    assert sentences.headline(run_of(*died)) == headline


def test_equal_errors_are_told_once_with_their_ranks():
    state = run_of(failed(1), failed(2), failed(3))
    (told,) = sentences.details(state)
    assert told.startswith("ranks 1–3:\n")
    assert told.count("Traceback") == 1


def test_errors_alike_but_for_their_words_tell_each_ranks_words():
    told = "\n".join(sentences.details(run_of(failed(1, "on 1"), failed(2, "on 2"))))
    assert told.count("Traceback") == 1
    assert "rank 2 failed at Cell In[3], line 4: ValueError: on 2" in told


def test_a_message_of_many_lines_leads_with_its_first():
    state = run_of(failed(1, "they differ:\n  a\n  b"), failed(2, "they differ:\n  b\n  a"))
    assert sentences.headline(state).endswith("ValueError: they differ: …")
    (told,) = sentences.details(state)
    assert "  a\n  b" in told


def test_of_errors_alike_the_first_failure_is_the_one_shown():
    (told,) = sentences.details(run_of(failed(2, "on 2"), failed(1, "on 1")))[:1]
    assert told == "ranks 1, 2:\nTraceback …"


def test_errors_at_other_lines_are_told_apart_the_first_failure_first():
    details = sentences.details(run_of(failed(3, line=9), failed(0, line=4)))
    assert details[0].startswith("rank 3:")
    assert details[1].startswith("rank 0:")


def test_live_ranks_that_had_to_be_ended_are_told_as_lost():
    stop, ended = events.StopRequested(why="Stopped"), events.RankStopped(rank=0)
    sent = [events.SignalSent(number=number, of_group=True) for number in (15, 9)]
    state = run_of(stop, ended, sent[0])
    assert sentences.headline(state).endswith("; live ranks 1–3 are lost")
    state.apply(sent[1])
    assert sentences.headline(state).endswith("; the live ranks are lost")
    assert "lost" not in sentences.headline(run_of(events.SignalSent(number=15)))


def test_a_killed_rank_is_told_with_its_signal():
    state = run_of(events.ProcessDied(pid=102, status=-9))
    assert (
        sentences.headline(state)
        == "Rank 2 was killed by SIGKILL (often out of memory; check dmesg)"
    )
    assert sentences.errors(state)[2].kind == "Died"


def test_a_rank_that_the_kernel_killed_is_told_with_the_limit():
    state = run_of(events.ProcessDied(pid=102, status=-9, lack=256 << 20))
    limit = "(the container's limit is 256 MiB)"
    assert sentences.headline(state) == f"Rank 2 was killed by the OOM killer {limit}"


def test_ranks_that_died_before_they_began_are_told_with_what_ended_their_processes():
    state = RunState()
    for event in (
        events.JobStarted(pid=1, ranks=2, simulated=True),
        events.ProcessDied(pid=101, status=-6),
        events.ProcessDied(pid=102, status=-6),
        events.JobEnded(status=0),
    ):
        state.apply(event)
    assert {error.message.split(":")[0] for error in sentences.errors(state).values()} == {
        "crashed with SIGABRT (see the rank's output)"
    }


def test_stopped_ranks_are_told_with_the_line_they_were_at():
    state = run_of(failed(1))
    state.apply(events.StopRequested(why="Stopped 5 s after the first failure (grace)"))
    for rank in (0, 2, 3):
        state.apply(events.RankAt(rank=rank, place="Cell In[3], line 9", stack="s"))
        state.apply(events.RankStopped(rank=rank))
    assert sentences.details(state)[-1] == "Stopped: ranks 0, 2, 3 at Cell In[3], line 9"
    assert set(sentences.errors(state)) == {1}


def test_of_ranks_ended_by_force_the_line_of_the_interrupt_is_told_as_such():
    state = run_of(events.StopRequested(why="Stopped by an interrupt"), ranks=2)
    for rank in (0, 1):
        place = "Cell In[3], line 4"
        state.apply(events.RankInterrupted(rank=rank, place=place, stack="", at=1))
    state.apply(events.RankStopped(rank=0))
    state.apply(events.SignalSent(number=15))
    state.apply(events.ProcessDied(pid=101, status=-15))
    told = "Stopped: rank 0 at Cell In[3], line 4; rank 1, interrupted at Cell In[3], line 4"
    assert sentences.details(state)[-1] == told


def test_a_refused_launch_is_told_by_its_own_message():
    state = RunState()
    state.apply(events.JobFailed(kind="E", message="cannot load", text="stack"))
    assert sentences.headline(state) == "cannot load"
    assert sentences.details(state) == ["stack"]


def test_a_run_that_nobody_has_heard_of_yet_is_starting():
    assert sentences.headline(RunState()) == "Starting"
    state = RunState()
    state.apply(events.JobEnded(status=0))
    assert sentences.headline(state) == "No rank was started"


def test_a_rank_that_returned_is_named_where_the_others_miss_it():
    state = run_of(finished(1), replace(failed(0), follows=True))
    assert sentences.headline(state).endswith("(rank 1 had already returned)")
    assert "already returned" not in sentences.headline(run_of(finished(1), failed(0)))


DIVERGED = "Rank 1 returned while ranks 0, 2 were in all_reduce (Cell In[3], line 7)"


def diverged(rank, **more):
    error = failed(rank, f"{DIVERGED}:\n  rank 1: returned")
    return replace(error, kind="CollectiveMismatch", early=(1,), **more)


def test_ranks_that_diverged_are_told_by_what_they_did_and_who_left_early_is_known():
    state = run_of(finished(1), diverged(2), diverged(0), ranks=3)
    assert sentences.headline(state) == DIVERGED
    assert state.first_failure.early == (1,)
    assert sentences.errors(state)[2].first_line == f"CollectiveMismatch: {DIVERGED}: …"


def test_beside_them_a_rank_that_failed_by_itself_is_named():
    state = run_of(finished(1), diverged(2), failed(0), ranks=3)
    assert sentences.headline(state).startswith(f"{DIVERGED}; rank 0 failed at Cell In[3]")


def test_ranks_that_diverged_since_another_had_failed_do_not_lead():
    state = run_of(failed(1), diverged(2, follows=True), ranks=3)
    assert sentences.headline(state).startswith("Rank 1 failed at Cell In[3], line 4: ValueError")
    assert state.first_failure.early == ()


def test_devices_of_one_process_are_counted_as_such():
    devices = ("device 0", "device 1")
    state = run_of(ranks=1)
    state.apply(events.RankStarted(rank=0, local_rank=0, pid=1, device="xla:0", devices=devices))
    assert sentences.headline(state) == "2 devices running"


def test_a_lost_host_leads_and_its_ranks_are_told_with_it():
    state = RunState()
    for event in (
        events.HostsPlaced(names=("a", "b")),
        events.JobStarted(pid=1, host="a", ranks=2, simulated=True),
        events.JobStarted(pid=1, host="b", ranks=2, first=2, simulated=True),
        events.HostLost(host="b", why="its node died"),
    ):
        state.apply(event)
    assert sentences.headline(state) == "Host b was lost with ranks 2, 3: its node died"
    assert str(sentences.errors(state)[3]) == "lost with its host b: its node died"


def test_a_refusal_names_its_host_where_there_are_several():
    state = RunState()
    state.apply(events.HostsPlaced(names=("a", "b")))
    state.apply(events.JobFailed(kind="K", message="no", text="", host="b"))
    assert sentences.headline(state) == "b: no"


def test_ranks_that_were_lost_without_their_host_are_told_with_the_reason():
    state = RunState()
    for event in (
        events.JobStarted(pid=1, host="h", ranks=3, simulated=True),
        events.RankFinished(rank=1, preview="", nbytes=1),
        events.JobEnded(status=-11),
    ):
        state.apply(event)
    why = "their job crashed with SIGSEGV in native code"
    assert sentences.headline(state) == f"Ranks 0, 2 were lost: {why}"
    assert str(sentences.errors(state)[0]) == f"lost: {why}"


def test_a_rank_that_somebody_interrupted_is_told_with_its_line():
    state = RunState()
    for event in (
        events.JobStarted(pid=1, host="h", ranks=1, simulated=True),
        events.RankAt(rank=0, place="Cell In[3], line 2", stack=""),
        events.RankStopped(rank=0),
    ):
        state.apply(event)
    told = "Rank 0 was interrupted (SIGINT) at Cell In[3], line 2"
    assert sentences.headline(state) == told


def test_what_fails_while_it_stops_is_told_behind_why_it_stopped():
    stop = events.StopRequested(why="Timed out after 2 s (timeout)")
    state = run_of(stop, failed(1), failed(0), ranks=2)
    told = "Timed out after 2 s (timeout); ranks 0, 1 failed while they stopped"
    assert sentences.headline(state) == told
    state = run_of(stop, events.ProcessDied(pid=101, status=-11), ranks=2)
    assert sentences.headline(state).endswith("; rank 1 died while it stopped")


def test_a_run_whose_ranks_all_returned_finished_although_it_was_to_stop():
    state = run_of(events.StopRequested(why="Stopped by an interrupt"), finished(0), ranks=1)
    assert sentences.headline(state) == "Stop requested after 1 rank finished"
