"""Entries and arguments are checked before anything starts."""

import pytest

from xla_nb.errors import ProgramError


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
    ids=["first", "of the notebook", "imported", "under an if", "with a generator", "decorated"],
)
def test_the_entry_is_the_function_that_is_named_or_the_last(notebook, cell, entry, returned):
    notebook.run("lr = 0.1\ndef train(i): return lr\ndef inject(f): return lambda i: f(i, 'cfg')")
    assert notebook.launch(cell, entry=entry) == returned


def test_a_misspelled_entry_is_refused_with_suggestions_and_missing_arguments_with_a_call(notebook):
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
        ("def f(): 1", None, (), "first parameter for the rank"),
        ("def f(i, *, lr): 1", None, (), "'lr'"),
        ("def f(i, lr=None, /, *, lock): 1", None, (1, 2), "too many positional"),
    ],
)
def test_an_entry_that_is_no_plain_function_or_takes_other_arguments_is_refused(
    notebook, cell, entry, args, told
):
    notebook.run("number = 3")
    with pytest.raises(ProgramError, match=told):
        notebook.build(cell, entry=entry, args=args)
