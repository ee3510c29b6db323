"""Cells of live ranks become programs with everything that the ranks lack."""

import pytest

from tests.support.live_ranks import opened_live
from xla_nb.errors import ShippingError

notebook = pytest.fixture(opened_live)


def test_notebook_functions_find_names_of_ranks_and_shared_names_are_listed(notebook):
    notebook.run("lr = 1\ndef step(): return lr, x\ndef train(): return step()")
    notebook.cell("lr = x = 5")
    assert notebook.cell("train()") == (5, 5)
    assert set(notebook.program("train()").both) == {"lr"}
    assert not notebook.program("1").both


def test_value_that_became_unsendable_fails_only_cells_that_need_it(notebook):
    notebook.run("held = [1]\ndef reads(): return held")
    notebook.cell("reads()")
    notebook.run("held.append((n for n in ()))")
    for needs in ("held", "reads()"):
        with pytest.raises(ShippingError, match="`held"):
            notebook.cell(needs)
    assert notebook.cell("1") == 1
    assert any("removed `held` from the ranks" in note for note in notebook.notes)
    with pytest.raises(NameError):
        notebook.rank0.run("held")
    notebook.cell("1")
    assert notebook.notes == ()
    notebook.run("held = [2]")
    assert notebook.cell("reads()") == [2]


def test_missing_name_is_noted_only_in_cells_that_need_it(notebook):
    notebook.run("def reads(ask): return absent if ask else 0")
    notebook.cell("reads(False)")
    assert any("`absent` is not defined" in note for note in notebook.notes)
    notebook.cell("1")
    assert notebook.notes == ()


def test_cell_function_finds_names_that_the_notebook_defines_later(notebook):
    notebook.cell("def asks(): return later()")
    notebook.run("def later(): return inner\ninner = 1")
    assert notebook.cell("asks()") == 1
    notebook.run("del later")
    with pytest.raises(NameError):
        notebook.cell("asks()")
    notebook.run("later = lambda: 2")
    assert notebook.cell("asks()") == 2
    notebook.run("del inner")  # the ranks had it
    with pytest.raises(NameError):
        notebook.cell("inner")


def test_future_imports_apply_and_a_cell_of_comments_runs(notebook):
    notebook.run("from __future__ import annotations")
    assert notebook.cell("def f(x: Gone): ...\nf.__annotations__") == {"x": "Gone"}
    assert notebook.cell("# nothing") is None
