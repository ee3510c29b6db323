"""A run from the notebook's side: reading it, stopping it, its end."""

import json
import os
import pickle
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.run.conftest import (
    DEFINITIONS,
    PATIENCE,
    a_run,
    failed,
    finished,
    on_hosts,
    ranks,
    recorded,
)
from tests.support.returned import are_sent
from xla_nb.errors import Interrupted
from xla_nb.messages import channel, events
from xla_nb.pickling import results
from xla_nb.run import run as run_module
from xla_nb.run.failed import RunFailed
from xla_nb.views import loop

# ---------------------------------------------------------------- reading


def test_results_map_ranks_to_return_values(start):
    job = start(*ranks(2))
    job.returns(1, {"loss": 0.5})
    job.returns(0, None)
    assert job.run.results == {0: None, 1: {"loss": 0.5}}
    assert list(job.run.results) == [0, 1]


def test_results_are_available_while_other_ranks_run(start):
    job = start(*ranks(2))
    job.returns(1, "early")
    assert job.run[1] == "early"
    assert job.run.results == {1: "early"}
    assert not job.run.done


def test_result_is_read_only_once(start):
    job = start(*ranks(1))
    job.returns(0, [1])
    assert job.run[0] is job.run[0]


def test_result_with_a_notebook_class_uses_the_notebooks_definition(start, monkeypatch):
    job = start(*ranks(1))

    class Net:
        pass

    are_sent({"Net": Net})
    monkeypatch.setitem(DEFINITIONS, id(Net), type("Sent", (), {}))
    fd = os.open(job.run.record.result(0), os.O_RDWR | os.O_CREAT)
    results.pack_home(Net).write(fd)
    os.close(fd)
    job.says(finished(0))
    assert job.run[0] is DEFINITIONS[id(Net)]


def test_rank_that_has_not_started_has_no_result_and_empty_output(start):
    run = start().run
    with pytest.raises(KeyError, match="Rank 0 has not started, so it has no result yet"):
        run[0]
    assert run.output(0) == ""


def test_unknown_rank_has_no_result(start):
    with pytest.raises(KeyError, match="r1 has no rank 2"):
        start(*ranks(2)).run[2]


def test_running_rank_has_no_result_yet(start):
    with pytest.raises(KeyError, match="Rank 0 is running, so it has no result yet"):
        start(*ranks(1)).run[0]


def test_failed_rank_has_an_error_and_no_result(start):
    job = start(*ranks(2), failed(1))
    assert str(job.run.errors[1]) == "ValueError: boom"
    assert set(job.run.errors) == {1}
    with pytest.raises(KeyError, match=r"Rank . failed"):
        job.run[1]


def test_run_is_ok_once_every_rank_has_returned(start):
    job = start(*ranks(2), finished(0))
    assert not job.run.ok
    job.says(finished(1))
    assert job.run.ok


def test_output_of_a_rank_is_read_from_its_files(start):
    run = start().run
    run.record.log(0).write_bytes(b"printed\xff\n")
    run.record.log(0, "err").write_text("warned\n")
    assert run.output(0) == "printed\N{REPLACEMENT CHARACTER}\n"
    assert run.output(0, "err") == "warned\n"
    assert run.output(1) == ""


@pytest.mark.parametrize(
    "news",
    [
        events.RankFinished(rank=1, preview="", nbytes=0),
        events.Asked(rank=1, pid=1, fd=3, ino=5, prompt=""),
    ],
)
def test_last_result_and_questions_wake_the_view_at_once(start, news):
    job = start(events.JobStarted(host="h", ranks=2, simulated=True))
    job.says(events.RankFinished(rank=0, preview="", nbytes=0))
    assert not job.run.urgent.is_set()
    job.says(news)
    assert job.run.urgent.is_set()


def test_run_ends_only_after_its_view_has_drawn_the_final_state(start, monkeypatch):
    monkeypatch.setattr("xla_nb.run.run._DRAWING", 60.0)
    job = start(*ranks(1))
    job.run.is_followed = True
    job.says(finished(0))
    job.hangs_up()
    assert not job.run.join_end(0.1)
    job.run.drawn.set()
    assert job.run.join_end(60)


def test_stacks_of_remote_ranks_are_requested_through_the_engine(start, engine):
    run = start(*on_hosts("left", "right")).run
    run.ask_stacks()
    assert engine.asked_where == ["r1"]
    # A single change: two would be two requests.
    assert Path(run.record.stacks_request).read_bytes() == b""


def test_elapsed_time_stops_when_the_last_rank_ends(start):
    job = start(*ranks(1))
    first = job.run.elapsed
    assert job.run.elapsed > first > 0
    job.says(finished(0))
    assert job.run.elapsed == job.run.elapsed


def test_repr_states_outcome_and_duration(start):
    job = start(*ranks(1), finished(0))
    assert repr(job.run).startswith("<Run r1: 1 rank finished, ")


def test_as_data_describes_each_rank(start):
    job = start(*ranks(2), finished(0), failed(1))
    data = job.run.as_data()["application/vnd.xla-nb.run+json"]
    assert data["ranks"][0] == {
        "rank": 0,
        "device": "xla:0",
        "phase": "finished",
        "result": "None",
    }
    assert data["ranks"][1]["phase"] == "failed"
    assert not data["ok"]


# ---------------------------------------------------------------- end


def test_wait_returns_the_run_when_it_has_ended(start):
    job = start(*ranks(1), finished(0))
    job.ends()
    assert job.run.wait(PATIENCE) is job.run
    assert job.run.done


def test_wait_returns_after_a_background_view_has_shown_the_end(start):
    job = start(*ranks(1), finished(0))
    goes_on, shown = threading.Event(), []

    def finish():
        assert goes_on.wait(PATIENCE)
        shown.append("the end")

    loop.follow_behind(job.run, SimpleNamespace(draw=lambda: 1.0, finish=finish, withdraw=None))
    threading.Timer(0.2, goes_on.set).start()
    job.ends()
    job.run.wait(PATIENCE)
    assert shown == ["the end"]


def test_wait_raises_after_its_timeout(start):
    job = start(*ranks(1))
    with pytest.raises(TimeoutError, match=r"r1 is still running after 0\.01 s"):
        job.run.wait(0.01)


def test_join_returns_whether_the_run_has_ended(start):
    job = start(*ranks(1), finished(0))
    assert job.run.join(0.01) is False
    job.ends()
    assert job.run.join() is True


def test_join_raises_the_failure(start):
    job = start(*ranks(1), failed(0))
    job.ends()
    with pytest.raises(RunFailed):
        job.run.join()


def test_interrupt_ends_the_wait_but_not_the_run(start, monkeypatch):
    job = start(*ranks(1))

    def interrupted(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(job.run._ended, "wait", interrupted)
        with pytest.raises(Interrupted, match=r"^r1 is still running; run\.stop\(\) stops it\.$"):
            job.run.wait(PATIENCE)
    assert not job.run.done


def test_failed_run_raises_its_headline_and_path(start):
    job = start(*ranks(2), failed(1), finished(0))
    job.ends()
    with pytest.raises(RunFailed) as caught:
        job.run.wait(PATIENCE)
    first, *_, last = str(caught.value).split("\n\n")
    assert first == "Rank 1 failed at Cell In[3], line 2: ValueError: boom"
    assert "rank 1:\nTraceback" in str(caught.value)
    assert last == f"Output and files: {job.run.record.path}"
    assert caught.value.run is job.run


def test_pickled_failure_keeps_its_message(start):
    job = start(*ranks(2), failed(1), finished(0))
    job.ends()
    with pytest.raises(RunFailed) as caught:
        job.run.wait(PATIENCE)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (RunFailed, str(caught.value))


def test_program_that_cannot_be_loaded_fails_the_run_with_the_reason(start):
    job = start(events.JobFailed(kind="E", message="cannot load", text="its stack"))
    job.ends(1)
    with pytest.raises(RunFailed, match="cannot load\n\nits stack\n\n"):
        job.run.check()


def test_run_ends_when_the_connection_closes(start):
    job = start(*ranks(2), finished(0))
    job.hangs_up()
    assert job.run._ended.wait(PATIENCE)
    assert [r.phase for r in job.run.state.ranks.values()] == ["finished", "died"]


def test_unfinished_hosts_are_lost_with_the_engine(start, engine):
    engine.lost = "the connection to the cluster's head was lost"
    job = start(*on_hosts("left", "right"), finished(0))
    job.hangs_up()
    assert job.run._ended.wait(PATIENCE)
    assert [r.phase for r in job.run.state.ranks.values()] == ["finished", "died"]
    assert [host.lost for host in job.run.state.hosts.values()] == ["", engine.lost]
    assert recorded(job.run)[-1].why == engine.lost


def test_engine_lost_before_placement_is_why_the_run_was_rejected(start, engine):
    engine.lost = "the connection to the cluster's head was lost. What to do: run it again"
    job = start()
    job.hangs_up()
    assert job.run._ended.wait(PATIENCE)
    with pytest.raises(RunFailed, match=r"head was lost\. What to do"):
        job.run.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("closes", [True, False])
def test_run_ends_with_the_reason_when_its_follower_crashes(start, engine, monkeypatch, closes):
    def broken(*_):
        raise TypeError("sum() is mine")

    job = start(*ranks(2), finished(0))
    if not closes:
        monkeypatch.setattr(job.run.record, "close", broken)
    monkeypatch.setattr(job.run, "_act", broken)
    assert job.run._ended.wait(PATIENCE)
    assert engine.killed == ["r1"]
    assert [r.phase for r in job.run.state.ranks.values()] == ["finished", "died"]
    with pytest.raises(RunFailed, match=r"for this run failed \(TypeError: sum\(\) is mine\)"):
        job.run.wait(PATIENCE)


def test_run_continues_when_looking_for_its_problems_fails(start, engine, monkeypatch):
    def broken(*_):
        raise TypeError("sum() is mine")

    monkeypatch.setattr("xla_nb.monitor.hang.HangWatch.act", broken)
    job = start(*ranks(1))

    def notices():
        return [n.text for n in job.run.state.notices if "sum() is mine" in n.text]

    with job.run.changed:
        assert job.run.changed.wait_for(notices, PATIENCE)
    job.says(finished(0))
    job.ends()
    assert (job.run.ok, len(notices()), engine.killed) == (True, 1, [])


def test_run_ends_with_its_last_host(start):
    job = start(*on_hosts("left", "right"), finished(0), finished(1))
    job.says(events.JobEnded(status=0, host="left"))
    assert not job.run.done
    job.says(events.JobEnded(status=0, host="right"))
    assert job.run._ended.wait(PATIENCE)
    assert job.run.ok


def test_events_after_the_end_change_nothing(start):
    job = start(*ranks(1), finished(0))
    job.ends()
    job.run.take(failed(0))
    assert job.run.ok
    assert not [event for event in recorded(job.run) if isinstance(event, events.RankFailed)]


def test_ended_run_has_a_summary_in_its_record(start):
    job = start(*ranks(2), finished(1), failed(0))
    job.ends()
    written = json.loads((job.run.record.path / "run.json").read_text())
    assert written.pop("elapsed") == job.run.elapsed
    assert written.pop("bytes") > 0
    assert written == {
        "run": "r1",
        "cell": "Cell In[3]",
        "ok": False,
        "outcome": "failed",
        "headline": "Rank 0 failed at Cell In[3], line 2: ValueError: boom",
        "found": "",
        "calm": "",
        "called": "",
        "notebook": "",
        "hang": "",
        "ranks": [
            {"rank": 0, "device": "xla:0", "phase": "failed", "result": ""},
            {"rank": 1, "device": "xla:1", "phase": "finished", "result": "None"},
        ],
    }


def test_record_has_every_event(start):
    happened = [*ranks(1), finished(0)]
    job = start(*happened)
    assert recorded(job.run) == happened


def test_waiting_for_a_change_wakes_up_at_the_end(start):
    job = start(*ranks(1))
    with job.run.changed:
        channel.Sender(job.theirs).send(events.JobEnded(status=0))
        while not job.run.done:
            assert job.run.changed.wait(PATIENCE)


# ---------------------------------------------------------------- stopping


@pytest.fixture
def impatient(monkeypatch):
    """Use short time limits for stopping."""
    monkeypatch.setattr(run_module, "STOP_PATIENCE", 0.05)
    monkeypatch.setattr(run_module, "EXIT_PATIENCE", 0.05)
    monkeypatch.setattr(run_module, "_TICK", 0.01)


@pytest.fixture
def patient(monkeypatch):
    """Use endless time limits for stopping."""
    monkeypatch.setattr(run_module, "STOP_PATIENCE", 3600)
    monkeypatch.setattr(run_module, "EXIT_PATIENCE", 3600)
    monkeypatch.setattr(run_module, "_TICK", 0.01)


def test_stop_interrupts_running_ranks(patient, start, engine):
    job = start(*ranks(3), finished(1))
    job.run.stop("enough")
    assert engine.interrupted == [[100, 102]]
    assert engine.killed == []
    assert job.run.state.stopping == "enough"


def test_starting_rank_is_interrupted_once_it_runs(patient, start, engine):
    job = start(*ranks(2))
    job.run.stop()
    job.says(ranks(3)[-1])
    engine.until(lambda: engine.interrupted == [[100, 101], [102]])


def test_ranks_are_interrupted_host_by_host(patient, start, engine):
    start(*on_hosts("left", "right", "far"), finished(1)).run.stop("enough")
    assert engine.by_host == [{"left": [100], "far": [100]}]


def test_ranks_that_ignore_the_interrupt_are_terminated_then_killed(impatient, start, engine):
    job = start(*ranks(2), grace=0.05)
    job.run.stop()
    engine.until(lambda: engine.killed == ["r1"])
    assert (engine.interrupted, engine.terminated) == ([[100, 101]], [[100, 101]])


def half_stopped(engine):
    """A stopped run of two ranks, one of which ended within the grace period, now over."""
    run = a_run(engine, grace=5)
    for event in ranks(2):
        run.take(event)
    run.stop()
    run.take(events.RankStopped(rank=0))
    run._act(time.monotonic() + 0.4)  # asks who stays where it is
    run._climb_if_due(time.monotonic() + 5)
    return run


def test_stopped_rank_gets_no_sigterm(engine):
    half_stopped(engine)
    assert engine.terminated == [[101]]


def test_notice_names_ranks_terminated_at_the_end_of_the_grace_period(engine):
    run = half_stopped(engine)
    run._climb_if_due(time.monotonic() + 7)
    assert [notice.text for notice in run.state.notices] == [
        "Sent SIGTERM to rank 1, which did not exit within 5 s of the interrupt (--grace). "
        "Some finally blocks may not have finished."
    ]


def test_second_stop_skips_the_rest_of_the_grace_period(patient, start, engine):
    job = start(*ranks(2), grace=3600)
    job.run.stop()
    job.says(events.RankStopped(rank=0))
    job.run.stop()
    assert engine.terminated == [[101]]
    job.run.stop()
    assert engine.killed == ["r1"]
    assert [notice.text for notice in job.run.state.notices] == [
        "Stopped again: sent SIGTERM to rank 1.",
        "Stopped again: sent SIGKILL to rank 1.",
    ]


def test_interrupt_and_button_for_the_same_stop_count_once(patient, start, engine):
    job = start(*ranks(2), grace=3600)
    job.run.stop("the button", same="an interrupt")
    job.run.stop("an interrupt", same="the button")
    assert engine.terminated == []
    job.run.stop("the button", same="an interrupt")
    assert engine.terminated == [[100, 101]]


def test_another_stop_seconds_later_counts_again(patient, start, engine, monkeypatch):
    monkeypatch.setattr("xla_nb.run.run._SAME", 0.0)
    job = start(*ranks(2), grace=3600)
    job.run.stop("the button", same="an interrupt")
    job.run.stop("an interrupt", same="the button")
    assert engine.terminated == [[100, 101]]


def test_repeated_stops_kill_a_run_only_once(engine):
    run = a_run(engine, grace=3600)
    for event in ranks(1):
        run.take(event)
    for _ in range(9):
        run.stop()
    assert engine.killed == ["r1"]
    assert not run._feed.ended


def test_slow_stopping_ranks_are_reported_once_with_the_grace_period(engine):
    run = a_run(engine, grace=5)
    for event in ranks(3):
        run.take(event)
    run.stop()
    run.take(events.RankStopped(rank=1))
    run._act(time.monotonic())
    assert run.state.notices == []
    for seconds in (1.1, 1.2):
        run._act(time.monotonic() + seconds)
    (told,) = run.state.notices
    assert told.text == (
        "Sent an interrupt to ranks 0, 2, which may take up to 5 s to clean up (grace). "
        "Another stop ends them now."
    )


def test_run_is_killed_once_all_started_ranks_have_stopped(engine):
    run = a_run(engine, grace=3600)
    for event in [*ranks(2)[:2], events.Notice(text="")]:
        run.take(event)
    run.stop()
    run.take(events.RankStopped(rank=0))
    run._act(time.monotonic())
    assert engine.killed == ["r1"]


def test_lingering_processes_of_a_stopped_run_are_killed_soon(engine):
    run = a_run(engine, grace=3600)
    for event in ranks(1):
        run.take(event)
    run.stop()
    run.take(events.RankStopped(rank=0))
    run._act(time.monotonic() + run_module.STOP_PATIENCE)
    assert engine.killed == ["r1"]


def test_stop_before_any_rank_exists_kills_the_job(patient, start, engine):
    job = start()
    job.run.stop()
    assert (engine.interrupted, engine.killed) == ([], ["r1"])


def test_stop_does_not_wait_for_ranks_that_have_not_started(patient, start, engine):
    job = start(events.JobStarted(host="h", ranks=2, simulated=True))
    job.run.stop()
    assert engine.killed == ["r1"]


def test_first_reason_to_stop_is_kept(patient, start, engine):
    job = start(*ranks(1))
    job.run.stop("first")
    job.run.stop("second")
    assert engine.interrupted == [[100]]
    assert job.run.state.stopping == "first"


def test_stopping_an_ended_run_does_nothing(start, engine):
    job = start(*ranks(1), finished(0))
    job.ends()
    job.run.stop()
    assert (engine.interrupted, engine.killed) == ([], [])
    assert job.run.ok
    assert job.run.state.stopping == ""


def test_stopped_ranks_are_not_errors(patient, start):
    job = start(*ranks(2))
    job.run.stop("enough")
    job.says(events.RankStopped(rank=0), events.RankStopped(rank=1))
    job.ends()
    assert job.run.errors == {}
    with pytest.raises(RunFailed, match="enough"):
        job.run.check()


def test_other_ranks_are_interrupted_after_the_grace_period_of_a_failure(patient, start, engine):
    job = start(*ranks(2), grace=0.05)
    job.says(failed(0))
    engine.until(lambda: engine.interrupted == [[101]])
    assert job.run.state.stopping == "Stopped 0.05 s after the first failure (grace)"


@pytest.mark.parametrize("pid", [101, 555])
def test_death_of_a_process_counts_as_a_failure(patient, start, engine, pid):
    start(*ranks(2), events.ProcessDied(pid=pid, status=-9), grace=0.05)
    engine.until(lambda: engine.interrupted)
    assert 100 in engine.interrupted[0]


def test_no_rank_is_interrupted_during_the_grace_period(patient, start, engine):
    job = start(*ranks(2), failed(0), grace=3600)
    with pytest.raises(TimeoutError):
        job.run.wait(0.1)
    assert engine.interrupted == []


def test_run_is_stopped_after_its_timeout(patient, start, engine):
    job = start(timeout=0.1)
    engine.until(lambda: engine.killed)
    assert job.run.state.stopping == "Timed out after 0.1 s (timeout)"


def test_run_without_timeout_continues(patient, start, engine):
    job = start(*ranks(1))
    with pytest.raises(TimeoutError):
        job.run.wait(0.1)
    assert engine.interrupted == []


def test_lingering_processes_are_killed_after_the_last_result(impatient, start, engine):
    job = start(*ranks(1), finished(0))
    engine.until(lambda: engine.killed == ["r1"])
    assert engine.interrupted == []
    assert job.run.ok


def test_processes_get_time_to_exit_after_the_last_result(patient, start, engine):
    job = start(*ranks(1), finished(0))
    with pytest.raises(TimeoutError):
        job.run.wait(0.1)
    assert (engine.interrupted, engine.killed) == ([], [])


def test_lingering_job_is_killed_after_it_fails(impatient, start, engine):
    start(events.JobFailed(kind="E", message="m", text=""))
    engine.until(lambda: engine.killed == ["r1"])


def test_nothing_lingers_of_ranks_that_never_began(impatient, start, engine):
    job = start(
        events.HostsPlaced(names=("a", "b")),
        events.JobFailed(kind="E", message="m", text="", host="b"),
        events.JobStarted(host="a", ranks=2, simulated=True),
    )
    engine.until(lambda: engine.killed == ["r1"])
    job.says(events.JobEnded(status=0, host="b"), events.JobEnded(status=-9, host="a"))
    assert job.run._ended.wait(PATIENCE)
    assert (job.run.state.ranks, job.run.state.notices, job.run.errors) == ({}, [], {})


def test_limits_do_not_stop_a_run_whose_ranks_have_all_ended(patient, engine):
    run = a_run(engine, grace=1, timeout=2)
    for event in [*ranks(2), failed(0), finished(1)]:
        run.take(event)
    run._act(time.monotonic() + 3)
    assert run.state.stopping == ""


def test_lingering_processes_are_killed_after_the_notebook_was_suspended(engine):
    """For example by an extension that holds the GIL, or a machine that sleeps."""
    run = a_run(engine)
    for event in [*ranks(1), finished(0)]:
        run.take(event)
    for seconds in (1, 2):
        run._act(time.monotonic() + seconds * run_module.EXIT_PATIENCE + 1)
    assert engine.killed == ["r1"]


def test_stopping_a_finished_run_keeps_it_finished(start, engine):
    job = start(*ranks(1), finished(0))
    job.run.stop()
    assert job.run.ok
    assert repr(job.run).startswith("<Run r1: 1 rank finished")
    assert engine.killed == ["r1"]


def test_notice_reports_work_that_is_killed_after_the_last_result(engine):
    run = a_run(engine)
    for event in [*ranks(1), finished(0)]:
        run.take(event)
    began = time.monotonic()
    run._act(began + run_module.EXIT_PATIENCE - 1)
    assert engine.killed == run.state.notices == []
    run._act(began + run_module.EXIT_PATIENCE + 1)
    assert engine.killed == ["r1"]
    (told,) = run.state.notices
    assert told.text == (
        "The ranks left threads, processes or `atexit` handlers running; they were killed after "
        "3 s. Wait for them in the function (`thread.join()`, `process.wait()`)."
    )


def test_failed_job_that_lingers_is_killed_without_notice(engine):
    run = a_run(engine)
    run.take(events.JobFailed(kind="E", message="m", text=""))
    run._act(time.monotonic() + run_module.EXIT_PATIENCE + 1)
    assert engine.killed == ["r1"]
    assert run.state.notices == []


@pytest.mark.parametrize(
    "end", [events.ProcessDied(pid=101, status=-9), events.RankStopped(rank=1)]
)
def test_leftovers_of_killed_or_stopped_ranks_are_killed_without_notice(engine, end):
    run = a_run(engine)
    for event in [*ranks(2), finished(0)]:
        run.take(event)
    if isinstance(end, events.RankStopped):
        run.stop()
    run.take(end)
    run._act(time.monotonic() + run_module.EXIT_PATIENCE)
    assert engine.killed == ["r1"]
    assert run.state.notices == []


def test_finished_ranks_get_time_to_exit_after_another_was_killed(engine):
    run = a_run(engine)
    for event in [*ranks(2), finished(0), events.ProcessDied(pid=101, status=-9)]:
        run.take(event)
    run._act(time.monotonic() + run_module.STOP_PATIENCE + 1)
    assert engine.killed == []
