"""The notebooks of the repository, executed as by `make demo`; their own asserts must hold."""

from pathlib import Path

import nbformat
import pytest

from notebooks import run_demo
from notebooks.run_demo import execute

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
#: Epochs and learning rate of the quickstart, and a shorter variant that reaches its accuracy.
LONG, SHORT = '--args "(16, 0.004)"', '--args "(6, 0.01)"'


def test_the_quickstart_trains_one_model_on_four_ranks(monkeypatch, tmp_path, capsys):
    notebook = nbformat.read(run_demo.NOTEBOOK, as_version=4)
    (cell,) = (cell for cell in notebook.cells if LONG in cell.source)
    cell.source = cell.source.replace(LONG, SHORT)
    nbformat.write(notebook, tmp_path / "shorter.ipynb")
    monkeypatch.setattr(run_demo, "NOTEBOOK", tmp_path / "shorter.ipynb")
    monkeypatch.setattr(run_demo, "EXECUTED", tmp_path / "out" / "executed.ipynb")
    ended = run_demo.main()
    told = capsys.readouterr().out
    assert ended == 0, told
    rows = [line.split(maxsplit=2) for line in told.splitlines() if "'accuracy'" in line]
    assert [row[:2] for row in rows] == [[str(rank), "xla:0"] for rank in range(4)]
    assert "'accuracy'" in run_demo.EXECUTED.read_text()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """The executed notebook of live ranks."""
    notebook = nbformat.read(NOTEBOOKS / "live-ranks.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert execute(notebook, tmp_path_factory.mktemp("live")) == ""
    return notebook


def shown(notebook, source):
    """The output text of each code cell that contains these words."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return ["".join(map(as_text, cell.outputs)) for cell in cells]


def as_text(output):
    said = output.get("text") or output.get("evalue") or output.get("data", {}).get("text/plain")
    return said or ""


@pytest.mark.slow
def test_live_ranks_compile_only_for_the_first_cell_and_an_edited_function(live):
    cells = [cell for cell in live.cells if "losses = train(" in cell.source]
    first, second, third = (str([out.get("data") for out in cell.outputs]) for cell in cells)
    assert "compiles" in first
    assert "compiles" not in second
    assert "compiles" in third


@pytest.mark.slow
def test_live_ranks_are_reported_to_differ_below_the_cell_with_the_wrong_seed(live):
    (mistake,) = [cell for cell in live.cells if "# the mistake" in cell.source]
    drift = f"`model` has differed between ranks since Cell In[{mistake.execution_count}]: rank 2 ("
    assert [drift in text for text in shown(live, "# the mistake")] == [True]
    assert sum("has differed between ranks" in text for text in shown(live, "%%xla")) == 1
    assert "rank 2 differs" in shown(live, "%xla_vars model x y")[0]
    assert "equal" in shown(live, "%xla_vars model")[-1]


@pytest.mark.slow
def test_the_only_failing_cell_of_live_ranks_is_followed_by_one_that_works(live):
    cells = shown(live, "%%xla")
    (failed,) = [number for number, text in enumerate(cells) if text.startswith("✗")]
    assert "Rank 1 failed" in cells[failed]
    assert "4 ranks finished" in cells[failed + 1]


@pytest.mark.slow
def test_the_display_below_xla_start_shows_that_the_ranks_have_ended(live):
    assert "4 live ranks ended by %xla_shutdown" in shown(live, "%xla_start")[0]


@pytest.mark.slow
def test_the_stored_notebook_of_live_ranks_has_the_same_kinds_of_outputs(live):
    stored = nbformat.read(NOTEBOOKS / "live-ranks.ipynb", as_version=4)
    assert kinds(stored) == kinds(live)


def kinds(notebook):
    """The types of outputs of each code cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.source, {output.output_type for output in cell.outputs}) for cell in cells]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dtensor", "torchax"])
def test_a_notebook_of_the_guide_runs_without_errors_and_shows_a_picture(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert execute(notebook, tmp_path) == ""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
