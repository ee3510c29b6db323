"""Which definitions of launched cells count, and what of them is executed."""

import pytest

from xla_nb.program.cells import Cell
from xla_nb.program.deferred import Deferred


@pytest.fixture
def text():
    """What of a launched cell is executed where these names are used."""

    def text(source, *names):
        deferred = Deferred()
        deferred.add(Cell("c", source), {})
        return [taken.text.source for taken in deferred.take(set(names), {})]

    return text


def test_definitions_keep_their_lines_without_the_calls(text):
    source = "import os\nprint(1)\nlr = 1\n@deco\ndef f(i):\n    return 1\nf(0)\nclass A: pass\n"
    assert text(source, "os", "lr", "f", "A") == [
        "import os\n\nlr = 1\n@deco\ndef f(i):\n    return 1\n\nclass A: pass\n"
    ]


def test_assignments_of_a_cell_of_statements_are_not_executed(text):
    source = "import os\nlr = 1\nclass A:\n    x = 1\nclass B:\n    y = lr\n"
    assert text(source, "os", "lr", "A", "B") == ["import os\n\nclass A:\n    x = 1\n"]


def test_an_import_is_kept_with_its_fallback(text):
    source = "try:\n    import a\nexcept ImportError:\n    a = None\ndef f(i): pass\n"
    assert text(source, "f", "a") == [source]


def test_a_definition_that_shares_a_line_is_executed_alone(text):
    (executed,) = text("import os; print(1)\ndef f(i): pass\n", "os", "f")
    assert executed.startswith("import os; pass\n")


def test_what_a_definition_needs_is_executed_with_it(text):
    source = "a = 1\nb = a\nc = 2\ndef f(i): return b\n"
    assert text(source, "f") == ["a = 1\nb = a\n\ndef f(i): return b\n"]


def test_what_nobody_uses_is_not_executed(text):
    assert text("a = 1\ndef f(i): pass\n", "b") == []
