"""Recorded runs: the display of one, and the table of all."""

import json
import re
import shutil

import pytest

from xla_nb.messages import events
from xla_nb.record.files import Record
from xla_nb.run.recorded import Entry
from xla_nb.views import observer, picture
from xla_nb.views.picture import OpenedRun, runs

NAME = "20260101-000000-abcdef"


@pytest.fixture
def recorded():
    """The record of a run in progress with two ranks; rank 0 has printed and reported."""
    made = Record.create(NAME)
    made.add(events.JobStarted(host="h", ranks=2, simulated=True, at=1000.0))
    for rank in (0, 1):
        made.add(events.RankStarted(rank=rank, pid=9, device="xla:0", at=1001.0))
    made.log(0).write_text("epoch 1\nepoch <2>\n")
    rows = [[step, 1000.0, None, {"loss": 1 / (1 + step)}] for step in range(4)]
    made.history(0).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def shown(record):
    """The HTML and text that a notebook displays for a recorded run."""
    bundle = OpenedRun.open(record)._repr_mimebundle_(include=None, exclude=None)
    assert bundle.keys() >= {"text/html", "text/plain"}
    return bundle["text/html"], bundle["text/plain"]


def finish(record):
    for rank in (0, 1):
        record.add(events.RankFinished(rank=rank, preview=f"'r{rank}'", nbytes=1, at=1005.0))
    record.add(events.JobEnded(status=0, at=1006.0))
    record.close(
        {
            "cell": "Cell In[3]",
            "outcome": "finished",
            "headline": "2 ranks finished",
            "elapsed": 5.0,
        }
    )


# ---------------------------------------------------------------- one run


def test_run_with_removed_files_is_reported(recorded):
    finish(recorded)
    run = OpenedRun.open(recorded)
    shutil.rmtree(recorded.path)
    bundle = picture.bundle(observer.observe(run))
    assert all("The files of this run were removed" in text for text in bundle.values())


@pytest.mark.parametrize(
    "text", ["Cell In[3]", "2 ranks finished", "epoch 1", "loss", " 5 s", NAME]
)
def test_ended_run_is_shown_as_html_and_text(recorded, text):
    finish(recorded)
    html, plain = shown(recorded)
    assert text in html
    assert text in plain


def test_each_rank_is_shown_with_its_result(recorded):
    finish(recorded)
    _, text = shown(recorded)
    assert "'r0'" in text
    assert "'r1'" in text


def test_output_is_escaped_in_html(recorded):
    finish(recorded)
    html, text = shown(recorded)
    assert "epoch &lt;2&gt;" in html
    assert "epoch <2>" in text


def test_run_in_progress_elsewhere_is_shown_as_running(recorded):
    html, text = shown(recorded)
    assert "running" in text.splitlines()[0]
    assert "running" in html


def test_run_with_dead_kernel_shows_ranks_as_ended(recorded):
    (recorded.path / "owner").write_text("1 0")
    _, text = shown(recorded)
    assert text.startswith("✗")
    assert "Ranks 0, 1 were lost: the notebook's kernel ended before the run did" in text


def test_record_without_output_can_be_shown(recorded):
    finish(recorded)
    recorded.log(0).unlink()
    recorded.history(0).unlink()
    _, text = shown(recorded)
    assert "2 ranks finished" in text
    assert "epoch" not in text


def test_notebook_displays_an_opened_run(notebook):
    notebook.ok("%%xla_spawn -n 1 -o to_open --view none\ndef opened_later(rank): print('a line')")
    got = notebook.ok("__import__('xla_nb').open_run(to_open.name)").data
    assert "a line" in got["text/html"]
    assert "1 rank finished" in got["text/plain"]


# ---------------------------------------------------------------- all runs


def listed(entries):
    return runs(entries)["text/plain"]


def test_empty_table_reports_no_runs():
    assert listed([]) == "No recorded runs."


def test_each_run_is_a_line_in_aligned_columns():
    rows = [
        Entry("r3", "Cell In[3]", "running", "", None),
        Entry("r20", "Cell In[12]", "finished", "4 ranks finished", 12.34, "", {"loss": 0.1234567}),
        Entry("r2", "train", "failed", "boom", 0.25, called="(0.1, 'adam', Net)"),
        Entry("r1", "", "failed", "rank 2 failed: boom", 0.5),
    ]
    assert listed(rows).splitlines() == [
        "run  outcome   time    cell                     figures of rank 0  result",
        "r3   running           Cell In[3]",
        "r20  finished  12.3 s  Cell In[12]              loss 0.1235        4 ranks finished",
        "r2   failed    250 ms  train(0.1, 'adam', Net)                     boom",
        "r1   failed    500 ms                                              rank 2 failed: boom",
    ]


def test_html_table_shows_full_outcomes():
    rows = [
        Entry("r3", "Cell In[3]", "running", "", None),
        Entry("r1", "", "failed", "x" * 200, 0.5),
    ]
    shown = runs(rows)["text/html"]
    assert shown.count("<tr") == 3
    assert "● running" in re.sub(r"<[^>]*>", "", shown)
    assert "x" * 200 in shown


@pytest.mark.parametrize("headline", ["x" * 500, "one\n\ntwo\n" * 100])
def test_long_headline_is_truncated_to_one_line(headline):
    _, row = listed([Entry("r", "", "failed", headline, None)]).splitlines()
    assert row.endswith("…")
    assert len(row) <= 125


def test_headline_of_80_characters_is_not_truncated():
    assert listed([Entry("r", "", "failed", "x" * 80, None)]).endswith("x" * 80)
