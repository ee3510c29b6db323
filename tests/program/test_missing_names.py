"""Names that the notebook does not have: bound by what runs on ranks, or told with their line."""

import re

import pytest

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


def told(notebook, launched, where):
    """Building says that a name is missing there, and a rank raises NameError."""
    program = notebook.build(launched)
    (note,) = program.notes
    assert re.match(rf"{where}( of `[\w.<>]+`)?: name '\w+' is not defined in this cell", note)
    with pytest.raises(NameError):
        notebook.rank(program)
    return note


def test_a_name_that_a_function_binds_which_is_not_sent_is_told(notebook):
    notebook.run(INIT)
    told(notebook, "def f(i): return model", r"Cell In\[2\], line 1")


def test_a_name_that_a_function_only_reads_or_has_for_itself_is_told(notebook):
    notebook.run("def g():\n    model = 1\n    return model")
    told(notebook, "def f(i): return g(), model", r"Cell In\[2\], line 1")


def test_a_name_that_a_function_of_another_namespace_binds_is_told(notebook):
    notebook.run(f"ns = {{}}\nexec({INIT!r}, ns)\ninit = ns['init']")
    told(notebook, "def f(i):\n    init()\n    return model", r"Cell In\[2\], line 3")


def test_a_function_of_the_notebook_may_read_what_another_binds(notebook):
    notebook.run("def read(): return model")
    notebook.run(INIT)
    assert notebook.launch("def f(i):\n    init()\n    return read()") == [1]


#: What a rank may get to or not, with the place of the note.
MAY_NOT_RUN = {
    "a method that nothing calls by its name": (
        "class M:\n    def run(self): return 'ok'\n    def debug(self): return gone\nm = M()",
        "def f(i): return m.run()",
        r"Cell In\[1\], line 3 of `M.debug`",
    ),
    "a function that is only held": (
        "def g(): return gone\nheld = [g, 'ok']",
        "def f(i): return held[1]",
        r"Cell In\[1\], line 1 of `g`",
    ),
    "a condition of the launched function": (
        "",
        "def f(i):\n    if i: print(gone)\n    return 'ok'",
        r"Cell In\[\d\], line 2 of `f`",
    ),
    "what handles errors": (
        "",
        "def f(i):\n    try: return 'ok'\n    except ValueError: print(gone)",
        r"Cell In\[\d\], line 3 of `f`",
    ),
    "one that is local elsewhere": (
        "def g(x=0):\n    if x: gone\ndef gone_too(): return absent",
        "def f(i):\n    gone, gone_too = 'ok', g\n    gone_too()\n    return gone",
        r"Cell In\[1\], line 2 of `g`",
    ),
    "a method of the launched cell": (
        "",
        "class M:\n    def run(self): return 'ok'\n    def debug(self): return gone\n"
        "def f(i): return M().run()",
        r"Cell In\[\d\], line 3 of `M.debug`",
    ),
}


@pytest.mark.parametrize(("cell", "launched", "where"), MAY_NOT_RUN.values(), ids=MAY_NOT_RUN)
def test_a_name_that_ranks_may_never_get_to_is_told(notebook, cell, launched, where):
    notebook.run(cell)
    program = notebook.build(launched, entry="f")
    (note,) = program.notes
    assert re.match(where, note)
    assert "name 'gone' is not defined in this cell or in the notebook. A rank that" in note
    assert notebook.rank(program) == "ok"


#: What ranks do without a note, as the code looks for the name itself or binds it as it runs.
NOT_TOLD = [
    "def f(i): return gone if 'gone' in globals() else 'ok'",
    "from os.path import dirname\n"
    "where = dirname(__file__) if '__file__' in globals() else 'ok'\ndef f(i): return where",
    "globals().update(gone='ok')\ndef f(i): return gone",
    "globals()['gone'] = 'ok'\ndef f(i): return gone",
    "def f(i):\n    vars().update()\n    globals().update(gone='ok')\n    return gone",
    "exec(\"gone = 'ok'\")\ndef f(i): return gone",
]


@pytest.mark.parametrize("launched", NOT_TOLD)
def test_a_name_that_the_code_looks_for_or_binds_as_it_runs_is_not_told(notebook, launched):
    program = notebook.build(launched, entry="f")
    assert not program.notes
    assert notebook.rank(program) == "ok"


#: What the launched function gets to, with the line of the note.
READ = {
    "the launched function": ("def f(i): return gone", 1),
    "a function that it calls": ("def g(): return gone\ndef f(i): return [g()]", 1),
    "a function inside": ("def f(i):\n    def inner(): return gone\n    return inner()", 2),
    "an object that is made": ("class A:\n    def __init__(self): gone\ndef f(i): A()", 2),
    "a wrapped one": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def inner(*args): return f(*args)\n    return inner\n@deco\ndef f(i): return gone",
        7,
    ),
}


@pytest.mark.parametrize(("launched", "line"), READ.values(), ids=READ)
def test_a_name_that_ranks_read_is_told_with_its_line_and_raises_there(notebook, launched, line):
    told(notebook, launched, rf"Cell In\[1\], line {line}")


@pytest.mark.parametrize("launched", ["def f(i): return h()", "h()"])
def test_what_a_function_of_the_notebook_reads_is_told(notebook, launched):
    notebook.run("def g(i):\n    return gone\ndef h(): return g(1)")
    told(notebook, launched, r"Cell In\[1\], line 2")


def test_the_cell_that_deleted_a_name_is_named_as_that(notebook):
    notebook.run("data = {}")
    notebook.run("del data")
    note = told(notebook, "def f(i): return data", r"Cell In\[3\], line 1")
    assert "notebook. Cell In[2] deleted it. A rank" in note


def test_a_name_like_one_that_is_there_is_asked_for(notebook):
    notebook.run("losses = []")
    note = told(notebook, "def f(i): return loses", r"Cell In\[2\], line 1")
    assert "Did you mean losses?" in note
