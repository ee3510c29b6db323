"""Names that a cell needs from the notebook. Missing names are bound by code on ranks, or reported
with their line."""

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


def test_notebook_functions_get_the_ranks_own_rank_with_a_note(notebook):
    (note,) = notebook.build("def f(i): return rank").notes
    assert re.search(r"`rank` is not defined.*Make it a parameter", note)
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
def test_no_note_about_rank_if_no_notebook_value_is_hidden(notebook, before, cell):
    notebook.run(before)
    assert notebook.build(cell).once == ()


def test_star_import_hides_missing_names_only_if_its_names_are_unknown(notebook, monkeypatch):
    (note,) = notebook.build("from os.path import *\njoin('o', 'k'), joinn").notes
    assert "`joinn` is not defined" in note
    assert notebook.build("from not_loaded_yet import *\nanything").notes == ()
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    notebook.run("rgb_to_hsv = 5")  # rebound by the star import
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
        ("__vsc_ipynb_file__", "/home/me/a.ipynb"),  # set by a front end
        ("max(5, 3), id, abs(-1), len([])", (2, 4, 1, 1)),  # these shadow built-ins
    ],
)
def test_names_read_directly_or_by_string_are_sent(notebook, asked, seen):
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


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ("globals()[name]", "`globals()` has"),
        ("name in globals()", "`globals()` has"),
        ("globals().items()", "`globals()` has"),
        ("eval(name)", "`eval` finds"),
        ("globals()['low'], 'low' in globals(), globals().get('low'), eval('low')", ""),
        ("model.eval()", ""),
    ],
)
def test_note_reports_lookups_of_names_that_are_not_in_the_code(notebook, asked, note):
    notebook.run(f"model = low = 3\ndef used(name): return {asked}")
    notes = notebook.build("def f(i): return used('low')").once
    assert [note in one for one in notes] == ([True] if note else [])


@pytest.mark.parametrize(
    "code",
    [
        "import __main__\ndef told(name): return getattr(__main__, name, 0)",
        "import sys\ndef told(name): return vars(sys.modules['__main__']).get(name)",
        "import sys\ndef told(name): return sys._getframe(1).f_globals.get(name)",
    ],
)
def test_note_reports_helpers_that_look_names_up_in_the_notebook(notebook, local, code):
    (local / "looks.py").write_text(code)
    notebook.run("import looks\nDEBUG = True")
    (note,) = notebook.build("def f(i): return looks.told('DEBUG')").notes
    assert note.startswith("code that looks names up in `__main__` or in a frame finds on ranks ")


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
    ids=["a value", "a function default"],
)
def test_unsendable_value_is_refused_with_the_last_line_that_binds_it(notebook, cell, told):
    notebook.run("a = (n for n in ())\ndef g(): return 1")
    notebook.run(cell)
    with pytest.raises(ShippingError, match=rf"Cannot send {told}\) to ranks: it"):
        notebook.build("def f(i): return g()")


def test_list_argument_keeps_its_name_and_unsendable_argument_its_position(notebook):
    notebook.run("history = []\ndef f(i, held, *rest): return held")
    args = notebook.values["history"], [], 3
    program = build_call(notebook.values["f"], notebook.scope, args=args, name="c")
    namespace = vars(notebook.load(program))
    assert namespace["history"] is namespace[ARGUMENTS][0]
    assert "history" in program.details
    with pytest.raises(ShippingError, match=r"`args\[1\]`") as refused:
        notebook.build("def f(i, a, b): return a", args=(1, (n for n in ())))
    shown = "".join(traceback.format_exception(refused.value))  # in full, as without a front end
    assert shown.count("Traceback") == 1


@pytest.fixture
def package(local):
    """An own package with submodules."""
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
    ids=["read by a function", "imported by the notebook", "read by a class"],
)
def test_submodule_of_a_package_is_imported(notebook, package, imported, cell):
    notebook.run(imported)
    program = notebook.build(cell)
    for name in ("pack", "pack.sub"):
        del sys.modules[name]
    assert notebook.rank(program) == 4


def test_submodule_imports_are_repeated_for_their_side_effects(notebook, package, local):
    (local / "pack" / "plugins.py").write_text("import sys\nsys.modules[__name__].n = 1\n")
    notebook.run("import pack.plugins\nimport pack.other as other")
    assert notebook.build("def f(i): return 1").parcel.imports == ("pack", "pack.plugins")


def test_names_bound_before_use_and_ipython_builtins_are_not_sent(notebook):
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
def test_dunder_file_is_reported_missing_and_can_be_tested_for(notebook, cell):
    notebook.run("def g(): return __file__")
    for source in (cell, "def f(i): return g()"):
        (note,) = notebook.build(source).notes
        assert "`__file__` is not defined in this cell" in note
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
def test_names_bound_by_notebook_functions_are_not_reported_missing(notebook, cell, call, reader):
    notebook.run(cell)
    program = notebook.build(reader.format(call), entry="f")
    assert (notebook.rank(program), program.notes) == ([1], ())


def test_function_passed_as_argument_can_bind_a_global(notebook):
    notebook.run(INIT)
    launched = "def f(i, go):\n    go()\n    return model"
    assert notebook.launch(launched, notebook.values["init"]) == [1]


def build_with_note(notebook, launched, place):
    """Build a program, and return it with its one note, which reports a missing name at `place`:
    "2:3" is the third line of the second cell."""
    program = notebook.build(launched, entry="f" if "def f(" in launched else None)
    (note,) = program.notes
    cell, _, line = place.partition(":")
    said = r"`\w+` is not defined in this cell or in the notebook\. (.* )?A rank that"
    assert re.match(rf"Cell In\[{cell}\], line {line}( of `[\w.<>]+`)?: {said}", note)
    return program, note


#: Missing names that ranks do not reach: notebook cell, launched cell, place in the note.
NOT_READ = {
    "a method that is never called": (
        "class M:\n    def run(self): return 'ok'\n    def debug(self): return gone\nm = M()",
        "def f(i): return m.run()",
        "1:3 of `M.debug`",
    ),
    "a branch not taken": ("", "def f(i):\n    if i: gone\n    return 'ok'", "2:2 of `f`"),
    "an exception handler": (
        "",
        "def f(i):\n    try: return 'ok'\n    except ValueError: print(gone)",
        "2:3 of `f`",
    ),
    "a name that is local elsewhere": (
        "def g(x=0):\n    if x: gone\ndef gone_too(): return absent",
        "def f(i):\n    gone, gone_too = 'ok', g\n    gone_too()\n    return gone",
        "1:2 of `g`",
    ),
}


CALLS = "def g(i):\n    return gone\ndef h(): return g(1)"
#: Missing names that ranks reach.
READ = {
    "the launched function": ("", "def f(i): return gone", "2:1"),
    "a nested function": ("", "def f(i):\n    def inner(): return gone\n    return inner()", "2:2"),
    "a constructor": ("", "class A:\n    def __init__(self): gone\ndef f(i): A()", "2:2"),
    "a wrapped function": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def inner(*args): return f(*args)\n    return inner",
        "@deco\ndef f(i): return gone",
        "2:2",
    ),
    "a notebook function": (CALLS, "def f(i): return h()", "1:2"),
    "a global bound by a function that is not sent": (INIT, "def f(i): return model", "2:1"),
    "a name local to another function": (
        "def g():\n    model = 1\n    return model",
        "def f(i): return g(), model",
        "2:1",
    ),
    "a global bound in another namespace": (
        f"ns = {{}}\nexec({INIT!r}, ns)\ninit = ns['init']",
        "def f(i):\n    init()\n    return model",
        "2:3",
    ),
}


@pytest.mark.parametrize("missing", [*NOT_READ.values(), *READ.values()], ids=[*NOT_READ, *READ])
def test_missing_name_is_noted_and_raises_only_if_reached(notebook, missing):
    cell, launched, place = missing
    notebook.run(cell)
    program, _ = build_with_note(notebook, launched, place)
    with nullcontext() if missing in NOT_READ.values() else pytest.raises(NameError):
        assert notebook.rank(program) == "ok"


def test_note_names_the_cell_that_deleted_or_assigns_a_name_and_similar_names(notebook):
    notebook.run("data = {}\nlosses = []")
    notebook.run("del data")
    _, note = build_with_note(notebook, "def f(i): return data", "3:1")
    assert "notebook. Cell In[2] deleted it. A rank" in note
    _, note = build_with_note(notebook, "def f(i): return loses", "4:1")
    assert "Did you mean losses?" in note
    notebook.cells.append(Cell("Cell In[5]", "lost = 3\nlost"))  # executed on ranks
    _, note = build_with_note(notebook, "def f(i): return lost", "6:1")
    assert "Cell In[5] assigns it, but the notebook does not" in note


def test_note_says_that_ranks_do_not_get_ipython_history(notebook):
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
def test_names_guarded_or_bound_by_other_means_are_not_reported_missing(notebook, launched):
    program = notebook.build(launched, entry="f")
    assert not program.notes
    assert notebook.rank(program) == "ok"
