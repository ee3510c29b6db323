"""Names that the notebook does not have: bound by what runs on ranks, or refused."""

import pytest

from tests.support.notebook_double import opened
from xla_nb.errors import ProgramError
from xla_nb.program.build import Cell

notebook = pytest.fixture(opened)

INIT = "def init():\n    global model\n    model = [1]\n"
READS = "def f(i):\n    {}\n    return model"
BY_ANOTHER = "def f(i):\n    {}\n    return read()\ndef read(): return model"
IN_A_METHOD = """
class Setup:
    def run(self):
        global model
        model = [1]
"""
IN_A_CLOSURE = """
def made():
    value = [1]
    def inner():
        global model
        model = value
    return inner
run = made()
"""


@pytest.mark.parametrize("reader", [READS, BY_ANOTHER])
@pytest.mark.parametrize(
    ("cell", "call"),
    [
        (INIT, "init()"),
        (IN_A_METHOD, "Setup().run()"),
        (IN_A_METHOD + "it = Setup()", "it.run()"),
        (IN_A_CLOSURE, "run()"),
        ("import functools\n@functools.cache\n" + INIT, "init()"),
        (INIT + "def outer(): init()", "outer()"),
        (INIT + "table = {'init': init}", "table['init']()"),
        ("def init():\n    class A:\n        global model\n        model = [1]", "init()"),
    ],
)
def test_a_name_that_a_function_of_the_notebook_binds_need_not_be_there(
    notebook, cell, call, reader
):
    notebook.run(cell)
    source = reader.format(call)
    assert notebook.launch(source, entry="f") == [1]


def test_so_it_is_with_a_function_that_comes_as_an_argument(notebook):
    notebook.run(INIT)
    assert notebook.launch(
        "def f(i, go):\n    go()\n    return model", notebook.values["init"]
    ) == [1]


def test_so_it_is_with_a_definition_that_was_launched_and_not_executed(notebook):
    notebook.pending.append(Cell("Cell In[1]", INIT))
    assert notebook.launch("def f(i):\n    init()\n    return model") == [1]


def test_so_it_is_with_a_definition_that_is_executed_again(notebook):
    notebook.run(
        "import threading\ndef locked(f):\n    lock = threading.Lock()\n"
        "    def g():\n        with lock: return f()\n    return g"
    )
    notebook.run("@locked\n" + INIT)
    assert notebook.launch("def f(i):\n    init()\n    return model") == [1]


def test_a_name_that_a_function_binds_which_is_not_sent_is_refused(notebook):
    notebook.run(INIT)
    with pytest.raises(ProgramError, match=r"Cell In\[2\], line 1: name 'model' is not defined"):
        notebook.build("def f(i): return model")


def test_a_name_that_a_function_only_reads_or_has_for_itself_is_refused(notebook):
    notebook.run("def g():\n    model = 1\n    return model")
    with pytest.raises(ProgramError, match=r"Cell In\[2\], line 1: name 'model' is not defined"):
        notebook.build("def f(i): return g(), model")


def test_a_name_that_a_function_of_another_namespace_binds_is_refused(notebook):
    notebook.run(f"ns = {{}}\nexec({INIT!r}, ns)\ninit = ns['init']")
    with pytest.raises(ProgramError, match="name 'model' is not defined"):
        notebook.build("def f(i):\n    init()\n    return model")


def test_a_function_of_the_notebook_may_read_what_a_launched_one_binds(notebook):
    notebook.run("def read(): return model")
    notebook.pending.append(Cell("Cell In[2]", INIT))
    assert notebook.launch("def f(i):\n    init()\n    return read()") == [1]
