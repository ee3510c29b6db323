"""Which entries ranks can call with which arguments, told before anything starts."""

from __future__ import annotations

import pytest

from tests.support.notebook_double import opened
from xla_nb.errors import ProgramError
from xla_nb.program.build import Cell

notebook = pytest.fixture(opened)


# --- the entry --------------------------------------------------------------------------------


def test_entry_is_the_function_named(notebook):
    assert notebook.launch("def a(i): return 'a'\ndef b(i): return 'b'", entry="a") == "a"


def test_entry_may_be_a_function_of_the_notebook(notebook):
    notebook.run("lr = 0.1\ndef train(i, n): return lr * n")
    assert notebook.launch("steps = 3", 3, entry="train") == pytest.approx(0.3)


def test_entry_may_be_imported_in_the_cell(notebook):
    assert notebook.launch("from operator import neg", entry="neg") == 0


def test_entry_defined_under_an_if_can_be_named(notebook):
    assert notebook.launch("if True:\n    def f(i): return i + 1", entry="f") == 1


def test_misspelt_entry_names_the_close_match_and_the_candidates(notebook):
    with pytest.raises(ProgramError, match=r"trian.*Did you mean train\?.*defines train, eval_"):
        notebook.build("def train(i): pass\ndef eval_(i): pass", entry="trian")


@pytest.mark.parametrize("source", ["class run: pass", "run = 3", "run = [1]"])
def test_entry_that_is_no_function_is_refused(notebook, source):
    with pytest.raises(ProgramError, match="run cannot be launched"):
        notebook.build(source + "\ndef other(i): pass", entry="run")


def test_entry_of_the_notebook_that_is_no_function_is_refused(notebook):
    notebook.run("run = 3")
    with pytest.raises(
        ProgramError, match="run cannot be launched: in the notebook it is of type int"
    ):
        notebook.build("x = 1", entry="run")


def test_async_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match=r"line 2: f is an async function.*asyncio\.run"):
        notebook.build("\nasync def f(i): pass")


def test_generator_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match="f is a generator"):
        notebook.build("def f(i):\n    if i:\n        yield 1")


def test_a_generator_inside_the_entry_is_fine(notebook):
    assert notebook.launch("def f(i):\n    def g():\n        yield 1\n    return list(g())") == [1]


def test_a_pending_function_can_be_the_entry(notebook):
    notebook.pending.append(Cell("Cell In[1]", "def train(i, lr): return lr"))
    assert notebook.launch("x = 1", 5, entry="train") == 5
    with pytest.raises(ProgramError, match=r"Cell In\[1\], line 1: train"):
        notebook.build("x = 1", entry="train")


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
def test_lock_goes_to_a_parameter_of_that_name_that_is_not_passed(
    notebook, signature, args, takes_lock
):
    program = notebook.build(f"def f({signature}): return 1", args=args)
    assert program.takes_lock is takes_lock
    assert notebook.rank(program, *args) == 1


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        ("i, lr, n", (1,), r"line 1: f\(i, lr, n\).*1 argument follow.*--args \"\(lr, n,\)\""),
        ("i", (1, 2), "Pass no arguments"),
        ("", (), "first parameter for the rank"),
        ("i, *, lr", (), "'lr'"),
        ("i, lr=None, /, *, lock", (1, 2), "too many positional"),
    ],
)
def test_wrong_arity_is_said_before_the_launch(notebook, signature, args, message):
    with pytest.raises(ProgramError, match=message):
        notebook.build(f"def f({signature}): return 1", args=args)


def test_arity_of_a_decorated_entry_is_left_to_its_decorator(notebook):
    notebook.run("def inject(f): return lambda i: f(i, 'cfg')")
    assert notebook.launch("@inject\ndef f(i, cfg): return cfg") == "cfg"


def test_call_with_the_wrong_arity_says_how_to_pass_arguments(notebook):
    notebook.run("def f(i, lr): pass")
    with pytest.raises(ProgramError, match=r"args=\(lr,\)"):
        notebook.call(notebook.values["f"])
