"""The notebooks that ship, executed as `make demo` does it: their own asserts hold."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from notebooks.run_demo import execute

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def test_the_quickstart_trains_one_model_on_four_ranks():
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "run_demo.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines() if "'accuracy'" in line]
    assert [row[:2] for row in rows] == [[str(rank), "xla:0"] for rank in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dtensor", "torchax"])
def test_a_notebook_of_the_guide_holds_what_it_claims(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert execute(notebook, tmp_path) == ""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
