"""Cells of live ranks become programs that hold what the ranks lack."""

from __future__ import annotations

import pytest

from tests.support.live_ranks import LiveNotebook, opened_live
from xla_nb.errors import ShippingError

notebook = pytest.fixture(opened_live)


def test_a_cell_is_run_where_earlier_cells_were(notebook: LiveNotebook) -> None:
    notebook.run("k = 2")
    notebook.cell("x = k")
    assert notebook.cell("x + rank") == 2


def test_what_has_not_changed_is_not_sent_again(notebook: LiveNotebook) -> None:
    notebook.run("def g(): return k\nk = [2]")
    assert notebook.cell("g()") == [2]
    assert notebook.sent == {"g", "k"}
    notebook.cell("k.append(3)")
    assert notebook.sent == set()
    assert notebook.cell("g()") == [2, 3]


def test_a_function_of_a_cell_is_the_ranks(notebook: LiveNotebook) -> None:
    notebook.cell("def g(): return 1")
    notebook.run("def f(): return g()")
    assert notebook.cell("f()") == 1


def test_a_name_of_the_ranks_is_not_missing_in_a_function_of_the_notebook(
    notebook: LiveNotebook,
) -> None:
    notebook.run("def f(): return x")
    notebook.cell("x = 3")
    assert notebook.cell("f()") == 3


def test_a_function_that_reads_the_notebooks_rank_gets_the_ranks_and_is_told(
    notebook: LiveNotebook,
) -> None:
    notebook.run("rank = 7\ndef where(): return rank")
    assert notebook.cell("where()") == 0
    assert (
        "line 2 of `where`: here `rank` is each rank's own" in notebook.program("where()").once[0]
    )
    assert notebook.program("1").once == ()


def test_a_name_that_nobody_has_is_missing(notebook: LiveNotebook) -> None:
    with pytest.raises(NameError):
        notebook.cell("gone")


def test_a_deleted_name_is_missing_although_ranks_had_it(notebook: LiveNotebook) -> None:
    notebook.run("x = [1]")
    notebook.cell("x")
    notebook.run("del x")
    with pytest.raises(NameError):
        notebook.cell("x")


def test_a_function_edited_in_the_notebook_is_the_new_one_inside_another(
    notebook: LiveNotebook,
) -> None:
    notebook.run("def g(): return 1\ndef f(): return g()")
    notebook.cell("mine = f")
    notebook.run("def g(): return 2")
    assert notebook.cell("mine()") == 2


def test_a_value_that_cannot_be_sent_is_named(notebook: LiveNotebook) -> None:
    notebook.run("import threading\nstuck = {'a': [threading.Lock()]}\nstuck['a'][0].acquire()")
    with pytest.raises(ShippingError, match=r"`stuck\[.*"):
        notebook.cell("stuck")


def test_a_value_that_cannot_be_sent_any_more_refuses_only_cells_that_need_it(
    notebook: LiveNotebook,
) -> None:
    notebook.run("held = [1]\ndef reads(): return held")
    notebook.cell("reads()")
    notebook.run("held.append((n for n in ()))")
    for needs in ("held", "reads()"):
        with pytest.raises(ShippingError, match="`held"):
            notebook.cell(needs)
    assert notebook.cell("1") == 1
    assert any("ranks no longer have `held`" in note for note in notebook.notes)
    with pytest.raises(NameError):
        notebook.rank0.run("held")
    notebook.cell("1")
    assert notebook.notes == ()
    notebook.run("held = [2]")
    assert notebook.cell("reads()") == [2]


def test_a_name_that_a_function_does_not_find_is_told_in_cells_that_need_it(
    notebook: LiveNotebook,
) -> None:
    notebook.run("def reads(ask): return absent if ask else 0")
    notebook.cell("reads(False)")
    assert any("name 'absent' is not defined" in note for note in notebook.notes)
    notebook.cell("1")
    assert notebook.notes == ()


def test_a_name_that_the_notebook_gets_after_a_cells_function_is_found_by_it(
    notebook: LiveNotebook,
) -> None:
    notebook.cell("def asks(): return later()")
    notebook.run("def later(): return inner\ninner = 1")
    assert notebook.cell("asks()") == 1
    notebook.run("del later")
    with pytest.raises(NameError):
        notebook.cell("asks()")
    notebook.run("later = lambda: 2")
    assert notebook.cell("asks()") == 2


def test_a_name_of_the_ranks_that_functions_of_the_notebook_read_is_one_of_both(
    notebook: LiveNotebook,
) -> None:
    notebook.run("lr = 1\ndef step(): return lr\ndef train(): return step()")
    notebook.cell("lr = 5")
    assert set(notebook.program("train()").both) == {"lr"}
    assert not notebook.program("1").both


def test_modules_are_imported(notebook: LiveNotebook) -> None:
    notebook.run("import math as m\nimport os.path\ndef f(): return m.floor(2.5)")
    assert notebook.cell("f() + m.ceil(1.5), os.path.basename('a/b')") == (4, "b")


def test_future_imports_are_in_force(notebook: LiveNotebook) -> None:
    notebook.run("from __future__ import annotations")
    assert notebook.cell("def f(x: Gone): ...\nf.__annotations__") == {"x": "Gone"}


def test_a_cell_of_comments_runs(notebook: LiveNotebook) -> None:
    assert notebook.cell("# nothing") is None
