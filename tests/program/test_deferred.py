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


def test_definitions_keep_their_lines(text):
    source = "import os\na = 2\nlr = 1\n@deco\ndef f(i):\n    return 1\nb = 3\nclass A: pass\n"
    assert text(source, "os", "lr", "f", "A") == [
        "import os\n\nlr = 1\n@deco\ndef f(i):\n    return 1\n\nclass A: pass\n"
    ]


@pytest.fixture
def computing():
    """A launched cell that computes two of its names."""
    deferred = Deferred()
    source = "import os\nlr = 1\na = os.getpid()\nfor n in [1]: b = n\ndef f(i): return a\n"
    deferred.add(Cell("c", source), {}, {"a", "b", "n", "f"})
    return deferred


def test_what_the_run_has_is_asked_for_and_not_executed(computing):
    (taken,) = computing.take({"f"}, {})
    assert taken.text.source == "import os\n"
    assert taken.computed == {"f", "a"}


def test_a_launch_takes_what_the_run_has_and_executes_nothing(computing):
    (taken,) = computing.take({"f"}, {}, deep=False)
    assert (taken.text, taken.computed) == (None, {"f"})


def test_what_the_run_has_counts_until_it_is_bound(computing):
    computing.take({"a"}, {})
    assert computing.taken_first({}) == {"a", "b", "n", "f"}
    assert computing.taken_first({"a": 1}) == {"b", "n", "f"}


def test_what_the_run_has_is_not_pending_source(computing):
    (pending,) = computing.pending({})
    assert pending.names == {"os", "lr"}
    assert pending.cell.source == "import os\nlr = 1\n"


def test_the_notebook_no_longer_has_what_a_launched_cell_binds():
    deferred, namespace = Deferred(), {"f": 1, "g": 2}
    launched = deferred.add(Cell("c", "def f(i): pass\n"), namespace)
    assert namespace == {"g": 2}
    assert launched.held == {"f": 1}


def test_literals_are_taken_first_so_that_there_is_one():
    deferred = Deferred()
    deferred.add(Cell("c", "cfg = {}\nN = 3\ndef f(i): pass\n"), {})
    assert deferred.taken_first({}) == {"cfg"}


def test_definitions_whose_inputs_have_changed_are_taken_first():
    deferred, base = Deferred(), object()
    deferred.add(Cell("c", "class A(Base): pass\ndef f(i): pass\n"), {"Base": base})
    assert deferred.taken_first({"Base": base}) == set()
    assert deferred.taken_first({"Base": object()}) == {"A", "f"}
    assert deferred.pending({"Base": object()}) == []


def test_a_star_import_is_executed_for_a_name_that_nobody_has(text):
    source = "from math import *\ndef f(i): return sqrt(i)\n"
    assert text(source, "f") == [source]


def test_a_cell_whose_names_are_all_bound_anew_is_forgotten():
    deferred = Deferred()
    for _ in range(3):
        deferred.add(Cell("c", "def f(i): pass\n"), {})
    assert len(deferred.pending({})) == 1


def test_an_import_is_kept_with_its_fallback(text):
    source = "try:\n    import a\nexcept ImportError:\n    a = None\ndef f(i): pass\n"
    assert text(source, "f", "a") == [source]


def test_a_definition_that_shares_a_line_is_executed_alone(text):
    (executed,) = text("import os; a = 1\ndef f(i): pass\n", "os", "f")
    assert executed.startswith("import os; pass\n")


def test_what_a_definition_needs_is_executed_with_it(text):
    source = "a = 1\nb = a\nc = 2\ndef f(i): return b\n"
    assert text(source, "f") == ["a = 1\nb = a\n\ndef f(i): return b\n"]


def test_what_nobody_uses_is_not_executed(text):
    assert text("a = 1\ndef f(i): pass\n", "b") == []


def test_what_only_a_function_binds_is_found_through_functions_of_the_notebook():
    namespace = {"__name__": "__main__", "OFF": 200}
    exec("def tf(i): return i + OFF", namespace)
    deferred = Deferred()
    source = "import os\ndef f():\n    global OFF\n    OFF = os.getpid()\nf()\n"
    deferred.add(Cell("c", source), namespace, {"f", "OFF"})
    (taken,) = deferred.take({"tf"}, namespace)
    assert taken.text.source == "import os\n"
    assert taken.computed == {"f", "OFF"}


def test_an_import_of_a_cell_whose_function_binds_a_name_waits_for_no_run():
    deferred = Deferred()
    source = "import os\ndef f():\n    global OFF\n    OFF = os.getpid()\nf()\n"
    deferred.add(Cell("c", source), {}, {"f", "OFF"})
    (taken,) = deferred.take({"os"}, {})
    assert taken.computed == set()
