"""Cells that ranks run, the entry function of a cell, and its arguments."""

import sys

import pytest

from xla_nb.errors import ProgramError
from xla_nb.program.cell_text import Cell
from xla_nb.program.rank_cell import rank_cell


@pytest.mark.parametrize(
    ("before", "cell", "expected"),
    [
        ("", "def a(i): return 'a'\ndef f(i): return n\nn = 7\nn + 1", 7),
        ("", "x = rank + world_size\n(x, device, lock)", (4, "xla:0", "the lock")),
        ("", "was = A.n\nclass A:\n    n = 'new'\nwas, A.n", ("old", "new")),
        ("", "was = made()\nclass A:\n    n = 'new'\nwas, A.n", ("old", "new")),
        ("def same(fn): return fn", "# a\x0cb\u2028c\n\x0c\n@same\nclass A:\n    n = 1\nA.n", 1),
    ],
    ids=[
        "statements below the entry",
        "rank variables",
        "redefined class",
        "redefined class used in a function",
        "form feeds",
    ],
)
def test_cell_returns_what_it_would_in_the_notebook(notebook, before, cell, expected):
    notebook.run("class A:\n    n = 'old'\ndef made(): return A().n")
    notebook.run(before)
    assert notebook.launch(cell) == expected


def test_cells_with_nothing_to_run_or_a_syntax_error_are_refused(notebook):
    for text in ("# nothing\n", "import os\n", "class A: pass\n"):
        with pytest.raises(ProgramError, match="nothing for ranks to run"):
            notebook.build(text)
    with pytest.raises(ProgramError) as caught:
        notebook.build("def f(i):\n    retrun 1")
    assert "line 2" in str(caught.value)
    assert str(caught.value).splitlines()[1:] == ["        retrun 1", "               ^"]


def test_relative_import_fails_as_in_the_notebook(notebook):
    with pytest.raises(ImportError, match="attempted relative import with no known parent package"):
        notebook.launch("x = 1\nfrom . import x")


def test_magics_in_earlier_functions_are_checked(notebook):
    notebook.run("def g():\n    get_ipython().run_line_magic('timeit', 'x')")
    with pytest.raises(ProgramError, match=r"Cell In\[1\], line 2: %timeit"):
        notebook.build("def f(i): return g()")


def test_future_imports_of_a_cell_apply_but_bind_no_names(notebook):
    cell = "#\nfrom __future__ import annotations\ndef f(x: Missing): pass\nf.__annotations__"
    with pytest.raises(ProgramError, match="nothing"):
        notebook.build("from __future__ import annotations\nimport os")
    read = rank_cell(Cell("c", cell), set(), live=True)
    assert (read.futures, read.names.binds) == ({"annotations"}, {"f"})
    made = notebook.build(
        "from __future__ import annotations\nclass A:\n    x: Missing\nA.x = 1\nA.x"
    )
    assert notebook.rank(made) == 1


def test_import_sees_the_effects_of_earlier_statements(notebook, monkeypatch, tmp_path):
    (tmp_path / "asks_for_it.py").write_text("import os\nfound = os.environ.get('SET_BY_A_CELL')")
    monkeypatch.setenv("SET_BY_A_CELL", "before")
    monkeypatch.setattr("sys.path", [*sys.path])
    source = (
        "import os, sys\nos.environ['SET_BY_A_CELL'] = 'by it'\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nimport asks_for_it as asked\nasked.found"
    )
    assert notebook.launch(source) == "by it"


@pytest.mark.parametrize(
    ("cell", "entry", "returned"),
    [
        ("def a(i): return 'a'\ndef b(i): return 'b'", "a", "a"),
        ("steps = 3", "train", 0.1),
        ("from operator import neg", "neg", 0),
        ("if True:\n    def f(i): return i + 1", "f", 1),
        ("def f(i):\n    def g():\n        yield 1\n    return list(g())", None, [1]),
        ("@inject\ndef f(i, cfg): return cfg", None, "cfg"),
    ],
    ids=[
        "first function",
        "notebook function",
        "imported",
        "under an if",
        "with a nested generator",
        "decorated",
    ],
)
def test_entry_is_the_named_function_or_the_last_one(notebook, cell, entry, returned):
    notebook.run("lr = 0.1\ndef train(i): return lr\ndef inject(f): return lambda i: f(i, 'cfg')")
    assert notebook.launch(cell, entry=entry) == returned


def test_refusals_suggest_a_similar_entry_and_a_call_with_missing_arguments(notebook):
    told = r"no function named trian\. Did you mean train\?.*: train, eval_\."
    with pytest.raises(ProgramError, match=told):
        notebook.build("def train(i): pass\ndef eval_(i, lr): pass", entry="trian")
    with pytest.raises(ProgramError, match=r"args=\(lr,\)"):
        notebook.call(notebook.values["eval_"])


@pytest.mark.parametrize(
    ("signature", "args", "takes_lock"),
    [
        ("i", (), False),
        ("i, lr", (1,), False),
        ("i, lr, lock", (1,), True),
        ("i, lock, lr=2", (), True),
        ("i, *, lock", (), True),
        ("i, lock=None", (), True),
        ("i, lock", (1,), False),  # the argument fills it
        ("*args", (1, 2), False),
        ("lock", (), False),  # the first parameter gets the rank
    ],
)
def test_unfilled_lock_parameter_receives_the_lock(notebook, signature, args, takes_lock):
    program = notebook.build(f"def f({signature}): return 1", args=args)
    assert program.takes_lock is takes_lock
    assert notebook.rank(program) == 1


@pytest.mark.parametrize(
    ("cell", "entry", "args", "told"),
    [
        ("class run: pass\ndef other(i): pass", "run", (), "Cannot launch run: "),
        ("run = [1]\ndef other(i): pass", "run", (), "Cannot launch run: "),
        ("x = 1", "number", (), "Cannot launch number: in the notebook it has type int"),
        ("\nasync def f(i): pass", None, (), r"line 2: f is an async function.*asyncio\.run"),
        ("def f(i):\n    if i:\n        yield 1", None, (), "f is a generator"),
        (
            "def f(i, lr, n): 1",
            None,
            (1,),
            r"1: Cannot call f\(i, lr, n\) .* --args \"\(lr, n,\)\"",
        ),
        ("def f(i, lr, n): 1", None, (1,), "1 argument: "),
        ("def f(i): 1", None, (1, 2), "Pass no arguments"),
        ("def f(i, *, a): 1", None, (), "Ranks pass no keywords: give `a` a default"),
        ("def f(): 1", None, (), "first parameter for the rank"),
        ("def f(i, *, lr): 1", None, (), "'lr'"),
        ("def f(i, lr=None, /, *, lock): 1", None, (1, 2), "too many positional"),
    ],
)
def test_entries_that_cannot_be_called_are_refused(notebook, cell, entry, args, told):
    notebook.run("number = 3")
    with pytest.raises(ProgramError, match=told):
        notebook.build(cell, entry=entry, args=args)
