"""A figure that becomes NaN or infinite is reported during the run and in the saved output."""

import re

import pytest

TRAINS = """\
%%xla_spawn -n 4 {options} -o {run}
import os, time, xla_nb
nan, inf = float("nan"), float("inf")
def train(rank):
    for step in range(60):
        xla_nb.report({figures})
        {then}
"""
SAID = "loss is NaN on rank 2 from step 30 (last 0.31)"
BECAME = "loss became NaN on rank 2 at step 30 (last 0.31)"
ON_RANK_2 = "loss=nan if rank == 2 and step >= 30 else 0.31"
AMBER = "#9a6700"


def trains(notebook, run, figures, options="--view text", then="pass"):
    cell = TRAINS.format(run=run, figures=figures, options=options, then=then)
    return notebook.run(cell)


def html(notebook, run):
    """The run's saved HTML in the notebook, without image bytes."""
    shown = notebook.ok(run).data
    return re.sub(r"base64,[^\"]*", "", shown["text/html"])


def title(notebook, run):
    return notebook.ok(run).data["text/plain"].splitlines()[0]


@pytest.fixture(scope="module")
def diverged(kernel):
    shown = trains(kernel, "diverged", ON_RANK_2)
    assert shown.status == "ok"
    return shown


def test_cell_names_rank_step_and_last_value(diverged):
    assert diverged.data["text/plain"].startswith("! 4 ranks finished in ")
    assert SAID in diverged.data["text/plain"].splitlines()[0]


def test_saved_title_is_amber_and_the_curve_is_marked(diverged):
    told = diverged.data["text/html"]
    head = told[: told.index(SAID)]
    assert f"background:{AMBER}" in head
    assert "NaN since step 30 (rank 2)" in told[told.index(SAID) :]


def test_reopened_run_reports_nan(diverged, notebook):
    assert SAID in title(notebook, "import xla_nb\nxla_nb.open_run(diverged.name)")


def test_nan_is_reported_while_the_run_is_in_progress(notebook, tmp_path):
    """In the text view, and in the snapshot of a background run."""
    go = tmp_path / "go"
    then = f"while step == 40 and not os.path.exists({str(go)!r}): time.sleep(0.01)"
    try:
        trains(notebook, "going", ON_RANK_2, "--view none --bg", then)
        looks = (
            "import time; end = time.monotonic() + 60\n"
            f"while {SAID!r} not in going._repr_mimebundle_()['text/plain'] and "
            "time.monotonic() < end: time.sleep(0.05)\n"
            "going._ipython_display_()"
        )
        shown = notebook.ok(looks)
        assert shown.data["text/plain"].startswith(f"● {SAID}")
        assert shown.data["application/vnd.xla-nb.run+json"]["outcome"] == "running"
    finally:
        go.touch()
        notebook.ok("going.wait()")

    def heard(shown):
        if SAID in shown.stderr:
            go.touch()

    go.unlink()
    cell = TRAINS.format(run="seen", figures=ON_RANK_2, options="--view text", then=then)
    assert SAID in notebook.run(cell, during=heard).stderr


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            "loss=nan if step >= 30 else 0.31",
            "loss is NaN on all 4 ranks from step 30 (last 0.31)",
        ),
        (
            "loss=nan if step >= 30 + abs(rank - 2) else 0.31",
            "loss is NaN on all 4 ranks, first from step 30 on rank 2 (last 0.31)",
        ),
        (
            "loss=inf if step == 30 else nan if step > 30 else step",
            "loss is inf or NaN on all 4 ranks from step 30 (last 29)",
        ),
        ("loss=-inf", "loss is -inf on all 4 ranks from step 0 (no finite value before)"),
        (
            "acc=nan if step > 20 else 1, loss=nan if step > 10 else 2, step=step",
            "loss is NaN on all 4 ranks from step 11 (last 2); also not finite: acc",
        ),
    ],
)
def test_title_describes_non_finite_figures(notebook, figures, said):
    trains(notebook, "became", figures)
    assert said in title(notebook, "became").replace(" finished in", " finished")


def test_list_of_runs_reports_nan(notebook, diverged):
    listed = notebook.ok("%xla_runs").data
    title = diverged.data["text/plain"].partition(" · ")[0].removeprefix("! ")
    assert SAID in title
    assert f" {title}\n" in f"{listed['text/plain']}\n"
    assert "! finished" in re.sub("<[^>]*>", "", listed["text/html"])


def test_recovered_figure_is_no_warning_but_its_curve_is_marked(notebook):
    trains(notebook, "recovered", "loss=nan if step == 30 and rank == 2 else 0.31")
    assert title(notebook, "recovered").startswith("✓ 4 ranks finished in")
    assert "NaN at step 30 (rank 2)" in html(notebook, "recovered")


def test_frequent_nans_do_not_fill_the_record(notebook):
    trains(notebook, "often", "loss=nan if step % 2 else 1.0")
    size = int(notebook.value("(often.record.path / 'events.jsonl').stat().st_size"))
    assert size < 12_000


@pytest.mark.parametrize("options", ["--stop-on-nan", "--stop-on-nan --view none --bg"])
def test_stop_on_nan_ends_the_run_and_names_the_reason(notebook, options):
    shown = trains(notebook, "stops", ON_RANK_2, options, then="time.sleep(0.02 * (step > 20))")
    if "--bg" in options:
        shown = notebook.run("stops.wait()")
    assert shown.ename == "RunFailed"
    assert f"Stopped by --stop-on-nan; {BECAME}" in shown.error
    assert title(notebook, "stops").count(BECAME) == 1
    assert int(notebook.value("len(stops.history['loss'][0])")) < 60


def test_recovered_figure_stays_the_reason_of_the_stop(notebook):
    figures = "loss=nan if step == 30 else 0.31"
    shown = trains(
        notebook, "back", figures, "--stop-on-nan", then="time.sleep(0.02 * (step > 20))"
    )
    assert "Stopped by --stop-on-nan; loss became NaN on" in shown.error
    assert "Stopped by --stop-on-nan; loss became NaN on" in title(notebook, "back")


def test_stop_on_nan_names_ranks_that_follow_after_the_stop(notebook, tmp_path):
    """Rank 0 reports NaN once all ranks are ready, the others when they are interrupted."""
    shown = notebook.run(
        "%%xla_spawn -n 4 -o later --stop-on-nan --view text\nimport os, time, xla_nb\n"
        "def train(rank):\n    for step in range(30): xla_nb.report(loss=0.31)\n"
        f"    try:\n        open({str(tmp_path)!r} + f'/{{rank}}', 'w')\n"
        f"        while rank or len(os.listdir({str(tmp_path)!r})) < 4: time.sleep(0.01)\n"
        "    finally: xla_nb.report(loss=float('nan'))\n    time.sleep(60)"
    )
    said = "Stopped by --stop-on-nan; loss became NaN on all 4 ranks at step 30 (last 0.31)"
    assert said in shown.error
    assert said in title(notebook, "later")
    assert said in title(notebook, "xla_nb.open_run(later.name)")


def test_text_view_names_all_ranks_and_reports_recovery(notebook, tmp_path):
    folder = str(tmp_path)
    waits = (
        f"while step >= 30 and str(min(step, 31)) not in os.listdir({folder!r}): time.sleep(0.01)"
    )

    def heard(shown):
        if "loss is NaN on all 4 ranks from step 30 (last 0.31)" in shown.stderr:
            (tmp_path / "30").touch()
        if "All reported figures are finite again." in shown.stderr:
            (tmp_path / "31").touch()

    figures = "loss=nan if step == 30 else 0.31"
    cell = TRAINS.format(
        run="again", figures=figures, options="--view text --timeout 40", then=waits
    )
    shown = notebook.run(cell, during=heard)
    assert shown.status == "ok", shown.stderr
    assert shown.stderr.count("finite again") == 1


def test_stop_on_nan_works_for_every_launch_and_as_a_setting(notebook):
    diverges = (
        "def diverges(rank):\n    import time, xla_nb\n    xla_nb.report(loss=float('nan'))\n"
    )
    notebook.ok(f"{diverges}    time.sleep(30)")
    spawned = notebook.run("xla_nb.spawn(diverges, n=2, stop_on_nan=True)")
    assert "Stopped by --stop-on-nan; loss became NaN on" in spawned.error
    notebook.ok("%xla_config stop_on_nan=on")
    try:
        assert "stop_on_nan" in notebook.ok("%xla_config").stdout
        live = notebook.run("%%xla\nimport time, xla_nb\nxla_nb.report(loss=1e999)\ntime.sleep(30)")
        assert "Stopped by --stop-on-nan; loss became inf on" in live.error
        assert notebook.run("%%xla\n1").status == "ok"
    finally:
        notebook.ok("%xla_config stop_on_nan=off")
        notebook.ok("%xla_shutdown")
