"""Several runs over one another."""

import json
import re

import pytest

import xla_nb
from xla_nb import api
from xla_nb.errors import UsageError
from xla_nb.messages import events
from xla_nb.record.files import Record
from xla_nb.run.recorded import RecordedRun
from xla_nb.views.rendering.compared import Comparison


def recorded(number, **figures):
    """A finished run of two ranks; rank 1's values are one more than rank 0's."""
    made = Record.create(f"20260101-00000{number}-abcdef")
    made.add(events.JobStarted(pid=1, host="h", ranks=2, simulated=True, at=1000.0))
    for rank in (0, 1):
        made.add(events.RankStarted(rank=rank, local_rank=rank, pid=9, device="xla:0", at=1001.0))
        rows = [
            [step, 1000.0, None, {name: value + rank for name, value in figures.items()}]
            for step in range(4)
        ]
        made.history(rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
        made.add(events.RankFinished(rank=rank, preview="1", nbytes=1, at=1005.0))
    made.add(events.JobEnded(status=0, at=1006.0))
    made.close(
        {
            "cell": f"Cell In[{number}]",
            "outcome": "finished",
            "headline": "2 ranks finished",
            "elapsed": 5.0,
        }
    )
    return made


def opened(record):
    return RecordedRun.open(record, {}.__getitem__)


@pytest.fixture
def two():
    runs = {
        "small": opened(recorded(1, loss=0.5)),
        "<large>": opened(recorded(2, loss=0.25, lr=3.0)),
    }
    return Comparison(runs)


def test_each_figure_is_a_chart_with_every_run_that_reported_it(two):
    assert two.figures == ["loss", "lr"]
    html = two._repr_html_()
    alts = re.findall(r'alt="([^"]*)"', html)
    assert len(alts) == 2
    assert "small 1 (0.5 to 1.5) at step 3; &lt;large&gt; 0.75 (0.25 to 1.25) at step 3" in alts[0]
    assert "small" not in alts[1]


def test_the_text_has_the_outcome_of_each_run_and_its_last_values(two):
    text = repr(two)
    assert text.startswith("Comparison of 2 runs\n  small: 2 ranks finished in 5.0 s · Cell In[1]")
    assert "loss, last of the mean (lowest to highest rank):\n  small: 1 (0.5 to 1.5)" in text
    assert "  <large>: 3.5 (3 to 4) at step 3" in text
    assert two._repr_mimebundle_(include=None, exclude=None)["text/plain"] == text


def test_a_run_that_diverged_says_so():
    diverged = recorded(3, loss=0.5)
    for rank in (0, 1):
        with diverged.history(rank).open("a") as file:
            file.write(json.dumps([4, 1000.0, None, {"loss": float("nan")}]) + "\n")
    text = repr(Comparison({"bad": opened(diverged)}))
    told = "bad: NaN or infinite in 2 of 2 ranks; last number 1 (0.5 to 1.5) at step 3"
    assert told in text
    assert "NaN or infinite in 2 of 2 ranks" in Comparison({"bad": opened(diverged)})._repr_html_()


def test_a_last_value_that_not_all_ranks_have_says_in_how_many():
    made = recorded(1, loss=0.5)
    with made.history(1).open("a") as file:
        file.write(json.dumps([4, 1000.0, None, {"loss": 0.25}]) + "\n")
    assert "  longer: 0.25 at step 4 in 1 of 2 ranks" in repr(Comparison({"longer": opened(made)}))


def test_a_figure_without_any_number_is_told_too():
    one = Comparison({"bad": opened(recorded(4, loss=float("inf")))})
    assert "loss, last of the mean (lowest to highest rank):\n  bad: NaN or infinite in 2" in repr(
        one
    )
    assert re.search(r"loss</bdi></b>.*NaN or infinite in 2 of 2 ranks", one._repr_html_())


def test_names_are_shown_as_text(two):
    assert "&lt;large&gt;" in two._repr_html_()
    assert "<large>" not in two._repr_html_()


def test_runs_without_figures_are_listed_and_said_to_have_none():
    none = Comparison({"a": opened(recorded(1))})
    for shown in (repr(none), none._repr_html_()):
        assert "None of them has reported a figure" in shown


# ---------------------------------------------------------------- how runs are named


def test_a_run_is_called_by_its_keyword_by_its_cell_or_by_its_name():
    first, second = recorded(1, loss=1.0), recorded(2, loss=2.0)
    assert api.compare(opened(first), named=second.path.name).names == ["Cell In[1]", "named"]
    first.close(
        {
            "cell": "Cell In[2]",
            "outcome": "finished",
            "headline": "2 ranks finished",
            "elapsed": 5.0,
        }
    )
    assert api.compare(first.path, second.path).names == [first.path.name, second.path.name]


def test_a_run_is_called_by_the_variable_that_holds_it(notebook):
    cell = "%%xla_spawn -n 1 -o first --view none\nimport xla_nb\ndef f(rank): xla_nb.report(a=1)"
    notebook.ok(cell)
    got = notebook.ok(
        "import xla_nb; second = xla_nb.open_run(first.name)\nxla_nb.compare(first, second)"
    ).data
    assert "  first: 1 rank finished" in got["text/plain"]
    assert "  second: 1 rank finished" in got["text/plain"]
    assert "<img" in got["text/html"]


@pytest.mark.parametrize("wrong", [3, None, ["a"]])
def test_what_is_no_run_is_refused(wrong):
    with pytest.raises(UsageError, match="compare needs runs or their names, not"):
        xla_nb.compare(wrong)


def test_no_runs_are_refused():
    with pytest.raises(UsageError, match=r"xla_nb\.compare\(run1, run2\)"):
        xla_nb.compare()
