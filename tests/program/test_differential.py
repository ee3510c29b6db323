"""Generated notebooks: a call returns the same on a rank as in the notebook, or is refused by name.

The last cell of a notebook defines `f`, which calls and compares everything; `f(0)` on a rank is
compared with `f(0)` in the notebook. XLA_NB_NOTEBOOKS sets the number of notebooks (default 100;
10,000 were run once, docs/reliability.md).
"""

from __future__ import annotations

import linecache
import os
import sys

import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings

from tests.support.generated import notebooks
from tests.support.notebook_double import Notebook

NOTEBOOKS = int(os.environ.get("XLA_NB_NOTEBOOKS") or 100)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(
    max_examples=NOTEBOOKS,
    deadline=None,
    database=None,
    derandomize=NOTEBOOKS == 500,
    phases=[Phase.generate],  # shrinking takes minutes, and the cells are short
    suppress_health_check=list(HealthCheck),
)
@given(notebooks())
def test_rank_returns_the_same_result_as_the_notebook(cells: list[str]) -> None:
    before = set(linecache.cache)
    with pytest.MonkeyPatch.context() as patch:
        notebook = Notebook(patch)
        try:
            for cell in cells:
                notebook.run(cell)
        except Exception:
            reject()  # cells that fail in the notebook are not launched
        program = notebook.build("def launched(rank): return f(rank)")
        on_a_rank = notebook.rank(program)
        sys.modules["__main__"] = notebook.main
        here = notebook.values["f"](0)
        assert on_a_rank == here
        assert not program.notes
    for name in set(linecache.cache) - before:
        del linecache.cache[name]
