"""Objects of Python's that pickle refuses, on ranks."""

import contextvars
import textwrap

import pytest

from tests.support.notebook_double import importable_folder, opened

notebook = pytest.fixture(opened)
local = pytest.fixture(importable_folder)


def test_a_context_variable_is_one_object_with_its_default_and_value(notebook):
    notebook.run(
        "import contextvars\n"
        "step = contextvars.ContextVar('step', default=[1])\n"
        "at = contextvars.ContextVar('at')\n"
        "at.set({'itself': at})\n"
        "def now(): return step.get(), at.get()['itself'] is at\n"
    )
    notebook.run("names = [step, at]")
    cell = (
        "import contextvars\n"
        "def f(rank):\n"
        "    step.set([2])\n"
        "    return now(), contextvars.Context().run(step.get), at.name, names[0] is step"
    )
    assert notebook.launch(cell) == (([2], True), [1], "at", True)


def test_a_context_variable_without_a_value_has_none_on_ranks(notebook):
    notebook.run("import contextvars\nat = contextvars.ContextVar('at')")
    assert notebook.launch("def f(rank): return at.get('none')") == "none"


def test_a_modules_context_variable_is_that_modules_with_the_notebooks_value(notebook, local):
    (local / "steps.py").write_text(
        "import contextvars\nat = contextvars.ContextVar('at')\ndef now(): return at.get()\n"
    )
    notebook.run("from steps import at\nimport steps\nat.set(5)")
    program = notebook.build("def f(rank): return at is steps.at, steps.now()")
    assert contextvars.Context().run(notebook.rank, program) == (True, 5)


def test_a_struct_is_made_of_its_format(notebook):
    notebook.run(
        textwrap.dedent("""
            import struct
            pair = struct.Struct("<ih")
            both = [pair, pair]
        """)
    )
    assert notebook.launch("def f(rank): return pair.pack(1, 2), both[0] is pair") == (
        b"\1\0\0\0\2\0",
        True,
    )
