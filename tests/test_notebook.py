"""The scope that IPython provides for a launch, and the source and labels of its cells."""

import sys

import IPython
import pytest
from ipykernel.compiler import XCachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from xla_nb import api, magics, notebook
from xla_nb.errors import ProgramError


class Shell:
    """An IPython whose %%xla_spawn starts no ranks; records launches in `scopes` and `programs`."""

    def __init__(self, patch):
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell(config=config)
        self.shell.compile = XCachingCompiler()  # as in a kernel
        self.notebook = notebook.of(self.shell)
        self.scopes = []
        self.programs = []
        made = magics.XlaMagics(self.shell)
        self.shell.register_magics(made)
        self.shell.input_transformers_cleanup.append(made.transformed)
        self.shell.events.register("pre_run_cell", made.before_cell)
        self.shell.events.register("post_run_cell", made.after_cell)
        patch.setattr(self.notebook, "scope", self._scope)
        patch.setattr(api, "run", self._run)

    def _scope(self):
        self.scopes.append(self.scope)
        return self.scopes[-1]

    def _run(self, program, options, begun):
        self.programs.append(program)
        begun(None)

    def run(self, text):
        """Run a cell that must succeed; return its value."""
        done = self.shell.run_cell(text, store_history=True)
        done.raise_error()
        return done.result

    def launch(self, text):
        """Launch a cell; return its program."""
        self.run(f"%%xla_spawn -n 2\n{text}")
        return self.programs[-1]

    @property
    def scope(self):
        return notebook.Notebook.scope(self.notebook)


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    main = sys.modules["__main__"]
    made = Shell(monkeypatch)
    yield made
    made.shell.restore_sys_module_state()
    sys.modules["__main__"] = main
    notebook.of.cache_clear()


# ---------------------------------------------------------------- cells


def test_the_number_is_that_of_the_running_cell(cells):
    numbers = []
    cells.shell.user_ns["look"] = lambda: numbers.append(cells.notebook.number)
    for _ in range(3):
        cells.run("look()")
    assert numbers == [1, 2, 3]


def test_a_launched_cell_is_labeled_with_its_number(cells):
    cells.run("1")
    assert cells.launch("x = 1").label == "Cell In[2]"
    assert cells.launch("def f(rank): pass").label == "Cell In[3]"


@pytest.mark.parametrize("text", ["a = 1\nb = 2\na", "a = 1\nb = 2\ndef f(rank): return b"])
def test_line_numbers_of_a_launched_cell_start_at_its_magic(cells, text):
    assert cells.launch(text).sources["Cell In[1]"].splitlines()[2] == "b = 2"


def test_ipython_syntax_in_a_launched_cell_becomes_python(cells):
    assert "get_ipython().system('ls')" in cells.launch("!ls").sources["Cell In[1]"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(): pass",
        "\n\ndef f(): pass",
    ],
)
def test_a_cell_has_the_filename_under_which_it_was_compiled(cells, text):
    cells.run(text)
    (cell,) = cells.scope.cells
    assert cell.label == "Cell In[1]"
    assert cell.source.strip() == "def f(): pass"
    assert cell.filename == cells.shell.user_ns["f"].__code__.co_filename


def test_a_scope_has_earlier_cells_and_its_own_oldest_first(cells):
    cells.run("a = 1")
    cells.launch("b = 2")
    cells.launch("def f(rank): pass")
    assert [cell.source.rstrip().split("\n") for cell in cells.scopes[1].cells] == [
        ["a = 1"],
        ["#%%xla_spawn -n 2", "b = 2"],
        ["#%%xla_spawn -n 2", "def f(rank): pass"],
    ]


def test_a_scope_includes_the_cell_that_calls_spawn(cells):
    found = []
    cells.shell.user_ns["spawn"] = lambda: found.append(cells.scope)
    cells.run("a = 1")
    cells.run("def f(rank): pass\nspawn()")
    assert [cell.label for cell in found[0].cells] == ["Cell In[1]", "Cell In[2]"]


# ---------------------------------------------------------------- names


def test_the_scope_contains_names_defined_by_the_user(cells):
    cells.run("a = 1\ndef f(): pass\nimport math")
    assert {"a", "f", "math"} <= set(cells.scope.values)
    assert cells.scope.values["a"] == 1


@pytest.mark.parametrize("name", ["open", "exit", "quit", "get_ipython", "In", "Out"])
def test_the_scope_omits_names_defined_by_ipython(cells, name):
    cells.run("1")
    assert name in cells.shell.user_ns
    assert name not in cells.scope.values


def test_the_scope_contains_ipython_names_redefined_by_the_user(cells):
    cells.run("def open(path): return 'mine'")
    assert cells.scope.values["open"]("") == "mine"


# ---------------------------------------------------------------- the current notebook


def test_a_shell_has_one_notebook(cells):
    assert notebook.of(cells.shell) is notebook.of(cells.shell)


def test_code_in_a_shell_finds_its_notebook(cells, monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: cells.shell)
    assert notebook.current().shell is cells.shell


def test_code_outside_a_shell_finds_no_notebook(monkeypatch):
    assert notebook.current() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook.current() is None


# ---------------------------------------------------------------- invalid source


def test_all_python_line_endings_end_a_line(cells):
    source = cells.launch("a = 1\rb = 2\r\nc = 3").sources["Cell In[1]"]
    assert source.rstrip().split("\n") == ["#%%xla_spawn -n 2", "a = 1", "b = 2", "c = 3"]


def test_launching_a_cell_that_ipython_cannot_parse_raises_with_its_line(cells):
    with pytest.raises(ProgramError, match=r"^Cell In\[1\], line 4: unindent does not match"):
        cells.launch("if True:\n    a = 1\n  b = 2")


@pytest.mark.parametrize(
    "text",
    ["if True:\n    later\n  b = 2", "later = '\0'", "later = '\ud800'"],
    ids=["indentation", "NUL", "surrogate"],
)
def test_errors_in_an_ordinary_cell_are_left_to_ipython(cells, capsys, text):
    cells.launch("def later(rank): pass")
    with pytest.raises((SyntaxError, ValueError)):
        cells.run(text)
    assert "Error in callback" not in capsys.readouterr().out


def test_an_earlier_deeply_nested_cell_does_not_prevent_a_launch(cells):
    cells.run(
        "import os.path\nn = 0\nif n: pass\n"
        + "".join(f"elif n == {n + 1}: pass\n" for n in range(600))
    )
    assert cells.launch("def f(rank): return n").label == "Cell In[2]"
