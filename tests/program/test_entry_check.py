"""Entries and arguments are checked before anything starts."""

from __future__ import annotations

import pytest

from tests.support.notebook_double import opened
from xla_nb.errors import ProgramError

notebook = pytest.fixture(opened)


# --- the entry --------------------------------------------------------------------------------


def test_the_entry_can_be_named(notebook):
    assert notebook.launch("def a(i): return 'a'\ndef b(i): return 'b'", entry="a") == "a"


def test_the_entry_may_be_a_function_of_the_notebook(notebook):
    notebook.run("lr = 0.1\ndef train(i, n): return lr * n")
    assert notebook.launch("steps = 3", 3, entry="train") == pytest.approx(0.3)


def test_the_entry_may_be_imported_in_the_cell(notebook):
    assert notebook.launch("from operator import neg", entry="neg") == 0


def test_the_entry_may_be_defined_under_an_if(notebook):
    assert notebook.launch("if True:\n    def f(i): return i + 1", entry="f") == 1


def test_a_misspelled_entry_is_refused_with_suggestions(notebook):
    with pytest.raises(
        ProgramError, match=r"no function named trian\. Did you mean train\?.*: train, eval_\."
    ):
        notebook.build("def train(i): pass\ndef eval_(i): pass", entry="trian")


@pytest.mark.parametrize("source", ["class run: pass", "run = 3", "run = [1]"])
def test_an_entry_that_is_not_a_function_is_refused(notebook, source):
    with pytest.raises(ProgramError, match="Cannot launch run: "):
        notebook.build(source + "\ndef other(i): pass", entry="run")


def test_a_value_of_the_notebook_is_refused_as_entry(notebook):
    notebook.run("run = 3")
    with pytest.raises(ProgramError, match="Cannot launch run: in the notebook it has type int"):
        notebook.build("x = 1", entry="run")


def test_an_async_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match=r"line 2: f is an async function.*asyncio\.run"):
        notebook.build("\nasync def f(i): pass")


def test_a_generator_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match="f is a generator"):
        notebook.build("def f(i):\n    if i:\n        yield 1")


def test_a_generator_inside_the_entry_is_allowed(notebook):
    assert notebook.launch("def f(i):\n    def g():\n        yield 1\n    return list(g())") == [1]


# --- arity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "args", "takes_lock"),
    [
        ("i", (), False),
        ("i, lr", (1,), False),
        ("i, lr, lock", (1,), True),
        ("i, lock, lr=2", (), True),
        ("i, *, lock", (), True),
        ("i, lock=None", (), True),
        ("i, lock", (1,), False),  # it is passed
        ("*args", (1, 2), False),
        ("lock", (), False),  # the rank's index comes first
    ],
)
def test_an_unfilled_lock_parameter_receives_the_lock(notebook, signature, args, takes_lock):
    program = notebook.build(f"def f({signature}): return 1", args=args)
    assert program.takes_lock is takes_lock
    assert notebook.rank(program) == 1


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        ("i, lr, n", (1,), r"1: Cannot call f\(i, lr, n\) .* 1 argument: .*--args \"\(lr, n,\)\""),
        ("i", (1, 2), "Pass no arguments"),
        ("", (), "first parameter for the rank"),
        ("i, *, lr", (), "'lr'"),
        ("i, lr=None, /, *, lock", (1, 2), "too many positional"),
    ],
)
def test_arguments_that_do_not_match_are_refused(notebook, signature, args, message):
    with pytest.raises(ProgramError, match=message):
        notebook.build(f"def f({signature}): return 1", args=args)


def test_arguments_of_a_decorated_entry_are_not_checked(notebook):
    notebook.run("def inject(f): return lambda i: f(i, 'cfg')")
    assert notebook.launch("@inject\ndef f(i, cfg): return cfg") == "cfg"


def test_spawn_with_missing_arguments_shows_how_to_pass_them(notebook):
    notebook.run("def f(i, lr): pass")
    with pytest.raises(ProgramError, match=r"args=\(lr,\)"):
        notebook.call(notebook.values["f"])
