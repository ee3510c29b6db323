"""Snapshots of live ranks: idle ranks and cells."""

import json
import shutil
import time

import pytest

from tests.support.run_double import Run
from xla_nb.messages import events
from xla_nb.record import sample
from xla_nb.record.sample import Sample
from xla_nb.views import rendering
from xla_nb.views.observer import CELLS, Observer


class Group(Run):
    """Two live ranks, with records at `path`."""

    def __init__(self, path):
        (path / "group").mkdir()
        super().__init__(path / "group")
        self.tell(events.GroupBegan(name="ranks", idle=1800.0))
        for rank in (0, 1):
            started = events.RankStarted(rank=rank, pid=100 + rank, device="xla:0")
            self.tell(started, at=5.0)

    def tell(self, event, at=None):
        self.state.apply(event if at is None else type(event)(**{**vars(event), "at": at}))

    def begins(self, number, *ranks, at=10.0):
        label, name = f"Cell In[{number}]", f"run-{number}"
        self.record.cell(name).path.mkdir(parents=True, exist_ok=True)
        chosen = ranks or (0, 1)
        self.tell(events.ProgramBegan(number=number, run=name, label=label, ranks=chosen), at=at)

    def ends(self, number, outcome="finished", headline="2 ranks finished", at=12.0):
        ended = events.ProgramEnded(number=number, outcome=outcome, headline=headline)
        self.tell(ended, at=at)

    def samples(self, rank, **figures):
        figures = {"at": 11.0, "since": 10.5} | figures
        self.record.sample(rank).write_bytes(sample.encode(Sample(**figures)))

    def reports(self, number, rank, *steps):
        with self.record.cell(f"run-{number}").history(rank).open("a") as file:
            for row, step in enumerate(steps):
                file.write(json.dumps([row, 0.0, step, {"loss": float(number)}]) + "\n")


@pytest.fixture
def group(tmp_path):
    return Group(tmp_path)


@pytest.fixture
def observer(group):
    return Observer(group)


def cards(observer):
    observer.sample()
    return observer.snapshot().cards


# ---------------------------------------------------------------- idle or busy


def test_ranks_without_a_cell_are_idle_since_their_start(observer):
    assert [(card.phase, card.since) for card in cards(observer)] == [("idle", 5.0)] * 2


def test_rank_is_idle_since_its_last_cell_ended(group, observer):
    group.begins(1, 0)
    group.ends(1)
    assert [(card.phase, card.since) for card in cards(observer)] == [("idle", 12.0), ("idle", 5.0)]


def test_rank_that_finished_before_its_cell_ended_is_idle_since_then(group, observer):
    group.begins(1)
    group.ends(1)
    group.samples(0, at=13.0, since=10.7, activity="idle")
    group.samples(1, at=9.0, since=2.0, activity="idle")  # from before the cell
    assert [card.since for card in cards(observer)] == [10.7, 12.0]


def test_idle_rank_has_no_line_and_no_wait(group, observer):
    group.samples(0, activity="waiting", place="Cell In[1], line 2", operation="x", missing=(1,))
    first = cards(observer)[0]
    assert (first.phase, first.place, first.detail) == ("idle", "", "")


def test_rank_that_died_while_idle_has_no_step_time(group, observer):
    group.begins(1, 1)
    for done in range(1, 7):
        group.samples(1, at=10.0 + done, steps=done)
        observer.sample()
    assert cards(observer)[1].step == pytest.approx(1.0)
    group.ends(1, at=16.2)
    group.samples(1, at=16.3, since=16.2, activity="idle", steps=6)
    assert cards(observer)[1].step is None
    group.tell(events.ProcessDied(pid=101, status=-9))
    assert (cards(observer)[1].phase, cards(observer)[1].step) == ("died", None)


def test_step_time_of_live_ranks_is_measured_from_items(group, observer):
    group.begins(1)
    for done in range(1, 7):
        group.samples(0, at=10.0 + done, items=2 * done)
        observer.sample()
    assert cards(observer)[0].step == pytest.approx(0.5)


def test_rank_with_a_cell_shows_its_sample(group, observer):
    group.begins(1)
    group.samples(0, at=11.5, activity="compiling", place="Cell In[1], line 2")
    first = cards(observer)[0]
    assert (first.phase, first.since, first.place) == ("compiling", 10.5, "Cell In[1], line 2")


def test_sample_from_before_the_cell_is_ignored(group, observer):
    group.samples(0, at=9.0, since=2.0, activity="idle")
    group.begins(1)
    assert (cards(observer)[0].phase, cards(observer)[0].since) == ("running", 10.0)


def test_rank_that_finished_its_part_of_a_cell_is_idle(group, observer):
    group.begins(1)
    group.samples(0, at=11.0, since=10.7, activity="idle")
    assert (cards(observer)[0].phase, cards(observer)[0].since) == ("idle", 10.7)


# ---------------------------------------------------------------- diagnosis


def test_idle_ranks_cause_no_warning(observer):
    found = observer.snapshot().diagnosis
    assert (found.sentence, found.level) == ("2 live ranks, idle", "calm")


def test_diagnosis_of_dead_rank_names_ranks_still_alive(group, observer):
    group.tell(events.ProcessDied(pid=101, status=3))
    found = observer.snapshot().diagnosis
    assert found.sentence.endswith("; rank 0 is alive")
    assert (found.level, found.ranks) == ("bad", (1,))


def test_wait_for_idle_rank_reports_that_it_runs_no_cell(group, observer):
    group.begins(1, 0)
    at = time.time()
    wait = {"activity": "waiting", "operation": "all_reduce", "missing": (1,)}
    group.samples(0, at=at, since=at - 9.0, **wait)
    cards(observer)
    told = "Rank 0 has been waiting 9 s for rank 1, which is not running a cell"
    assert observer.snapshot().diagnosis.sentence == told


# ---------------------------------------------------------------- cells


def test_cells_are_listed_newest_first_with_their_number(group, observer):
    for number in range(1, CELLS + 4):
        group.begins(number)
        group.ends(number)
    group.begins(99, 1)
    live = observer.snapshot().live
    assert (live.count, len(live.cells), live.lost) == (CELLS + 4, CELLS, 0)
    assert [cell.place for cell in live.cells[:2]] == [CELLS + 4, CELLS + 3]
    newest = live.cells[0]
    assert (newest.ended, newest.began.ranks, newest.began.label) == (None, (1,), "Cell In[99]")


def test_long_running_cell_counts_after_many_cells_of_other_ranks(group, observer):
    group.begins(1, 0)
    for number in range(2, CELLS + 4):
        group.begins(number, 1)
        group.ends(number)
    snapshot = observer.snapshot()
    assert not snapshot.live.is_idle
    assert snapshot.diagnosis.sentence == "Cell In[1] is running on rank 0"
    assert f"{CELLS + 3} cells, 1 running" in rendering.render_text(snapshot).splitlines()[0]


def test_time_is_that_of_the_cell_or_of_being_idle(group, observer):
    assert observer.snapshot().live.since == 5.0
    group.begins(1)
    assert observer.snapshot().live.since == 10.0
    group.ends(1)
    assert observer.snapshot().live.since == 12.0


def test_restarted_steps_of_a_cell_continue_those_of_earlier_cells(group, observer):
    group.begins(1)
    group.reports(1, 0, 0, 1, 2)
    group.ends(1)
    group.begins(2)
    group.reports(2, 0, 0, 1)
    group.reports(2, 1, 0, 1)
    observer.sample()
    points = observer.figures["loss"].series("loss").lines[0]
    assert points == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    group.reports(2, 0, 2)
    observer.sample()
    assert observer.figures["loss"].series("loss").lines[0][-1][0] == 5


def test_continued_steps_of_a_cell_are_unchanged(group, observer):
    group.begins(1)
    group.reports(1, 0, 0, 1, 2)
    group.begins(2)
    group.reports(2, 0, 10, 11)
    observer.sample()
    assert [x for x, _ in observer.figures["loss"].series("loss").lines[0]] == [0, 1, 2, 10, 11]


# ---------------------------------------------------------------- saved


def test_saved_text_shows_state_number_of_cells_and_ranks(group, observer):
    group.begins(1)
    group.ends(1, at=11.5)
    group.begins(2, 0)
    group.ends(2, "failed", "Rank 0 failed at Cell In[2], line 1: ValueError: boom")
    text = rendering.render_text(observer.snapshot())
    first, *rest = text.splitlines()
    assert first.startswith("○ 2 live ranks, idle for ")
    assert "2 cells, 1 failed or stopped · ends after 30 min without a cell" in first
    assert "ranks 0, 1: idle" in rest


def test_saved_html_lists_cells_and_folds_all_but_the_newest(group, observer):
    for number in range(1, 40):
        group.begins(number)
        group.ends(number)
    html = rendering.render_html(observer.snapshot())
    assert "2 live ranks, idle" in html
    assert html.index("Cell In[39]") < html.index("33 more cells") < html.index("Cell In[2]<")
    assert html.count("</table>") == 3


def test_omitted_earlier_cells_are_counted(group, observer):
    for number in range(1, CELLS + 8):
        group.begins(number)
        group.ends(number)
    snapshot = observer.snapshot()
    assert "… and 7 earlier cells" in rendering.render_html(snapshot)


def test_ended_ranks_show_why_they_ended(group, observer):
    group.begins(1)
    group.ends(1)
    group.tell(events.GroupEnding(why="by %xla_shutdown"))
    for rank in (0, 1):
        group.tell(events.RankFinished(rank=rank, preview="", nbytes=0))
    group.tell(events.JobEnded(status=0))
    first = rendering.render_text(observer.snapshot()).splitlines()[0]
    assert first.startswith("✓ 2 live ranks ended by %xla_shutdown · alive for 1.25 s · 1 cell · ")


def test_notice_reports_figures_missing_because_files_are_gone(group):
    for number in (1, 2):
        group.begins(number)
        group.reports(number, 0, 1, 2)
        group.ends(number)
    shutil.rmtree(group.record.cell("run-1"))
    late = Observer(group)
    (series,) = late.look().series
    assert [value for _, value in series.lines[0]] == [2.0, 2.0]
    (told,) = late.look().notices
    assert told.startswith("Charts omit the figures of 1 earlier cell,")
