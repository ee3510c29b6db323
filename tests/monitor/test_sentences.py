"""Sentences about a run's state that people read."""

from dataclasses import replace

from xla_nb.messages import events
from xla_nb.monitor import sentences
from xla_nb.monitor.state import RunState


def run_of(*happened, ranks=4):
    state = RunState()
    state.apply(events.JobStarted(host="h", ranks=ranks, simulated=True))
    for rank in range(ranks):
        state.apply(events.RankStarted(rank=rank, pid=100 + rank, device="xla:0"))
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


def test_successful_run_has_a_one_line_headline():
    state = run_of(*(finished(r) for r in range(4)))
    assert sentences.headline(state) == "4 ranks finished"
    assert sentences.details(state) == []


def test_changed_variables_are_reported_once_all_ranks_finished():
    done = [finished(r) for r in range(3)]
    told = "Ranks changed `best`; the notebook's copy is unchanged. Return it from the function."
    state = run_of(events.Changed(names=("best",)), *done)
    assert sentences.changes(state) == ""
    state.apply(finished(3))
    assert sentences.changes(state) == told
    state.apply(events.StopRequested(why="Stopped"))
    assert sentences.changes(state) == ""
    assert sentences.changes(run_of(events.Changed(names=("best",)), *done, failed(3))) == ""


def test_several_changed_variables_share_one_sentence():
    changed = events.Changed(names=("best", "history"), in_cell=True)
    state = run_of(changed, *(finished(r) for r in range(4)))
    assert sentences.changes(state) == (
        "Ranks changed `best` and `history`; the notebook's copies are unchanged. End the cell "
        "with them to get them."
    )


def test_headline_names_the_first_failed_rank_and_its_line():
    state = run_of(failed(2, "first", line=7))
    headline = "Rank 2 failed at Cell In[3], line 7: ValueError: first"
    assert sentences.headline(state) == headline


def test_headline_states_that_all_ranks_failed():
    state = run_of(*(failed(rank) for rank in (3, 0, 1, 2)))
    assert sentences.headline(state).startswith("All 4 ranks failed (rank 3 first) at Cell In[3]")


def test_headline_counts_same_errors_at_different_lines_together():
    state = run_of(failed(2, line=7), failed(0, line=9))
    headline = "2 of 4 ranks failed (rank 2 first, at Cell In[3], line 7): ValueError: boom"
    assert sentences.headline(state) == headline


def test_headline_counts_different_errors_separately():
    state = run_of(failed(2, "first", line=7), failed(0), failed(1), finished(3))
    headline = (
        "Rank 2 failed at Cell In[3], line 7: ValueError: first; 2 others failed for other reasons"
    )
    assert sentences.headline(state) == headline


def test_headline_lists_different_errors_when_all_ranks_failed():
    state = run_of(*(failed(rank, line=7) for rank in (1, 0, 2)), failed(3, "other"))
    headline = (
        "3 ranks failed (rank 1 first) at Cell In[3], line 7: ValueError: boom; "
        "rank 3 failed at Cell In[3], line 4: ValueError: other"
    )
    assert sentences.headline(state) == headline


def test_headline_counts_consequential_failures_separately():
    mismatch = {"kind": "CollectiveMismatch", "message": "rank 1 ended", "follows": True}
    state = run_of(failed(1), *(replace(failed(rank, line=6), **mismatch) for rank in (0, 2, 3)))
    headline = (
        "Rank 1 failed at Cell In[3], line 4: ValueError: boom; 3 others failed because of it"
    )
    assert sentences.headline(state) == headline


def test_clause_follows_a_message_without_its_full_stop():
    state = run_of(failed(1, "No data (3)."), replace(failed(0, "gone"), follows=True))
    headline = "ValueError: No data (3); 1 other failed because of it"
    assert sentences.headline(state).endswith(headline)
    assert sentences.headline(run_of(failed(1, "No data."))).endswith("ValueError: No data.")


def test_consequential_failure_with_the_same_error_counts_as_consequence():
    state = run_of(failed(1), replace(failed(0), follows=True))
    assert sentences.headline(state).endswith("ValueError: boom; 1 other failed because of it")


def test_headline_counts_ranks_with_the_same_death_together():
    died = [events.ProcessDied(pid=pid, status=-11) for pid in (101, 103)]
    headline = "2 of 4 ranks died (rank 1 first): crashed with SIGSEGV in native code"
    assert sentences.headline(run_of(*died)) == headline


def test_headline_lists_different_deaths_separately():
    died = [events.ProcessDied(pid=101, status=-11), events.ProcessDied(pid=103, status=3)]
    headline = (
        "Rank 1 crashed with SIGSEGV in native code; rank 3 exited with status 3 before finishing"
    )
    assert sentences.headline(run_of(*died)) == headline


def test_details_show_equal_errors_once():
    state = run_of(failed(1), failed(2), failed(3))
    (told,) = sentences.details(state)
    assert told.startswith("ranks 1–3:\n")
    assert told.count("Traceback") == 1


def test_details_show_each_message_of_otherwise_equal_errors():
    told = "\n".join(sentences.details(run_of(failed(1, "on 1"), failed(2, "on 2"))))
    assert told.count("Traceback") == 1
    assert "rank 2 failed at Cell In[3], line 4: ValueError: on 2" in told


def test_headline_shows_only_the_first_line_of_a_message():
    state = run_of(failed(1, "they differ:\n  a\n  b"), failed(2, "they differ:\n  b\n  a"))
    assert sentences.headline(state).endswith("ValueError: they differ: …")
    (told,) = sentences.details(state)
    assert "  a\n  b" in told


def test_details_show_the_traceback_of_the_first_failure():
    (told,) = sentences.details(run_of(failed(2, "on 2"), failed(1, "on 1")))[:1]
    assert told == "ranks 1, 2:\nTraceback …"


def test_details_show_errors_at_different_lines_first_failure_first():
    details = sentences.details(run_of(failed(3, line=9), failed(0, line=4)))
    assert details[0].startswith("rank 3:")
    assert details[1].startswith("rank 0:")


def test_headline_reports_terminated_live_ranks_as_lost():
    stop, ended = events.StopRequested(why="Stopped"), events.RankStopped(rank=0)
    sent = [events.SignalSent(number=number, of_group=True) for number in (15, 9)]
    state = run_of(stop, ended, sent[0])
    assert sentences.headline(state).endswith("; live ranks 1–3 are lost")
    state.apply(sent[1])
    assert sentences.headline(state).endswith("; the live ranks are lost")
    assert "lost" not in sentences.headline(run_of(events.SignalSent(number=15)))


def test_headline_names_the_signal_that_killed_a_rank():
    state = run_of(events.ProcessDied(pid=102, status=-9))
    assert (
        sentences.headline(state)
        == "Rank 2 was killed by SIGKILL (often out of memory; check dmesg)"
    )
    assert sentences.errors(state)[2].kind == "Died"


def test_headline_names_the_memory_limit_of_an_oom_killed_rank():
    state = run_of(events.ProcessDied(pid=102, status=-9, lack=256 << 20))
    limit = "(the container's limit is 256 MiB)"
    assert sentences.headline(state) == f"Rank 2 was killed by the OOM killer {limit}"


def test_error_of_ranks_that_died_before_starting_is_the_cause_of_death():
    state = RunState()
    for event in (
        events.JobStarted(ranks=2, simulated=True),
        events.ProcessDied(pid=101, status=-6),
        events.ProcessDied(pid=102, status=-6),
        events.JobEnded(status=0),
    ):
        state.apply(event)
    assert {error.message.split(":")[0] for error in sentences.errors(state).values()} == {
        "crashed with SIGABRT (see the rank's output)"
    }


def test_details_show_where_stopped_ranks_were():
    state = run_of(failed(1))
    state.apply(events.StopRequested(why="Stopped 5 s after the first failure (grace)"))
    for rank in (0, 2, 3):
        state.apply(events.RankAt(rank=rank, place="Cell In[3], line 9", stack="s"))
        state.apply(events.RankStopped(rank=rank))
    assert sentences.details(state)[-1] == "Stopped: ranks 0, 2, 3 at Cell In[3], line 9"
    assert set(sentences.errors(state)) == {1}


def test_details_show_the_interrupted_line_of_terminated_ranks():
    state = run_of(events.StopRequested(why="Stopped by an interrupt"), ranks=2)
    for rank in (0, 1):
        place = "Cell In[3], line 4"
        state.apply(events.RankInterrupted(rank=rank, place=place, stack="", at=1))
    state.apply(events.RankStopped(rank=0))
    state.apply(events.SignalSent(number=15))
    state.apply(events.ProcessDied(pid=101, status=-15))
    told = "Stopped: rank 0 at Cell In[3], line 4; rank 1, interrupted at Cell In[3], line 4"
    assert sentences.details(state)[-1] == told


def test_failed_launch_has_its_own_message_as_headline():
    state = RunState()
    state.apply(events.JobFailed(kind="E", message="cannot load", text="stack"))
    assert sentences.headline(state) == "cannot load"
    assert sentences.details(state) == ["stack"]


def test_run_without_events_is_starting():
    assert sentences.headline(RunState()) == "Starting"
    state = RunState()
    state.apply(events.JobEnded(status=0))
    assert sentences.headline(state) == "No rank was started"


def test_headline_names_a_rank_that_had_already_returned():
    state = run_of(finished(1), replace(failed(0), follows=True))
    assert sentences.headline(state).endswith("(rank 1 had already returned)")
    assert "already returned" not in sentences.headline(run_of(finished(1), failed(0)))


DIVERGED = "Rank 1 returned while ranks 0, 2 were in all_reduce (Cell In[3], line 7)"


def diverged(rank, **more):
    error = failed(rank, f"{DIVERGED}:\n  rank 1: returned")
    return replace(error, kind="CollectiveMismatch", early=(1,), **more)


def test_headline_of_diverged_ranks_states_the_calls_of_each():
    state = run_of(finished(1), diverged(2), diverged(0), ranks=3)
    assert sentences.headline(state) == DIVERGED
    assert state.first_failure.early == (1,)
    assert sentences.errors(state)[2].first_line == f"CollectiveMismatch: {DIVERGED}: …"


def test_headline_also_names_a_rank_that_failed_independently_of_diverged_ones():
    state = run_of(finished(1), diverged(2), failed(0), ranks=3)
    assert sentences.headline(state).startswith(f"{DIVERGED}; rank 0 failed at Cell In[3]")


def test_ranks_that_diverged_because_of_a_failure_do_not_lead_the_headline():
    state = run_of(failed(1), diverged(2, follows=True), ranks=3)
    assert sentences.headline(state).startswith("Rank 1 failed at Cell In[3], line 4: ValueError")
    assert state.first_failure.early == ()


def test_headline_counts_devices_of_a_single_process():
    devices = ("device 0", "device 1")
    state = run_of(ranks=1)
    state.apply(events.RankStarted(rank=0, pid=1, device="xla:0", devices=devices))
    assert sentences.headline(state) == "2 devices running"


def test_lost_host_leads_the_headline_with_its_ranks():
    state = RunState()
    for event in (
        events.HostsPlaced(names=("a", "b")),
        events.JobStarted(host="a", ranks=2, simulated=True),
        events.JobStarted(host="b", ranks=2, first=2, simulated=True),
        events.HostLost(host="b", why="its node died"),
    ):
        state.apply(event)
    assert sentences.headline(state) == "Host b was lost with ranks 2, 3: its node died"
    assert str(sentences.errors(state)[3]) == "lost with its host b: its node died"


def test_launch_error_names_its_host_if_there_are_several():
    state = RunState()
    state.apply(events.HostsPlaced(names=("a", "b")))
    state.apply(events.JobFailed(kind="K", message="no", text="", host="b"))
    assert sentences.headline(state) == "b: no"


def test_headline_states_why_ranks_were_lost_without_their_host():
    state = RunState()
    for event in (
        events.JobStarted(host="h", ranks=3, simulated=True),
        events.RankFinished(rank=1, preview="", nbytes=1),
        events.JobEnded(status=-11),
    ):
        state.apply(event)
    why = "their job crashed with SIGSEGV in native code"
    assert sentences.headline(state) == f"Ranks 0, 2 were lost: {why}"
    assert str(sentences.errors(state)[0]) == f"lost: {why}"


def test_headline_names_the_line_of_an_interrupted_rank():
    state = RunState()
    for event in (
        events.JobStarted(host="h", ranks=1, simulated=True),
        events.RankAt(rank=0, place="Cell In[3], line 2", stack=""),
        events.RankStopped(rank=0),
    ):
        state.apply(event)
    told = "Rank 0 was interrupted (SIGINT) at Cell In[3], line 2"
    assert sentences.headline(state) == told


def test_headline_reports_failures_during_a_stop_after_its_reason():
    stop = events.StopRequested(why="Timed out after 2 s (timeout)")
    state = run_of(stop, failed(1), failed(0), ranks=2)
    told = "Timed out after 2 s (timeout); ranks 0, 1 failed while they stopped"
    assert sentences.headline(state) == told
    state = run_of(stop, events.ProcessDied(pid=101, status=-11), ranks=2)
    assert sentences.headline(state).endswith("; rank 1 died while it stopped")


def test_stop_after_all_ranks_returned_counts_as_finished():
    state = run_of(events.StopRequested(why="Stopped by an interrupt"), finished(0), ranks=1)
    assert sentences.headline(state) == "Stop requested after 1 rank finished"
