"""Objects of Python's that pickle refuses, on ranks."""

import contextvars

import pytest

from xla_nb.errors import ShippingError


@pytest.mark.parametrize(
    "made",
    ["contextvars.ContextVar('at')", "struct.Struct('<ih')", "weakref.WeakMethod(thing.name)"],
)
def test_some_are_refused_by_name(notebook, made):
    notebook.run(
        "import contextvars, struct, weakref\nclass Thing:\n    def name(self): ...\n"
        f"thing = Thing()\nmade = {made}"
    )
    with pytest.raises(ShippingError, match=r"^Cannot send `made` \(.*cannot pickle '"):
        notebook.build("def f(rank): return made")


def test_a_modules_context_variable_is_that_modules_without_the_notebooks_value(notebook, local):
    (local / "steps.py").write_text(
        "import contextvars\nat = contextvars.ContextVar('at', default=1)\n"
    )
    notebook.run("from steps import at\nimport steps\nat.set(5)")
    program = notebook.build("def f(rank): return at is steps.at, at.get()")
    assert contextvars.Context().run(notebook.rank, program) == (True, 1)


def test_a_function_decorated_with_a_context_manager_is_sent_with_it(notebook):
    notebook.run(
        "import contextlib\nseen = []\n@contextlib.contextmanager\ndef noted(what):\n"
        "    seen.append(what)\n    yield\n    seen.append('end')\n"
        "@noted('begin')\ndef g(x): return x + 1\ng.tag = seen\nentered = noted(1)"
    )
    cell = "def f(rank): return g(1), g(2), g.tag is seen, seen"
    assert notebook.launch(cell) == (2, 3, True, ["begin", "end"] * 2)
    notebook.run("entered.__enter__()")
    with pytest.raises(ShippingError, match=r"Cannot send `entered` .* a generator"):
        notebook.build("def f(rank): return entered")
