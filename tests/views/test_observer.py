"""An observer reads a run's files: cards, new output, figures, bars."""

import json
import math
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.run_double import Run
from xla_nb.messages import events
from xla_nb.monitor.snapshot import Bar, Diagnosis
from xla_nb.record import sample
from xla_nb.record.output import SWITCH
from xla_nb.record.sample import Loop, Sample
from xla_nb.views import facts
from xla_nb.views.observer import Figure, Observer, observe


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def observer(run):
    return Observer(run)


def started(run, *ranks):
    for rank in ranks:
        run.state.apply(events.RankStarted(rank=rank, pid=100 + rank, device="xla:0", at=10.0))


def samples(run, rank, **figures):
    figures = {"at": 20.0, "since": 15.0} | figures
    run.record.sample(rank).write_bytes(sample.encode(Sample(**figures)))


def reports(run, rank, *rows):
    with run.record.history(rank).open("a") as file:
        for number, figures in rows:
            file.write(json.dumps([number, 0.0, None, figures]) + "\n")


def card(observer, rank):
    observer.sample()
    return observer.snapshot().cards[rank]


# ---------------------------------------------------------------- output


def test_line_held_back_until_the_end_keeps_its_order(run):
    seeing = Observer(run, notes=True)
    started(run, 0)
    bar, out = run.record.log(0, "err"), run.record.log(0, "out")
    bar.write_text("\rbar:  50%")
    seeing.read(budget=100)
    bar.write_text("\rbar:  50%\rbar: 100%\n")
    out.write_text("after\n")
    seeing.read(budget=100)
    seeing.finish()
    times = [run.arrivals.times(path.name, 1, 0, 0)[0] for path in (bar, out)]
    assert times == sorted(times)
    assert math.isfinite(times[0])


# ---------------------------------------------------------------- cards


def test_rank_that_has_not_joined_is_starting(observer):
    assert [one.phase for one in observer.snapshot().cards] == ["starting", "starting"]


def test_running_rank_shows_its_sample(run, observer):
    started(run, 0, 1)
    samples(run, 0, activity="compiling", place="Cell In[3], line 7", memory=5, steps=2, compiles=1)
    seen = card(observer, 0)
    assert (seen.phase, seen.since, seen.place) == ("compiling", 15.0, "Cell In[3], line 7")
    assert (seen.sample.memory, seen.sample.steps, seen.sample.compiles, seen.pid) == (5, 2, 1, 100)
    assert card(observer, 1).phase == "running"


def test_headline_counts_phases_of_cards_and_ignores_brief_ones(run, observer):
    started(run, 0, 1)
    samples(run, 0, activity="blocked", operation="time.sleep")
    samples(run, 1, activity="compiling", since=19.8)
    assert card(observer, 1).phase == "running"
    assert observer.snapshot().headline == "2 ranks: 1 waiting, 1 running"
    samples(run, 1, at=21.0, activity="compiling", since=19.8)
    assert card(observer, 1).phase == "compiling"
    assert observer.snapshot().diagnosis == Diagnosis("2 ranks: 1 waiting, 1 compiling")


@pytest.mark.parametrize(
    ("counted", "call", "shown"),
    [
        ("blocked", "time.sleep", ("waiting", "in time.sleep")),
        ("data_waited", "", ("waiting", "for data")),
        ("compile_seconds", "", ("compiling", "")),
        ("idle", "", ("running", "")),
    ],
)
def test_phase_is_the_main_activity_of_the_last_two_seconds(run, observer, counted, call, shown):
    started(run, 0, 1)
    for moment in range(5):
        at, spent = 20 + moment / 2, {counted: 0.4 * moment}
        operation = call if moment < 4 else ""  # the last sample shows another activity
        samples(run, 0, at=at, since=at, operation=operation, **spent)
        seen = card(observer, 0)
    assert (seen.phase, seen.detail, seen.since is None) == (*shown, shown[0] != "running")
    assert f"1 {shown[0]}" in observer.snapshot().headline or shown[0] == "running"
    for moment in range(5):
        at = 22.5 + moment / 2
        samples(run, 0, at=at, since=22.1, **spent)
        seen = card(observer, 0)
    assert (seen.phase, seen.detail) == ("running", "")


def test_rank_whose_function_returned_is_sending_its_result(run, observer):
    started(run, 0)
    samples(run, 0, returned=True)
    assert card(observer, 0).detail == "sending its result"


def test_waiting_rank_shows_collective_and_missing_ranks(run, observer):
    started(run, 0)
    samples(run, 0, activity="waiting", operation="all_reduce sum f32[8]", missing=(1, 2, 3))
    assert card(observer, 0).detail == "in all_reduce sum f32[8], for ranks 1–3"


def test_ended_rank_shows_its_last_event_over_its_sample(run, observer):
    started(run, 0)
    samples(run, 0, activity="waiting", operation="all_reduce", steps=9)
    run.state.apply(events.RankFinished(rank=0, preview="0.97", nbytes=1, at=30.0))
    seen = card(observer, 0)
    assert (seen.phase, seen.since, seen.detail, seen.sample.steps) == (
        "finished",
        30.0,
        "",
        9,
    )


def test_failed_rank_shows_its_line_and_its_error_once(run, observer):
    run.state.apply(failure(0, "boom\nand more"))
    seen = card(observer, 0)
    assert (seen.phase, seen.detail, seen.place) == ("failed", "", "Cell In[3], line 9")
    (trouble,) = observer.snapshot().troubles
    assert (trouble.title, trouble.told) == ("ValueError: boom …", True)


def test_error_not_in_headline_has_a_title(run, observer):
    run.state.apply(failure(0, "boom"))
    run.state.apply(failure(1, "bang", line=10))
    assert [(one.title, one.told) for one in observer.snapshot().troubles] == [
        ("ValueError: boom", True),
        ("ValueError: bang", False),
    ]


def test_error_of_another_type_than_in_headline_has_a_title(run, observer):
    run.state.apply(failure(0, "'x'"))
    run.state.apply(replace(failure(1, "'x'"), kind="KeyError", where="KeyError"))
    assert [(one.title, one.told) for one in observer.snapshot().troubles] == [
        ("ValueError: 'x'", True),
        ("KeyError: 'x'", False),
    ]


def test_rank_that_returned_before_a_collective_is_marked(run, observer):
    run.state.apply(events.RankFinished(rank=0, preview="'skipped'", nbytes=1))
    run.state.apply(events.RankFinished(rank=2, preview="7", nbytes=1))
    run.state.apply(replace(failure(1, "gone"), early=(0,)))
    assert [card(observer, rank).phase for rank in (0, 1, 2)] == ["early", "failed", "finished"]
    assert card(observer, 0).detail == "returned before a collective that other ranks called"


def test_error_without_message_shows_only_its_type(run, observer):
    run.state.apply(failure(0, ""))
    assert [(one.title, one.told) for one in observer.snapshot().troubles] == [("ValueError", True)]


def test_killed_rank_shows_the_signal(run, observer):
    started(run, 0)
    run.state.apply(events.ProcessDied(pid=100, status=-9))
    (trouble,) = observer.snapshot().troubles
    assert "SIGKILL" in trouble.title
    assert trouble.told


@pytest.mark.parametrize(
    ("status", "how"),
    [(-9, "killed by SIGKILL"), (-11, "crashed with SIGSEGV"), (3, "exited with status 3")],
)
def test_row_shows_how_its_process_died(run, observer, status, how):
    started(run, 0)
    run.state.apply(events.ProcessDied(pid=100, status=status))
    assert (card(observer, 0).phase, card(observer, 0).detail) == ("died", how)


def test_lost_host_is_shown_by_its_ranks_and_by_the_run(run, observer):
    run.state.apply(events.HostsPlaced(names=("a", "b")))
    for first, host in enumerate("ab"):
        run.state.apply(events.JobStarted(host=host, ranks=1, simulated=False, first=first))
    run.state.apply(events.HostLost(host="b", why="its node died"))
    assert card(observer, 1).detail == "lost with its host b: its node died"
    assert observer.snapshot().hosts == ("a", "b")
    assert observer.snapshot().lost == {"b": "its node died"}


def test_card_has_a_lane_and_a_step_time(run, observer):
    started(run, 0)
    for n in range(9):
        samples(run, 0, at=20.0 + n, steps=10 * n, waited=0.25 * n)
        observer.sample()
    seen = observer.snapshot().cards[0]
    assert [(slot.second, slot.running, slot.others) for slot in seen.lane] == [
        (20 + n, 0.75, 0.25) for n in range(8)
    ]
    assert (seen.step, seen.waits) == (pytest.approx(0.1), 0.25)


def test_lane_does_not_change_after_the_end(run, observer):
    started(run, 0)
    for at in (20.0, 22.0):
        samples(run, 0, at=at)
        observer.sample()
    run.state.apply(events.RankFinished(rank=0, preview="", nbytes=1, at=30.0))
    assert len(card(observer, 0).lane) == 2


def test_samples_are_read_after_clock_is_set_back(run, observer):
    samples(run, 0, at=20.0, steps=5, cpu=1.0)
    observer.sample()
    samples(run, 0, at=10.0, steps=6, cpu=1.1)
    assert card(observer, 0).sample.steps == 6


def test_snapshot_has_a_diagnosis(run, observer):
    started(run, 0, 1)
    at = time.time()
    wait = {"activity": "waiting", "operation": "all_reduce", "missing": (1,)}
    samples(run, 0, at=at, since=at - 9.0, **wait)
    samples(run, 1, at=at, place="Cell In[3], line 6")
    observer.sample()
    told = "Rank 0 has been waiting 9 s for rank 1, at line 6"
    assert observer.snapshot().diagnosis == Diagnosis(told, "warning", (1,))


def test_incomplete_sample_is_ignored(run, observer):
    started(run, 0)
    samples(run, 0, steps=4)
    observer.sample()
    run.record.sample(0).write_bytes(b'{"at": 2')
    assert card(observer, 0).sample.steps == 4


def test_last_line_may_be_unfinished(run, observer):
    run.prints(0, "one\ntwo\n")
    observer.read(100)
    assert card(observer, 0).line == "two"
    run.prints(0, "thr")
    observer.read(100)
    assert card(observer, 0).line == "thr"


def test_card_shows_no_control_characters(run, observer):
    run.prints(0, "\x1b[31mred\x1b[0m \x00 \u202e\n")
    observer.read(100)
    assert card(observer, 0).line == "red ␀ ⟨U+202E⟩"


# ---------------------------------------------------------------- bars

TQDM = " 45%|████▌     | 45/100 [00:01<00:01, 40.5it/s]"


def test_real_tqdm_output_is_a_bar(run, observer, monkeypatch):
    from tqdm import tqdm as real

    monkeypatch.setattr(real, "monitor_interval", 0)  # it would leave a thread behind

    with run.record.log(0, "err").open("w") as file:
        for _ in real(range(7), desc="load", file=file, mininterval=0, leave=False):
            file.flush()
            observer.read(100)
            assert [bar.label for bar in card(observer, 0).bars] == ["load"]
    assert card(observer, 0).line == ""


def test_tqdm_bar_is_not_the_last_line(run, observer):
    run.prints(0, "begun\n")
    run.prints(0, "\r" + TQDM, "err")
    assert not [one for one in observer.read(100) if one.stream == "err"]
    seen = card(observer, 0)
    assert seen.bars == (Bar("", 45, 100, note="00:01<00:01, 40.5it/s"),)
    shown = "progress: 45 % · 45 of 100 · 00:01<00:01, 40.5it/s"
    assert facts.bar_in_short(seen.bars[0]) == shown
    assert seen.line == "begun"


def test_loop_under_progress_is_a_bar_with_remaining_time(run, observer):
    started(run, 0)
    loop = Loop(label="epoch", done=25, total=100, rate=5.0)
    samples(run, 0, loops=(loop,))
    assert card(observer, 0).bars == (Bar("epoch", 25, 100, 5.0, 15.0),)


def test_run_bar_ignores_dead_rank_after_a_stop(run, observer):
    started(run, 0, 1)
    for rank, done in [(0, 56), (1, 35)]:
        samples(run, rank, loops=(Loop(label="long", done=done, total=200, rate=4.0),))
    observer.sample()
    assert observer.snapshot().bar.done == 35
    run.state.apply(events.ProcessDied(pid=101, status=-9))
    assert observer.snapshot().bar.done == 56
    run.state.apply(events.StopRequested(why="Stopped"))
    run.state.apply(events.RankStopped(rank=0))
    assert observer.snapshot().bar.done == 56


def test_run_bar_names_rank_that_died_while_others_finished(run, observer):
    started(run, 0, 1)
    samples(run, 1, loops=(Loop(label="long", done=18, total=40, rate=10.0),))
    observer.sample()
    run.state.apply(events.ProcessDied(pid=101, status=-9))
    run.state.apply(events.RankFinished(rank=0, preview="", nbytes=0))
    bar = facts.bar_in_short(observer.snapshot().bar)
    assert bar == "long: 45 % · at least 18 of 40 on rank 1"


def test_last_progress_of_dead_rank_is_kept(run, observer):
    started(run, 0)
    samples(run, 0, items=34, loops=(Loop(label="long", done=34, total=200, rate=4.0),))
    card(observer, 0)
    run.state.apply(events.ProcessDied(pid=100, status=-9))
    seen = card(observer, 0)
    assert facts.bar_in_short(seen.bars[0]) == "long: 17 % · at least 34 of 200"
    assert [fact.value for fact in facts.of_card(seen) if fact.id == "steps"] == ["34"]


def test_run_bar_names_ranks_in_the_loop_before_others_start_one(run, observer):
    started(run, 0, 1, 2)
    for rank in range(2):
        loop = Loop(label=f"shard {rank}", done=8 - rank, total=24, rate=2.0)
        samples(run, rank, loops=(loop,))
    observer.sample()
    bar = observer.snapshot().bar
    assert (bar.label, bar.on) == ("shard 0", "rank 0")


def test_run_bar_of_several_named_ranks_has_the_least_count(run, observer):
    started(run, 0, 1, 2)
    for rank in range(2):
        samples(run, rank, loops=(Loop(label="step", done=95 - 48 * rank, total=100, rate=2.0),))
    observer.sample()
    bar = facts.bar_in_short(observer.snapshot().bar)
    assert bar.startswith("step: 47 % · at least 47 of 100 on ranks 0, 1 · ")


def test_run_bar_names_ranks_in_the_loop_while_others_finished_theirs(run, observer):
    started(run, 0, 1, 2)
    for rank in range(3):
        through = Loop(label="epoch 0", done=40, total=40, rate=2.0, finished=True)
        own = Loop(label="epoch 1", done=8, total=40, rate=2.0) if rank == 1 else through
        samples(run, rank, loops=(own,))
    observer.sample()
    bar = observer.snapshot().bar
    assert (bar.label, bar.on) == ("epoch 1", "rank 1")


def test_finished_rank_has_no_place_though_stacks_found_it_at_one(run, observer):
    started(run, 0)
    run.state.apply(events.RankAt(rank=0, place="Cell In[3], line 7", stack="", at=20.0))
    run.state.apply(events.RankFinished(rank=0, preview="", nbytes=0))
    assert card(observer, 0).place == ""


def test_bar_of_the_run_names_no_ranks_if_the_others_have_finished(run, observer):
    started(run, 0, 1)
    loop = Loop(label="epoch", done=5, total=5, rate=None, finished=True)
    samples(run, 0, loops=(loop,))
    samples(run, 1, loops=(loop,))
    run.state.apply(events.RankFinished(rank=1, preview="", nbytes=0))
    observer.sample()
    assert observer.snapshot().bar.on == ""


def test_tqdm_bar_replaces_finished_loops(run, observer):
    started(run, 0)
    left = Loop(label="batches", done=37, total=100, rate=5.0, finished=True)
    samples(run, 0, loops=(left,))
    assert card(observer, 0).bars == (Bar("batches", 37, 100, 5.0, None),)
    run.prints(0, "\r" + TQDM, "err")
    observer.read(100)
    assert [bar.label for bar in card(observer, 0).bars] == [""]
    samples(run, 0, at=21.0, loops=(Loop(label="epochs", done=1, total=3, rate=None),))
    assert [bar.label for bar in card(observer, 0).bars] == ["epochs", ""]  # tqdm is inner


def test_stopping_run_has_no_remaining_time_or_rate(run, observer):
    started(run, 0)
    samples(run, 0, loops=(Loop(label="epoch", done=25, total=100, rate=5.0),))
    run.state.apply(events.StopRequested(why="Stopped by the Stop button"))
    assert card(observer, 0).bars == (Bar("epoch", 25, 100, None, None),)
    assert observer.snapshot().bar.eta is None


def test_ended_rank_has_no_remaining_time(run, observer):
    loop = Loop(label="epoch", done=25, total=100, rate=5.0)
    samples(run, 0, loops=(loop,))
    assert card(observer, 0).bars == (Bar("epoch", 25, 100, 5.0, 15.0),)
    run.state.apply(failure(0, "boom"))
    assert card(observer, 0).bars == (Bar("epoch", 25, 100, 5.0, None),)


def test_damaged_history_is_shown_up_to_the_damage(run, observer):
    row = b'[0, 5.0, null, {"loss": 0.5}]\n'
    run.record.history(0).write_bytes(row + b"[1, NaN, null, {}]\n")
    run.record.history(1).write_bytes(row.replace(b"0.5", b"1" + b"0" * 400) + row)
    observer.sample()
    seen = observer.snapshot()
    assert [one.lines for one in seen.series] == [{0: [(0, 0.5)]}]
    assert ["history is damaged" in notice for notice in seen.notices] == [True, True]


# ---------------------------------------------------------------- output


def printed(observer, budget, focus=None):
    return {(o.rank, o.stream): o.block.lines for o in observer.read(budget, focus)}


def test_output_is_read_once_with_rank_and_stream(run, observer):
    run.prints(0, "zero\n")
    run.prints(1, "one\n", "err")
    run.prints(None, "job\n")
    assert printed(observer, 100) == {
        (None, "out"): ["job"],
        (0, "out"): ["zero"],
        (1, "err"): ["one"],
    }
    assert printed(observer, 100) == {}


def test_output_beyond_budget_keeps_newest_lines_of_each_rank_and_count(run, observer):
    run.prints(0, "".join(f"{n}\n" for n in range(100)))
    run.prints(1, "one\n")
    found = {one.rank: one.block for one in observer.read(8)}
    assert found[0].lines == ["96", "97", "98", "99"]
    assert found[0].skipped == 96
    assert found[1].lines == ["one"]


def test_selected_rank_gets_half_of_the_budget(run, observer):
    for rank in (0, 1):
        run.prints(rank, "x\n" * 100)
    found = printed(observer, 40, focus=1)
    assert (len(found[0, "out"]), len(found[1, "out"])) == (10, 20)


@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_lines_are_counted_across_blocks(run, observer, monkeypatch, limit):
    lines = [f"line {n} {'é' * (n % 5)}" for n in range(200)]
    run.prints(0, "\n".join(lines) + "\n")
    monkeypatch.setattr("xla_nb.record.tail._CHUNK", 100)
    (found,) = (one for one in observer.read(2 * limit) if one.rank == 0)
    kept = found.block.lines
    assert kept == lines[-len(kept) :]
    assert found.block.skipped == 200 - len(kept)
    assert 0 < len(kept) <= limit


def test_last_lines_of_a_rank_are_those_read_so_far_in_order(run, observer):
    run.prints(0, "a\nb\n")
    run.prints(0, "warning\n", "err")
    run.record.log(0, "switches").write_bytes(SWITCH.pack(2, 0) + SWITCH.pack(2, 8))
    observer.read(2)
    run.prints(0, "later\n")
    assert observer.last_lines(0) == [("out", "a"), ("err", "warning"), ("out", "b")]


# ---------------------------------------------------------------- figures


def test_figures_are_lines_by_rank(run, observer):
    reports(run, 0, (0, {"loss": 3.0}), (1, {"loss": 2.0, "lr": 0.1}))
    reports(run, 1, (0, {"loss": 4.0}))
    observer.sample()
    found = {series.name: series.lines for series in observer.snapshot().series}
    assert found == {"loss": {0: [(0, 3.0), (1, 2.0)], 1: [(0, 4.0)]}, "lr": {0: [(1, 0.1)]}}


def test_long_line_is_thinned_evenly_and_keeps_both_ends():
    figure = Figure(limit=10)
    for n in range(1001):
        figure.add(0, n, -n)
    points = figure.series("loss").lines[0]
    assert 5 <= len(points) <= 10
    assert points[0] == (0, 0)
    assert points[-1] == (1000, -1000)
    assert len({after[0] - before[0] for before, after in pairwise(points[:-1])}) == 1


@pytest.mark.parametrize("scale", [1, 50, 1e-3, 1e7])
def test_long_lines_of_ranks_keep_points_at_the_same_steps(scale):
    figure = Figure(limit=32)
    for n in range(1000):
        for rank in range(3 if n >= 600 else 2):
            figure.add(rank, n * scale, rank)
    lines = figure.series("loss").lines
    steps = [{step for step, _ in lines[rank]} for rank in range(3)]
    assert steps[0] == steps[1]
    assert 16 <= len(steps[0]) <= 32
    assert len(steps[2] - steps[0]) <= 1


def test_last_value_of_a_step_counts():
    figure = Figure(limit=10)
    for step, value in ((0, 1.0), (0, 2.0), (1, 3.0)):
        figure.add(0, step, value)
    assert figure.series("loss").lines == {0: [(0, 2.0), (1, 3.0)]}


def test_nan_keeps_its_place_in_a_line(run, observer):
    reports(run, 0, (0, {"loss": math.nan}))
    observer.sample()
    ((_, value),) = observer.snapshot().series[0].lines[0]
    assert math.isnan(value)


# ---------------------------------------------------------------- whole snapshots


def failure(rank, message, line=9):
    return events.RankFailed(
        rank=rank,
        kind="ValueError",
        message=message,
        text=f"Traceback\nValueError: {message}",
        place=f"Cell In[3], line {line}",
        where=f"ValueError\nCell In[3]:{line}",
    )


def test_equal_errors_are_one_trouble_with_first_rank_first(tmp_path):
    run = Run(tmp_path, ranks=4)
    for rank in (2, 0, 3):
        run.state.apply(failure(rank, f"on {rank}"))
    (trouble,) = Observer(run).snapshot().troubles
    assert trouble.ranks == (2, 0, 3)
    assert trouble.first
    assert trouble.title == "ValueError: on 2"
    assert len(trouble.others) == 2


def test_snapshot_with_output_has_first_and_last_lines(run, observer):
    run.prints(1, "".join(f"{n}\n" for n in range(1000)))
    (found,) = observer.snapshot_with_output().excerpts
    assert (found.rank, found.stream, found.head[0], found.tail[-1]) == (1, "out", "0", "999")
    assert len(found.head) + found.left_out + len(found.tail) == 1000


def test_recorded_run_is_observed_at_once(run):
    started(run, 0, 1)
    samples(run, 0, steps=3)
    reports(run, 0, (0, {"loss": 3.0}))
    run.prints(0, "last words")
    seen = observe(run)
    assert seen.cards[0].sample.steps == 3
    assert seen.cards[0].line == "last words"
    assert seen.series[0].name == "loss"
    assert seen.excerpts[0].head == ("last words",)


# ---------------------------------------------------------------- hangs


def hang(run, **more):
    group = events.StackGroup((1,), "Cell In[3], line 9", "  \x1b[2Jstack", "note")
    report = {"verdict": "Rank 1 hangs", "ranks": (1,), "groups": (group,), "at": 30.0, **more}
    run.state.apply(events.HangReported(**report))


def test_hang_report_is_shown_during_the_hang(run, observer):
    assert observer.snapshot().hang is None
    hang(run)
    (group,) = observer.snapshot().hang.groups
    assert observer.snapshot().hang.verdict == "Rank 1 hangs"
    assert (group.ranks, group.place, group.note) == ((1,), "Cell In[3], line 9", "note")


def test_ended_hang_becomes_a_note_with_its_report(run, observer):
    hang(run)
    run.state.apply(events.HangOver(why="Rank 1 made progress"))
    snapshot = observer.snapshot()
    assert snapshot.hang is None
    (note,) = snapshot.notices
    assert "is over. Rank 1 made progress. It was: Rank 1 hangs" in note


def test_note_about_hang_of_many_ranks_is_short(run, observer):
    hang(run, verdict="; ".join(f"ranks {n}, {n + 2} are at Cell In[3], line 9" for n in range(64)))
    run.state.apply(events.HangOver(why="Ranks 0, 2, 4, 6, and 28 more made progress"))
    (note,) = observer.snapshot().notices
    assert len(note) == 200
    assert "It was: ranks 0, 2 are" in note


def test_new_hang_report_replaces_the_previous_one(run, observer):
    hang(run)
    observer.snapshot()
    hang(run, verdict="Rank 0 hangs")
    assert observer.snapshot().hang.verdict == "Rank 0 hangs"


def test_rank_waiting_for_lock_shows_its_holder(run, observer):
    started(run, 0, 1)
    waits = {"activity": "waiting", "operation": sample.LOCK}
    samples(run, 0, **waits, missing=(1,))
    samples(run, 1, **waits)
    assert card(observer, 0).detail == "for `lock`, which rank 1 holds"
    assert card(observer, 1).detail == "for `lock`"


def test_rank_that_ended_is_not_shown_as_lock_holder(run, observer):
    started(run, 0, 1)
    samples(run, 0, activity="waiting", operation=sample.LOCK, missing=(1,))
    at = run.sample(0).at
    run.state.apply(events.RankFinished(rank=1, preview="", nbytes=1, at=at + 0.1))
    assert card(observer, 0).detail == "for `lock`"


def test_rank_waiting_for_input_shows_it(run, observer):
    started(run, 0)
    samples(run, 0, activity="waiting", operation=sample.INPUT)
    assert card(observer, 0).detail == "for an answer in the notebook"


@pytest.mark.parametrize(("ranks", "seconds"), [(2, 5.0), (1024, 22.0)])
def test_rank_that_sends_nothing_is_not_responding(run, observer, monkeypatch, ranks, seconds):
    started(run, *range(ranks))
    place = "Cell In[3], line 7"
    samples(run, 0, activity="blocked", operation="time.sleep", place=place)
    assert card(observer, 0).detail == "in time.sleep"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds - 3)
    assert card(observer, 0).detail == "in time.sleep"
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds)
    one = card(observer, 0)
    assert (one.phase, one.place, one.since) == ("not responding", place, None)
    assert one.detail == f"last seen {seconds:.0f} s ago"
    samples(run, 0, at=30.0, activity="blocked", operation="time.sleep", place=place)
    assert card(observer, 0).detail == "in time.sleep"


def test_wait_for_a_silent_rank_tells_where_it_was_last_seen(run, observer, monkeypatch):
    started(run, 0, 1)
    samples(run, 1, activity="blocked", operation="time.sleep", place="Cell In[3], line 7")
    card(observer, 0)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)
    samples(run, 0, activity="waiting", operation="all_reduce", missing=(1,))
    observer.sample()
    told = observer.snapshot().diagnosis.sentence
    assert told.endswith("for rank 1, which is not responding, last seen at line 7")


def test_passing_notice_disappears_when_run_ends(run, observer):
    started(run, 0)
    run.state.apply(events.Notice(text="Stop again to end now.", passing=True))
    run.state.apply(events.Notice(text="Stays."))
    assert observer.snapshot().notices == ("Stop again to end now.", "Stays.")
    run.state.apply(events.JobEnded(status=0))
    assert observer.snapshot().notices == ("Stays.",)


def test_line_records_where_it_first_and_last_became_nonfinite():
    figure = Figure(limit=3)  # its points include only a few
    for x, y in enumerate([1.0, math.nan, math.nan, 2.0, math.nan, 3.0, math.inf, math.inf]):
        figure.add(0, float(x), y)
    assert figure.series("loss").odd == {0: ((1, "NaN"), (6, "inf"))}


def test_line_records_a_new_kind_of_nonfinite_value():
    figure = Figure(limit=10)
    for x, y in enumerate([1.0, math.inf, math.nan, math.nan]):
        figure.add(0, float(x), y)
    assert figure.series("loss").odd == {0: ((1, "inf"), (2, "NaN"))}
