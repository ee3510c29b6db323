"""What an observer makes of a run's files: cards, new output, figures, bars."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.run_double import Run
from xla_nb.protocol import events
from xla_nb.record import sample
from xla_nb.record.sample import Loop, Sample
from xla_nb.views import observer
from xla_nb.views.observer import Line, Observer, together, tqdm
from xla_nb.views.snapshot import Bar


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def eyes(run):
    return Observer(run)


def started(run, *ranks):
    for rank in ranks:
        run.state.apply(
            events.RankStarted(rank=rank, local_rank=rank, pid=100 + rank, device="xla:0", at=10.0)
        )


def samples(run, rank, **told):
    told = {"at": 20.0, "since": 15.0} | told
    run.record.sample(rank).write_bytes(sample.encode(Sample(**told)))


def reports(run, rank, *rows):
    with run.record.history(rank).open("a") as file:
        for number, figures in rows:
            file.write(json.dumps([number, 0.0, None, figures]) + "\n")


def card(eyes, rank):
    eyes.sample()
    return eyes.snapshot().cards[rank]


# ---------------------------------------------------------------- cards


def test_a_rank_that_has_not_joined_is_starting(eyes):
    assert [one.phase for one in eyes.snapshot().cards] == ["starting", "starting"]


def test_a_running_rank_does_what_its_sample_says(run, eyes):
    started(run, 0, 1)
    samples(run, 0, activity="compiling", place="Cell In[3], line 7", rss=5, steps=2, compiles=1)
    seen = card(eyes, 0)
    assert (seen.phase, seen.since, seen.place) == ("compiling", 15.0, "Cell In[3], line 7")
    assert (seen.rss, seen.steps, seen.compiles, seen.pid) == (5, 2, 1, 100)
    assert card(eyes, 1).phase == "running"


def test_a_waiting_rank_says_in_what_and_for_whom(run, eyes):
    started(run, 0)
    samples(run, 0, activity="waiting", operation="all_reduce sum f32[8]", missing=(1, 2, 3))
    assert card(eyes, 0).detail == "in all_reduce sum f32[8], for ranks 1-3"


def test_an_ended_rank_is_what_its_last_event_says_whatever_its_sample(run, eyes):
    started(run, 0)
    samples(run, 0, activity="waiting", operation="all_reduce", steps=9)
    run.state.apply(events.RankFinished(rank=0, preview="0.97", nbytes=1, at=30.0))
    seen = card(eyes, 0)
    assert (seen.phase, seen.since, seen.detail, seen.steps) == (
        "finished",
        30.0,
        "returned 0.97",
        9,
    )


def test_nothing_returned_is_nothing_to_say(run, eyes):
    started(run, 0)
    run.state.apply(events.RankFinished(rank=0, preview="None", nbytes=1))
    assert card(eyes, 0).detail == ""


def test_a_failed_rank_says_why_and_where(run, eyes):
    run.state.apply(failure(0, "boom\nand more"))
    seen = card(eyes, 0)
    assert (seen.phase, seen.detail, seen.place) == (
        "failed",
        "ValueError: boom",
        "Cell In[3], line 9",
    )


def test_a_killed_rank_says_by_what(run, eyes):
    started(run, 0)
    run.state.apply(events.ProcessDied(pid=100, status=-9))
    assert "SIGKILL" in card(eyes, 0).detail


def test_a_rank_whose_host_was_lost_says_so_and_so_does_the_run(run, eyes):
    run.state.apply(events.HostsPlaced(names=("a", "b")))
    for first, host in enumerate("ab"):
        run.state.apply(events.JobStarted(host=host, pid=1, ranks=1, simulated=False, first=first))
    run.state.apply(events.HostLost(host="b", why="its node died"))
    assert card(eyes, 1).detail == "its host b was lost: its node died"
    assert eyes.snapshot().hosts == ("a", "b")
    assert eyes.snapshot().lost == {"b": "its node died"}


def test_the_share_of_a_core_is_between_two_samples(run, eyes):
    started(run, 0)
    samples(run, 0, at=20.0, cpu=1.0)
    assert card(eyes, 0).cpu is None
    samples(run, 0, at=22.0, cpu=4.0)
    assert card(eyes, 0).cpu == 1.5


def test_half_a_sample_leaves_the_one_before(run, eyes):
    started(run, 0)
    samples(run, 0, steps=4)
    eyes.sample()
    run.record.sample(0).write_bytes(b'{"at": 2')
    assert card(eyes, 0).steps == 4


def test_the_last_line_is_the_one_that_stands_open_else_the_last_whole_one(run, eyes):
    run.prints(0, "one\ntwo\n")
    eyes.read(100)
    assert card(eyes, 0).line == "two"
    run.prints(0, "thr")
    eyes.read(100)
    assert card(eyes, 0).line == "thr"


def test_a_card_shows_no_control_characters(run, eyes):
    run.prints(0, "\x1b[31mred\x1b[0m \x00 \u202e\n")
    eyes.read(100)
    assert card(eyes, 0).line == "red ␀ ⟨U+202E⟩"


# ---------------------------------------------------------------- bars

TQDM = [
    (" 45%|████▌     | 45/100 [00:01<00:01, 40.5it/s]", Bar("", 45, 100, 40.5, 1)),
    ("train:  10%|█ | 1.50k/15.0k [01:02<1:00:09, 2.00s/it]", Bar("train", 1500, 15000, 0.5, 3609)),
    ("  0%|          | 0/8 [00:00<?, ?it/s]", Bar("", 0, 8, None, None)),
    ("100%|██████████| 8/8 [00:02<00:00,  3.9img/s, loss=0.3]", Bar("", 8, 8, 3.9, 0)),
]


@pytest.mark.parametrize(("line", "bar"), TQDM)
def test_a_line_of_tqdm_is_a_bar(line, bar):
    assert tqdm(line) == bar


@pytest.mark.parametrize("line", ["", "45%", "100% sure", "a | b | 3/4 [x]", "8it [00:01, 7it/s]"])
def test_other_lines_are_none(line):
    assert tqdm(line) is None


def test_tqdm_itself_writes_such_lines(run, eyes, monkeypatch):
    from tqdm import tqdm as real

    monkeypatch.setattr(real, "monitor_interval", 0)  # or it leaves a thread

    with run.record.log(0, "err").open("w") as file:
        for _ in real(range(7), desc="load", file=file, mininterval=0, leave=False):
            file.flush()
            eyes.read(100)
            assert [bar.label for bar in card(eyes, 0).bars] == ["load"]
    assert card(eyes, 0).line == ""


def test_a_tqdm_bar_is_a_bar_of_its_card_and_no_line(run, eyes):
    run.prints(0, "begun\n")
    run.prints(0, "\r" + TQDM[0][0], "err")
    assert not [one for one in eyes.read(100) if one.stream == "err"]
    seen = card(eyes, 0)
    assert seen.bars == (TQDM[0][1],)
    assert seen.line == "begun"


def test_a_loop_under_progress_is_a_bar_with_the_time_to_go(run, eyes):
    started(run, 0)
    loop = Loop(label="epoch", done=25, total=100, rate=5.0)
    samples(run, 0, loops=(loop,))
    assert card(eyes, 0).bars == (Bar("epoch", 25, 100, 5.0, 15.0),)


@pytest.mark.parametrize(
    ("change", "eta"), [({"total": None}, None), ({"rate": None}, None), ({"done": 100}, 0.0)]
)
def test_time_to_go_is_only_told_where_it_is_known(change, eta):
    loop = Loop(**({"label": "", "done": 25, "total": 100, "rate": 5.0} | change))
    assert observer.bar(loop).eta == eta


def test_the_runs_bar_is_all_ranks_together_and_done_with_the_last():
    bars = [Bar("x", 10, 100, 5.0, 18.0), Bar("x", 30, 100, 10.0, 7.0)]
    assert together(bars) == Bar("x", 40, 200, 15.0, 18.0)
    assert together([bars[0], replace(bars[1], total=None)]).total is None
    assert together([]) is None


# ---------------------------------------------------------------- output


def printed(eyes, budget, focus=None):
    return {(o.rank, o.stream): o.piece.lines for o in eyes.read(budget, focus)}


def test_output_is_given_once_with_its_rank_and_stream(run, eyes):
    run.prints(0, "zero\n")
    run.prints(1, "one\n", "err")
    run.prints(None, "job\n")
    assert printed(eyes, 100) == {(None, "out"): ["job"], (0, "out"): ["zero"], (1, "err"): ["one"]}
    assert printed(eyes, 100) == {}


def test_of_too_much_output_each_rank_gives_its_newest_and_counts_the_rest(run, eyes):
    run.prints(0, "".join(f"{n}\n" for n in range(100)))
    run.prints(1, "one\n")
    found = {one.rank: one.piece for one in eyes.read(8)}
    assert found[0].lines == ["96", "97", "98", "99"]
    assert found[0].skipped == 96
    assert found[1].lines == ["one"]


def test_the_rank_in_focus_gets_half_of_the_lines(run, eyes):
    for rank in (0, 1):
        run.prints(rank, "x\n" * 100)
    found = printed(eyes, 40, focus=1)
    assert (len(found[0, "out"]), len(found[1, "out"])) == (10, 20)


@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_what_was_read_in_pieces_is_the_same_as_at_once(run, eyes, monkeypatch, limit):
    lines = [f"line {n} {'é' * (n % 5)}" for n in range(200)]
    run.prints(0, "\n".join(lines) + "\n")
    monkeypatch.setattr("xla_nb.record.tail._CHUNK", 100)
    (found,) = (one for one in eyes.read(2 * limit) if one.rank == 0)
    kept = lines[-limit:]
    assert found.piece.lines == kept
    assert found.piece.skipped == 200 - len(kept)
    whole = run.record.log(0).read_bytes()
    assert whole[found.piece.start :].decode().splitlines() == kept


# ---------------------------------------------------------------- figures


def test_figures_are_lines_by_rank(run, eyes):
    reports(run, 0, (0, {"loss": 3.0}), (1, {"loss": 2.0, "lr": 0.1}))
    reports(run, 1, (0, {"loss": 4.0}))
    eyes.sample()
    found = {series.name: series.lines for series in eyes.snapshot().series}
    assert found == {"loss": {0: [(0, 3.0), (1, 2.0)], 1: [(0, 4.0)]}, "lr": {0: [(1, 0.1)]}}


def test_a_long_line_is_thinned_out_evenly_and_keeps_its_end():
    line = Line(limit=10)
    for n in range(1001):
        line.add(n, -n)
    points = line.whole()
    assert len(points) <= 11
    assert points[0] == (0, 0)
    assert points[-1] == (1000, -1000)
    assert len({after[0] - before[0] for before, after in pairwise(line.points)}) == 1


def test_a_figure_that_is_no_number_stays_in_its_place(run, eyes):
    reports(run, 0, (0, {"loss": math.nan}))
    eyes.sample()
    ((_, value),) = eyes.snapshot().series[0].lines[0]
    assert math.isnan(value)


# ---------------------------------------------------------------- the whole


def failure(rank, message, line=9):
    return events.RankFailed(
        rank=rank,
        kind="ValueError",
        message=message,
        text=f"Traceback\nValueError: {message}",
        place=f"Cell In[3], line {line}",
        where=f"ValueError\nCell In[3]:{line}",
    )


def test_equal_errors_are_one_trouble_that_names_the_first(tmp_path):
    run = Run(tmp_path, ranks=4)
    for rank in (2, 0, 3):
        run.state.apply(failure(rank, f"on {rank}"))
    (trouble,) = Observer(run).troubles()
    assert trouble.ranks == (2, 0, 3)
    assert trouble.first
    assert trouble.title == "rank 2 failed at Cell In[3], line 9: ValueError: on 2"
    assert len(trouble.others) == 2


def test_what_is_to_be_kept_has_head_and_tail_of_what_each_rank_printed(run, eyes):
    run.prints(1, "".join(f"{n}\n" for n in range(1000)))
    (found,) = eyes.still().excerpts
    assert (found.rank, found.stream, found.head[0], found.tail[-1]) == (1, "out", "0", "999")
    assert len(found.head) + found.left_out + len(found.tail) == 1000


def test_a_glance_of_a_recorded_run_needs_no_earlier_look(run):
    started(run, 0, 1)
    samples(run, 0, steps=3)
    reports(run, 0, (0, {"loss": 3.0}))
    run.prints(0, "last words")
    seen = observer.observe(run)
    assert seen.cards[0].steps == 3
    assert seen.cards[0].line == "last words"
    assert seen.series[0].name == "loss"
    assert seen.excerpts[0].head == ("last words",)
