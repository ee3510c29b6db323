"""The names that a cell needs from the notebook; those missing there are bound by what runs on
ranks, or told with their line."""

import re
import sys
import textwrap
import traceback
from contextlib import nullcontext
from dataclasses import replace

import pytest
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import _modified_open

from tests.support.notebook_double import shipped
from xla_nb.errors import ShippingError
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.program.build import build, build_call
from xla_nb.program.cell_text import Cell


def test_who_reads_the_notebooks_rank_gets_the_ranks_in_a_bare_cell_and_is_told(notebook):
    (note,) = notebook.build("def f(i): return rank").notes
    assert re.search(r"'rank' is not defined.*Make it a parameter", note)
    notebook.run("rank, device = 7, 'mine'\ndef where():\n    at = device\n    return rank, at")
    program = notebook.build("where()")
    assert notebook.rank(program) == (0, "xla:0")
    told = "Cell In[2], line {} of `where`: here `{}` is each rank's own variable, not "
    told += "the notebook's. To use the notebook's, pass it to the function as an argument"
    assert program.once == (told.format(3, "device"), told.format(4, "rank"))


@pytest.mark.parametrize(
    ("before", "cell"),
    [
        ("rank = 7\ndef where(): return 1", "rank, where()"),
        ("def where(): return rank", "where()"),
        ("rank = 7\ndef where(rank): return rank", "where(rank)"),
        ("rank = 7\ndef where(): return rank", "rank = 3\nwhere()"),
        ("rank = 7\ndef where(): return rank", "def f(i): return where()"),
    ],
)
def test_nothing_is_told_of_rank_where_nobody_lacks_the_notebooks(notebook, before, cell):
    notebook.run(before)
    assert notebook.build(cell).once == ()


def test_a_star_import_hides_names_only_where_nobody_knows_what_it_binds(notebook, monkeypatch):
    (note,) = notebook.build("from os.path import *\njoin('o', 'k'), joinn").notes
    assert "'joinn' is not defined" in note
    assert notebook.build("from not_loaded_yet import *\nanything").notes == ()
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    notebook.run("rgb_to_hsv = 5")  # over which that of the new module is bound
    program = notebook.build("from colorsys import *\nrgb_to_hsv(0, 0, 0)")
    assert (notebook.rank(program), program.notes) == ((0, 0, 0), ())


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("globals().get('low', 0)", 3),
        ("'low' in globals(), 'lower' in globals()", (True, False)),
        ("eval('low + 1')", 4),
        ("frame.query('a > @low').a.tolist()", [4]),
        ("f'{low}'", "3"),
        ("(lambda x=low: x)()", 3),
        ("__vsc_ipynb_file__", "/home/me/a.ipynb"),  # a front end's name
        ("max(5, 3), id, abs(-1), len([])", (2, 4, 1, 1)),  # over built-in ones
    ],
)
def test_names_that_code_asks_for_also_by_text_are_sent(notebook, asked, seen):
    notebook.run(
        """
        import functools, pandas
        from operator import sub as max
        low, frame = 3, pandas.DataFrame({"a": [2, 4]})
        id, python_s, __vsc_ipynb_file__ = 4, len, "/home/me/a.ipynb"
        @functools.wraps(len)
        def len(of): return python_s(of) + 1
        """
    )
    notebook.run(f"def used(): return {asked}")
    assert notebook.launch("def f(i): return used()") == seen
    assert notebook.rank(notebook.build(asked)) == seen


def test_names_in_annotations_are_sent_and_may_be_missing_in_lazy_ones(notebook):
    notebook.run("class Net: pass\nb, c = 2, int")
    got = notebook.launch("def f(i, x: c = b): return x, f.__annotations__")
    assert got == (2, {"x": int})
    source = (
        "from __future__ import annotations\nimport typing\n"
        "def f(i: int) -> Gone: return typing.get_type_hints(g)['x'].__name__\ndef g(x: Net): ..."
    )
    program = notebook.build(source, entry="f")
    assert (notebook.rank(program), program.notes) == ("Net", ())
    program = notebook.build(
        "from __future__ import annotations\nclass A:\n    x: Gone = 1\nA.__annotations__"
    )
    assert (notebook.rank(program), program.notes) == ({"x": "Gone"}, ())


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("a = (n for n in ())\ndef g(): return a", r"`a` \(builtins.generator, .*In\[2\], line 1"),
        ("b = a\n\ndef g(x=b): return 1", r"`g` \(builtins.function, .*In\[2\], line 3"),
    ],
    ids=["a value", "a default of a function"],
)
def test_what_cannot_be_sent_is_refused_with_the_last_line_that_binds_it(notebook, cell, told):
    notebook.run("a = (n for n in ())\ndef g(): return 1")
    notebook.run(cell)
    with pytest.raises(ShippingError, match=rf"Cannot send {told}\) to ranks: it"):
        notebook.build("def f(i): return g()")


def test_a_list_among_the_arguments_has_its_name_too_and_what_cannot_be_sent_its_place(notebook):
    notebook.run("history = []\ndef f(i, held, *rest): return held")
    args = notebook.values["history"], [], 3
    program = build_call(notebook.values["f"], notebook.scope, args=args, name="c")
    namespace = vars(notebook.load(program))
    assert namespace["history"] is namespace[ARGUMENTS][0]
    assert "history" in program.details
    with pytest.raises(ShippingError, match=r"`args\[1\]`") as refused:
        notebook.build("def f(i, a, b): return a", args=(1, (n for n in ())))
    shown = "".join(traceback.format_exception(refused.value))  # where no front end shortens it
    assert shown.count("Traceback") == 1


@pytest.fixture
def package(local):
    """A package of the user's own with modules in it."""
    (local / "pack").mkdir()
    for module, text in {"__init__": "", "sub": "n = 4", "other": "n = 2"}.items():
        (local / "pack" / f"{module}.py").write_text(text)


@pytest.mark.parametrize(
    ("imported", "cell"),
    [
        ("import pack as p\nfrom pack.sub import n as unused", "def f(i): return p.sub.n"),
        ("import pack.sub", "def f(i): return getattr(pack, 'sub').n"),
        (
            "import pack as p\nfrom pack import sub",
            "class A:\n    def get(self): return p.sub.n\nA().get()",
        ),
    ],
    ids=["what a function reads", "what the notebook has imported", "what a class reads"],
)
def test_a_module_inside_a_package_is_imported(notebook, package, imported, cell):
    notebook.run(imported)
    program = notebook.build(cell)
    for name in ("pack", "pack.sub"):
        del sys.modules[name]
    assert notebook.rank(program) == 4


def test_imports_inside_packages_are_repeated_for_their_effect(notebook, package, local):
    (local / "pack" / "plugins.py").write_text("import sys\nsys.modules[__name__].n = 1\n")
    notebook.run("import pack.plugins\nimport pack.other as other")
    assert notebook.build("def f(i): return 1").imports == ("pack.plugins",)


def test_a_name_bound_before_use_and_ipythons_own_builtins_are_not_sent(notebook):
    notebook.run("n = 5\nfile = open('/dev/null')\nk = 1")
    program = notebook.build("n = 1\nwith open('/dev/null') as file: k\nfile, n")
    notebook.values["file"].close()
    assert shipped(program) == {"k"}
    notebook.values.update(open=_modified_open, exit=ExitAutocall())
    program = notebook.build(
        "def f(rank):\n    if rank: exit(1)\n    with open('/dev/null') as file: return file.read()"
    )
    assert shipped(program) == {"f"}
    assert notebook.rank(program) == ""


@pytest.mark.parametrize("cell", ["def f(i): return __file__", "print(__file__)"])
def test_a_notebook_has_no_file_of_its_own_and_may_ask_for_it(notebook, cell):
    notebook.run("def g(): return __file__")
    for source in (cell, "def f(i): return g()"):
        (note,) = notebook.build(source).notes
        assert "name '__file__' is not defined in this cell" in note
    asks = "try:\n    where = __file__\nexcept NameError:\n    where = 'none'\n"
    assert notebook.launch(f"{asks}where") == "none"
    notebook.run("def g():\n" + textwrap.indent(asks, "    ") + "    return where")
    assert notebook.launch("def f(i): return g()") == "none"


INIT = "def init():\n    global model\n    model = [1]\n"
READS = "def f(i):\n    {}\n    return model"
BY_ANOTHER = "def f(i):\n    {}\n    return read()\ndef read(): return model"
IN_A_METHOD = """
class Setup:
    def run(self):
        global model
        model = [1]
"""


@pytest.mark.parametrize("reader", [READS, BY_ANOTHER])
@pytest.mark.parametrize(
    ("cell", "call"),
    [
        (INIT, "init()"),
        (IN_A_METHOD, "Setup().run()"),
        ("import functools\n@functools.cache\n" + INIT, "init()"),
        (INIT + "table = {'init': init}", "table['init']()"),
        ("def init():\n    class A:\n        global model\n        model = [1]", "init()"),
    ],
)
def test_a_name_that_the_notebooks_function_binds_need_not_be_there(notebook, cell, call, reader):
    notebook.run(cell)
    program = notebook.build(reader.format(call), entry="f")
    assert (notebook.rank(program), program.notes) == ([1], ())


def test_so_it_is_with_a_function_that_comes_as_an_argument(notebook):
    notebook.run(INIT)
    launched = "def f(i, go):\n    go()\n    return model"
    assert notebook.launch(launched, notebook.values["init"]) == [1]


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


CALLS = "def g(i):\n    return gone\ndef h(): return g(1)"
#: What they do get to.
READ = {
    "the launched function": ("", "def f(i): return gone", "2:1"),
    "a function inside": ("", "def f(i):\n    def inner(): return gone\n    return inner()", "2:2"),
    "an object": ("", "class A:\n    def __init__(self): gone\ndef f(i): A()", "2:2"),
    "a wrapped function": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def inner(*args): return f(*args)\n    return inner",
        "@deco\ndef f(i): return gone",
        "2:2",
    ),
    "a function of the notebook": (CALLS, "def f(i): return h()", "1:2"),
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


@pytest.mark.parametrize("missing", [*NOT_READ.values(), *READ.values()], ids=[*NOT_READ, *READ])
def test_a_name_that_is_missing_is_told_and_raises_where_ranks_get_to_it(notebook, missing):
    cell, launched, place = missing
    notebook.run(cell)
    program, _ = told(notebook, launched, place)
    with nullcontext() if missing in NOT_READ.values() else pytest.raises(NameError):
        assert notebook.rank(program) == "ok"


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
    its = "is IPython history, which ranks do not get. Name the value. A rank that reaches that"
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
        "def f(i):\n    vars().update()\n    globals().update(gone='ok')\n    return gone",
        "exec(\"gone = 'ok'\")\ndef f(i): return gone",
        "def f(i):\n    try:\n        return gone\n    except NameError:\n        return 'ok'",
        "def f(i):\n    return 'ok'\nclass A:\n    def g(self) -> 'Gone': ...",
        "from os.path import *\ndef f(i): return join('o', 'k').replace('/', '')",
        "def f(i):\n    global made\n    made = 'ok'\n    return g()\ndef g(): return made",
    ],
)
def test_a_name_that_is_looked_for_or_bound_elsewhere_or_late_is_not_told(notebook, launched):
    program = notebook.build(launched, entry="f")
    assert not program.notes
    assert notebook.rank(program) == "ok"
