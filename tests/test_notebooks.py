"""The notebooks that ship, executed as `make demo` does it: their own asserts hold."""

from pathlib import Path

import nbformat
import pytest

from notebooks import run_demo
from notebooks.run_demo import execute

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
#: The quickstart's epochs and its rate, and enough of them for the accuracy that it asserts.
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
    """The notebook of live ranks, executed."""
    notebook = nbformat.read(NOTEBOOKS / "live-ranks.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert execute(notebook, tmp_path_factory.mktemp("live")) == ""
    return notebook


def shown(notebook, source):
    """The texts that cells with these words have for output, one for each cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return ["".join(map(as_text, cell.outputs)) for cell in cells]


def as_text(output):
    said = output.get("text") or output.get("evalue") or output.get("data", {}).get("text/plain")
    return said or ""


@pytest.mark.slow
def test_live_ranks_compile_for_the_first_training_cell_and_for_an_edited_function(live):
    cells = [cell for cell in live.cells if "losses = train(" in cell.source]
    first, second, third = (str([out.get("data") for out in cell.outputs]) for cell in cells)
    assert "compiles" in first
    assert "compiles" not in second
    assert "compiles" in third


@pytest.mark.slow
def test_live_ranks_are_said_to_differ_below_the_cell_that_gave_one_another_seed(live):
    (mistake,) = [cell for cell in live.cells if "# the mistake" in cell.source]
    drift = f"`model` has differed between ranks since Cell In[{mistake.execution_count}]: rank 2 ("
    assert [drift in text for text in shown(live, "# the mistake")] == [True]
    assert sum("has differed between ranks" in text for text in shown(live, "%%xla")) == 1
    assert "rank 2 differs" in shown(live, "%xla_vars model x y")[0]
    assert "equal" in shown(live, "%xla_vars model")[-1]


@pytest.mark.slow
def test_the_one_cell_of_live_ranks_that_fails_is_followed_by_one_that_works(live):
    cells = shown(live, "%%xla")
    (failed,) = [number for number, text in enumerate(cells) if text.startswith("✗")]
    assert "Rank 1 failed" in cells[failed]
    assert "4 ranks finished" in cells[failed + 1]


@pytest.mark.slow
def test_live_ranks_show_below_their_start_what_they_ran(live):
    assert "4 live ranks ended by %xla_shutdown" in shown(live, "%xla_start")[0]


@pytest.mark.slow
def test_the_notebook_of_live_ranks_is_stored_with_what_its_cells_show(live):
    stored = nbformat.read(NOTEBOOKS / "live-ranks.ipynb", as_version=4)
    assert kinds(stored) == kinds(live)


def kinds(notebook):
    """What kinds of outputs each cell of code has."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.source, {output.output_type for output in cell.outputs}) for cell in cells]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dtensor", "torchax"])
def test_a_notebook_of_the_guide_holds_what_it_claims(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert execute(notebook, tmp_path) == ""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
