"""Cells of live ranks become programs that hold what the ranks lack."""

import pytest

from tests.support.live_ranks import opened_live
from xla_nb.errors import ShippingError

notebook = pytest.fixture(opened_live)


def test_a_name_of_the_ranks_is_not_missing_in_functions_of_the_notebook_or_is_of_both(notebook):
    notebook.run("lr = 1\ndef step(): return lr, x\ndef train(): return step()")
    notebook.cell("lr = x = 5")
    assert notebook.cell("train()") == (5, 5)
    assert set(notebook.program("train()").both) == {"lr"}
    assert not notebook.program("1").both


def test_a_value_that_cannot_be_sent_any_more_refuses_only_cells_that_need_it(notebook):
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


def test_a_name_that_a_function_does_not_find_is_told_in_cells_that_need_it(notebook):
    notebook.run("def reads(ask): return absent if ask else 0")
    notebook.cell("reads(False)")
    assert any("name 'absent' is not defined" in note for note in notebook.notes)
    notebook.cell("1")
    assert notebook.notes == ()


def test_a_name_that_the_notebook_gets_after_a_cells_function_is_found_by_it(notebook):
    notebook.cell("def asks(): return later()")
    notebook.run("def later(): return inner\ninner = 1")
    assert notebook.cell("asks()") == 1
    notebook.run("del later")
    with pytest.raises(NameError):
        notebook.cell("asks()")
    notebook.run("later = lambda: 2")
    assert notebook.cell("asks()") == 2
    notebook.run("del inner")  # which ranks had
    with pytest.raises(NameError):
        notebook.cell("inner")


def test_future_imports_are_in_force_and_a_cell_of_comments_runs(notebook):
    notebook.run("from __future__ import annotations")
    assert notebook.cell("def f(x: Gone): ...\nf.__annotations__") == {"x": "Gone"}
    assert notebook.cell("# nothing") is None
