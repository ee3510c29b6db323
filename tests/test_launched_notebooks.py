"""Generated notebooks with a launched cell: what it binds is what it would be were it executed.

It may differ only where a notice has named what the cell changes of the notebook's: that is so on
the ranks alone. XLA_NB_LAUNCHED sets how many notebooks (40).
"""

from __future__ import annotations

import linecache
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.support.generated import notebooks
from tests.support.notebook_double import Notebook
from tests.support.shell import Shell

NOTEBOOKS = int(os.environ.get("XLA_NB_LAUNCHED") or 40)


def value_of(cells, patch):
    """What `f(0)` gives where all cells are executed; None where one raises."""
    notebook = Notebook(patch)
    try:
        for cell in cells:
            notebook.run(cell)
        return notebook.values["f"](0)
    except Exception:
        return None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(
    max_examples=NOTEBOOKS,
    deadline=None,
    database=None,
    derandomize=NOTEBOOKS == 60,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(notebooks(), st.integers(1, 5))
def test_a_launched_cell_leaves_what_an_executed_one_does(cells, number):
    number = min(number, len(cells) - 2)
    before = set(linecache.cache)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        expected = value_of(cells, patch)
        assume(expected is not None)
        patch.setenv("IPYTHONDIR", folder)
        main = sys.modules["__main__"]
        shell = Shell(Path(folder))
        try:
            for at, cell in enumerate(cells):
                if at == number:
                    shell.launch(f"{cell}\ndef launched(rank): pass")
                else:
                    shell.run(cell)
            try:
                found = shell.run("f(0)")
            except Exception as problem:
                found = problem
        finally:
            shell.shell.restore_sys_module_state()
            sys.modules["__main__"] = main
    assert found == expected or shell.runs[0].changes
    for name in set(linecache.cache) - before:
        del linecache.cache[name]
