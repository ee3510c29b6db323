"""tqdm bars in ranks are lines of text, whichever tqdm module a program imports."""

import io
import sys

import pytest

from xla_nb.patching import when_imported
from xla_nb.rank import patches

LOOP = """
{imported}
def f(rank):
    for turn in {bar}: pass
    return turn
"""


@pytest.fixture
def notebook_bars(monkeypatch):
    """A copy of tqdm.notebook, patched as on ranks."""
    monkeypatch.delitem(sys.modules, "tqdm.notebook", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    when_imported("tqdm.notebook", patches._draw_as_text)
    import tqdm.notebook

    monkeypatch.setattr(tqdm.notebook.tqdm, "monitor_interval", 0)  # no thread
    return tqdm.notebook


def test_notebook_bars_draw_text(notebook_bars):
    drawn = io.StringIO()
    bar = notebook_bars.tqdm([1, 2], file=drawn, desc="rows")
    assert list(bar) == [1, 2]
    assert "rows: 100%" in drawn.getvalue()


def test_notebook_ranges_draw_text(notebook_bars):
    drawn = io.StringIO()
    for name in ("trange", "tnrange"):
        assert list(getattr(notebook_bars, name)(1, 4, file=drawn)) == [1, 2, 3]
    assert "3/3" in drawn.getvalue()


@pytest.mark.parametrize(
    ("imported", "bar"),
    [
        ("from tqdm.notebook import tqdm", "tqdm(range(3), desc='rows')"),
        ("from tqdm import notebook", "notebook.trange(3, desc='rows')"),
    ],
)
def test_ranks_draw_notebook_bars_to_the_end(notebook, imported, bar):
    notebook.ok("%%xla_spawn -n 1 -o barred" + LOOP.format(imported=imported, bar=bar))
    assert notebook.value("barred.results") == "{0: 2}"
    assert "rows: 100%" in notebook.value("barred.output(0, 'err')")
