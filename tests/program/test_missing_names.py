"""Names that the notebook does not have: bound by what runs on ranks, or told with their line."""

import re
from dataclasses import replace

import pytest

from xla_nb.program.build import build
from xla_nb.program.cell_text import Cell

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
    assert notebook.launch(reader.format(call), entry="f") == [1]


def test_so_it_is_with_a_function_that_comes_as_an_argument_or_reads_what_another_binds(notebook):
    notebook.run("def read(): return model\n" + INIT)
    launched = "def f(i, go):\n    go()\n    return model"
    assert notebook.launch(launched, notebook.values["init"]) == [1]
    assert notebook.launch("def f(i):\n    init()\n    return read()") == [1]


def told(notebook, launched, place):
    """The one note of the program, which says that a name is missing there: in the second cell's
    third line, if `place` is "2:3"."""
    program = notebook.build(launched, entry="f" if "def f(" in launched else None)
    (note,) = program.notes
    cell, _, line = place.partition(":")
    said = r"name '\w+' is not defined in this cell or in the notebook\. (.* )?A rank that"
    assert re.match(rf"Cell In\[{cell}\], line {line}( of `[\w.<>]+`)?: {said}", note)
    return program, note


#: What ranks do not get to: the notebook's cell, the launched one and the place of the note.
NOT_READ = {
    "a method that nothing calls by its name": (
        "class M:\n    def run(self): return 'ok'\n    def debug(self): return gone\nm = M()",
        "def f(i): return m.run()",
        "1:3 of `M.debug`",
    ),
    "a function that is only held": (
        "def g(): return gone\nheld = [g, 'ok']",
        "def f(i): return held[1]",
        "1:1 of `g`",
    ),
    "a condition of it": ("", "def f(i):\n    if i: gone\n    return 'ok'", "2:2 of `f`"),
    "what handles errors": (
        "",
        "def f(i):\n    try: return 'ok'\n    except ValueError: print(gone)",
        "2:3 of `f`",
    ),
    "one that is local elsewhere": (
        "def g(x=0):\n    if x: gone\ndef gone_too(): return absent",
        "def f(i):\n    gone, gone_too = 'ok', g\n    gone_too()\n    return gone",
        "1:2 of `g`",
    ),
}


@pytest.mark.parametrize(("cell", "launched", "place"), NOT_READ.values(), ids=NOT_READ)
def test_a_name_that_ranks_may_never_get_to_is_told(notebook, cell, launched, place):
    notebook.run(cell)
    assert notebook.rank(told(notebook, launched, place)[0]) == "ok"


CALLS = "def g(i):\n    return gone\ndef h(): return g(1)"
#: What they do get to.
READ = {
    "the launched function": ("", "def f(i): return gone", "2:1"),
    "a function inside": (
        "",
        "def f(i):\n    def inner(): return gone\n    return inner()",
        "2:2",
    ),
    "an object": ("", "class A:\n    def __init__(self): gone\ndef f(i): A()", "2:2"),
    "a wrapped function": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def inner(*args): return f(*args)\n    return inner",
        "@deco\ndef f(i): return gone",
        "2:2",
    ),
    "a function of the notebook": (CALLS, "def f(i): return h()", "1:2"),
    "a function of the notebook, in a cell of statements": (CALLS, "h()", "1:2"),
    "what a function binds that is not sent": (INIT, "def f(i): return model", "2:1"),
    "what a function has for itself": (
        "def g():\n    model = 1\n    return model",
        "def f(i): return g(), model",
        "2:1",
    ),
    "what a function of another namespace binds there": (
        f"ns = {{}}\nexec({INIT!r}, ns)\ninit = ns['init']",
        "def f(i):\n    init()\n    return model",
        "2:3",
    ),
}


@pytest.mark.parametrize(("cell", "launched", "place"), READ.values(), ids=READ)
def test_a_name_that_ranks_read_is_told_and_raises_there(notebook, cell, launched, place):
    notebook.run(cell)
    program, _ = told(notebook, launched, place)
    with pytest.raises(NameError):
        notebook.rank(program)


def test_a_note_names_the_cell_that_deleted_a_name_or_assigns_it_and_one_that_is_alike(notebook):
    notebook.run("data = {}\nlosses = []")
    notebook.run("del data")
    _, note = told(notebook, "def f(i): return data", "3:1")
    assert "notebook. Cell In[2] deleted it. A rank" in note
    _, note = told(notebook, "def f(i): return loses", "4:1")
    assert "Did you mean losses?" in note
    notebook.cells.append(Cell("Cell In[5]", "lost = 3\nlost"))  # on ranks
    _, note = told(notebook, "def f(i): return lost", "6:1")
    assert "Cell In[5] assigns it, but the notebook does not" in note


def test_a_note_says_that_ranks_do_not_get_ipythons_history(notebook):
    notebook.run("def g(): return _ + 1")
    cell = Cell("Cell In[2]", "Out, g()")
    scope = replace(notebook.scope, history={"_", "Out"})
    its = "is IPython's history, which ranks do not get: name the value. A rank that gets to that"
    assert build(cell, scope, name="xla_nb_cell").notes == (
        f"Cell In[2], line 1: `Out` {its} line raises NameError",
        f"Cell In[1], line 1 of `g`: `_` {its} line raises NameError",
    )


@pytest.mark.parametrize(
    "launched",
    [
        "def f(i): return gone if 'gone' in globals() else 'ok'",
        "from os.path import dirname\n"
        "where = dirname(__file__) if '__file__' in globals() else 'ok'\ndef f(i): return where",
        "globals().update(gone='ok')\ndef f(i): return gone",
        "globals()['gone'] = 'ok'\ndef f(i): return gone",
        "def f(i):\n    vars().update()\n    globals().update(gone='ok')\n    return gone",
        "exec(\"gone = 'ok'\")\ndef f(i): return gone",
        "def f(i):\n    try:\n        return gone\n    except NameError:\n        return 'ok'",
        "def f(i):\n    return 'ok'\nclass A:\n    def g(self) -> 'Gone': ...",
        "from os.path import *\ndef f(i): return join('o', 'k').replace('/', '')",
        "def f(i):\n    global made\n    made = 'ok'\n    return g()\ndef g(): return made",
        "def f(i): return [ok for ok in ['ok']][0]",
        "def f(i):\n    if (n := 'ok'): return n",
    ],
)
def test_a_name_that_the_code_looks_for_or_binds_elsewhere_or_as_it_runs_is_not_told(
    notebook, launched
):
    program = notebook.build(launched, entry="f")
    assert not program.notes
    assert notebook.rank(program) == "ok"
