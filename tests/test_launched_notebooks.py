"""Generated notebooks with a launched cell: what it binds is what it would be were it executed.

Left out are cells that change what earlier cells have made: that is so on the ranks alone, as
docs/guide/what-travels.md says. XLA_NB_LAUNCHED sets how many notebooks (60).
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.support.generated import notebooks, probe
from tests.support.notebook_double import Notebook
from tests.support.shell import Shell
from xla_nb.program.bindings import bindings

NOTEBOOKS = int(os.environ.get("XLA_NB_LAUNCHED") or 60)


def value_of(cells, patch):
    """What `f(0)` gives where all cells are executed; None where one raises."""
    notebook = Notebook(patch)
    try:
        for cell in cells:
            notebook.run(cell)
        return notebook.values["f"](0)
    except Exception:
        return None


def changes_others(cells, number, patch):
    """Whether a cell changes what the cells before it have made."""
    bound = bindings(ast.parse(cells[number]).body)
    text = probe(cells[:number], without=bound)
    before = value_of([*cells[:number], text], patch)
    return before is None or value_of([*cells[: number + 1], text], patch) != before


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
        assume(not changes_others(cells, number, patch))
        patch.setenv("IPYTHONDIR", folder)
        main = sys.modules["__main__"]
        shell = Shell(Path(folder))
        try:
            for at, cell in enumerate(cells):
                if at == number:
                    shell.launch(f"{cell}\ndef launched(rank): pass")
                else:
                    shell.run(cell)
            found = shell.run("f(0)")
        finally:
            shell.shell.restore_sys_module_state()
            sys.modules["__main__"] = main
    assert found == expected
    for name in set(linecache.cache) - before:
        del linecache.cache[name]
