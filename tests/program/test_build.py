"""Programs built from cells compute on ranks what the notebook would; their module files."""

import ast
import os
import sys

import pytest

from tests.support.notebook_double import shipped
from xla_nb.errors import Interrupted
from xla_nb.program.build import Cell, Program, build_call
from xla_nb.program.module_file import ModuleMap, write


def test_calling_a_notebook_function_sends_it_with_its_globals(notebook):
    notebook.run("n = 2\nm = 3\ndef f(i, x): return i + x + n")
    program = build_call(notebook.values["f"], notebook.scope, args=(1,), name="c")
    assert (program.entry, shipped(program)) == ("f", {"f", "n"})
    assert [*program.definitions.values()] == [notebook.values["f"]]
    assert notebook.call(notebook.values["f"], 1) == 3


def test_interrupt_while_values_are_packed_is_reported_briefly(notebook):
    notebook.run(
        "class Slow:\n    def __reduce__(self): raise KeyboardInterrupt\n"
        "slow = Slow()\ndef f(i): return slow"
    )
    with pytest.raises(Interrupted, match=r"values of .* were packed\. Nothing was run on ranks"):
        build_call(notebook.values["f"], notebook.scope, args=(), name="c")


def test_building_parses_no_earlier_cells_again(notebook, monkeypatch):
    """Otherwise a launch late in a long session would take seconds."""
    notebook.run("import os.path, xml.dom\ndef f(rank): return os.path.sep")
    for number in range(700):
        notebook.run(f"step_{number} = {number}")
    first = build_call(notebook.values["f"], notebook.scope, args=(), name="c")
    read, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda *text: read.append(text) or parse(*text))
    again = build_call(notebook.values["f"], notebook.scope, args=(), name="c")
    assert again.parcel.imports == first.parcel.imports == ("xml", "xml.dom")
    assert len(read) <= 1, read  # only the text of `f`


def test_module_function_is_imported_and_script_function_is_the_running_code(notebook, local):
    (local / "local_d.py").write_text("def f(i): return 'd'")
    notebook.run("import local_d")
    program = build_call(notebook.values["local_d"].f, notebook.scope, args=(), name="c")
    (local / "local_d.py").write_text("def f(i): return 'edited'")
    del sys.modules["local_d"]
    sys.path_importer_cache.clear()
    assert notebook.rank(program) == "edited"
    path, edited = local / "script.py", "def f(i): return 'edited'"
    exec(compile("def f(i): return 'started'", str(path), "exec"), notebook.values)
    path.write_text(edited)
    notebook.cells.append(Cell(str(path), edited, str(path)))
    assert notebook.call(notebook.values["f"]) == "started"


@pytest.mark.parametrize(
    "expression",
    ["lambda i: h(i)", "make(7)", "functools.partial(two, b=7)", "Net().run", "Net()", "Job"],
)
def test_other_callables_are_sent_by_value(notebook, expression):
    notebook.run(
        """
        import functools
        def h(i): return 7
        def make(n):
            return lambda i: n
        def two(i, b): return b
        class Net:
            def run(self, i): return h(i)
            __call__ = run
        class Job(int):
            def __new__(cls, i): return super().__new__(cls, 7)
        """
    )
    notebook.run(f"fn = {expression}")
    fn = notebook.values.pop("fn")
    assert notebook.call(fn) == 7


def test_calling_from_a_script_omits_its_main_block(notebook, tmp_path):
    path = tmp_path / "script.py"
    source = "import math\nN = 2\ndef f(i): return math.floor(N)\nif __name__ == '__main__': 1\n"
    path.write_text(source)
    notebook.run("")
    exec(compile(source, str(path), "exec"), notebook.values)
    notebook.cells.append(Cell(str(path), source, str(path)))
    program = build_call(notebook.values["f"], notebook.scope, args=(), name="c")
    assert (program.body, program.restored) == (None, ("N", "f", "math"))
    assert notebook.rank(program) == 2


def test_module_map_is_written_next_to_the_module_in_a_private_folder(tmp_path):
    table = ModuleMap({"c": "ü = 1"}, "c", 64, "x", {"a": "list"})
    assert ModuleMap.parse(table.text()) == table
    program, path = Program("m", None, "c", body="x = 1\n", restored=("a",)), tmp_path / "p/m.py"
    before = os.umask(0)
    try:
        write(program, path)
    finally:
        os.umask(before)
    assert ModuleMap.open(path) == ModuleMap.of(program)
    assert path.parent.stat().st_mode & 0o777 == 0o700
