"""Names, statements and the source of live code, read from text alone."""

from __future__ import annotations

import ast
import linecache
import symtable
import sys
import textwrap
from pathlib import Path

import pytest

from xla_nb.errors import ProgramError
from xla_nb.program.cells import (
    Cell,
    Cells,
    Statement,
    bindings,
    future_flags,
    imported_modules,
    is_main_guard,
    names_in,
    parse,
    parsed,
    star_names,
    without,
)


def names(source: str, **options: bool):
    return names_in(ast.parse(textwrap.dedent(source)).body, **options)


# --- what is read, and when -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "now", "later"),
    [
        ("a", {"a"}, set()),
        ("a = b", {"b"}, set()),
        ("a = 1\na", set(), set()),
        ("a += 1", {"a"}, set()),
        ("del a", {"a"}, set()),
        ("a = 1\ndel a\na", {"a"}, set()),
        ("f'{a!r:{b}}'", {"a", "b"}, set()),
        ("(a := b) + a", {"b"}, set()),
        ("[x + a for x in b if c]", {"a", "b", "c"}, set()),
        ("[(y := x) for x in a]\ny", {"a"}, set()),
        ("[x for x in x]", {"x"}, set()),
        ("{k: v for k, v in a}", {"a"}, set()),
        ("[t for t[i] in a]", {"a", "t", "i"}, set()),
        ("for i in a: i + b", {"a", "b"}, set()),
        ("with a as b, b as c: c", {"a"}, set()),
        ("try: a\nexcept E as e: e\ne", {"a", "E", "e"}, set()),
        ("try: a\nexcept* E as e: e", {"a", "E"}, set()),
        ("import a.b, c as d\na, d, c", {"c"}, set()),
        ("from a import b as c, d\nb, c, d", {"b"}, set()),
        ("match a:\n case {'k': v, **rest}: v, rest\n case [x, *y] | C(x) as z: x, y, z",
         {"a", "C"}, set()),
        ("if a: b = 1\nb", {"a", "b"}, set()),
        ("if a: b = 1\nelse: b = 2\nb", {"a"}, set()),
        ("def f(x, y=a, *z, k=b, **w): return x, y, z, k, w, c", {"a", "b"}, {"c"}),
        ("@d\ndef f(x: A) -> B: pass", {"d", "A", "B"}, set()),
        ("def f():\n global g\n g = a\n g", set(), {"a", "g"}),
        ("def f():\n x = 1\n def h():\n  nonlocal x\n  x = a\n  return x", set(), {"a"}),
        ("def f():\n x: Never = 1", set(), set()),
        ("lambda x, y=a: x + y + b", {"a"}, {"b"}),
        ("class A(B, metaclass=M, k=v):\n x = y\n z = x\n def f(self): return x",
         {"B", "M", "v", "y"}, {"x"}),
        ("class A:\n x = x", {"x"}, set()),
        ("class A:\n x = 1\n y = [x for _ in x]", {"x"}, set()),
        ("class A:\n def f(self): return __class__, super()", set(), {"super"}),
        ("class A:\n def f(self, __p): return __g, __p", set(), {"_A__g"}),
        ("def f(): return f", set(), {"f"}),
        ("async def f():\n async for i in a: i\n async with b as c: c", set(), {"a", "b"}),
        ("x: A = 1", {"A"}, set()),
        ("x: A\nx", {"A", "x"}, set()),
    ],
)  # fmt: skip
def test_names_read_while_running_and_when_called(source, now, later):
    found = names(source)
    assert (set(found.now), set(found.later)) == (now, later)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize(
    ("source", "now", "later"),
    [
        ("def f[T: A](x: T) -> B: return T, c", {"B"}, {"c"}),
        ("class G[T](B[T]):\n x: T", {"B"}, set()),
        ("type X[T] = dict[T, A]\nX", set(), set()),
        ("class A:\n class I: pass\n def f[T](self, i: I): pass", set(), set()),
    ],
)
def test_type_parameters_are_their_own_scope(source, now, later):
    found = names(source)
    assert (set(found.now), set(found.later)) == (now, later)


def test_annotations_kept_as_text_are_hints():
    found = names("def f(x: A, y: 'B.c | list[C]') -> D: pass", lazy_annotations=True)
    assert (set(found.now), set(found.hints)) == (set(), {"A", "B", "C", "D", "list"})


def test_names_under_except_name_error_are_hints():
    found = names("try:\n    a\nexcept (ValueError, NameError):\n    b")
    assert (set(found.hints), set(found.now)) == ({"a"}, {"b", "ValueError", "NameError"})


def test_each_name_has_the_line_of_its_first_use():
    assert names("\na\nb\na").now == {"a": 2, "b": 3}


def test_dotted_names_and_stars_are_noted():
    found = names("from m import *\ntorch.utils.data.X(torch.nn)")
    assert found.stars == ["m"]
    assert {"torch.utils.data.X", "torch.utils.data", "torch.nn"} <= found.paths


def test_what_functions_set_through_global_is_known():
    assert names("def f():\n    global n\n    n = 1").sets == {"n"}


LIBRARY = Path(ast.__file__).parent
FILES = [
    *("argparse", "ast", "dataclasses", "enum", "inspect", "typing", "tarfile", "zipfile"),
    *("functools", "contextlib", "asyncio/tasks", "logging/__init__", "test/test_scope"),
]


@pytest.mark.parametrize("file", [f for f in FILES if (LIBRARY / f"{f}.py").exists()])
def test_names_agree_with_pythons_own_symbol_tables(file):
    """Of every name that the file itself never binds; the compiler is the judge."""
    source = (LIBRARY / f"{file}.py").read_text()
    found = names(source)
    expected: set[str] = set()
    tables = [symtable.symtable(source, file, "exec")]
    for table in tables:
        tables += table.get_children()
        outermost = table is tables[0]
        expected |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (outermost or symbol.is_global())
        }
    inlined = {  # Python 3.12 counts the targets of a module's comprehensions as referenced
        node.id
        for comprehension in ast.walk(ast.parse(source))
        if isinstance(comprehension, ast.comprehension)
        for node in ast.walk(comprehension.target)
        if isinstance(node, ast.Name)
    }
    implicit = {"__class__"} | inlined
    read = {*found.now, *found.later, *found.hints}
    quoted = {name for name in found.hints if name not in expected}
    assert read - found.binds - quoted - implicit == expected - found.binds - implicit


# --- what is bound ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("a = b = c.d = 1", {"a", "b"}),
        ("(a, [b, *c]) = x", {"a", "b", "c"}),
        ("import a.b, c as d", {"a", "d"}),
        ("from a import b, c as d", {"b", "d"}),
        ("for i in a:\n    x = 1", {"i", "x"}),
        ("with a as b: pass", {"b"}),
        ("try: pass\nexcept E as e: f = 1", {"e", "f"}),
        ("def f(a=(w := 1)):\n    inner = 1", {"f", "w"}),
        ("class A:\n    inner = 1", {"A"}),
        ("[(w := x) for x in y]", {"w"}),
        ("match a:\n    case [x, *y]: pass\n    case {**z} as t: pass", {"x", "y", "z", "t"}),
        ("lambda: (w := 1)", set()),
    ],
)
def test_bindings(source, bound):
    assert bindings(ast.parse(source).body) == bound


# --- text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "dropped", "left"),
    [
        ("a\nb\nc\n", [1], "a\n\nc\n"),
        ("a = (1,\n  2)\nb\n", [0], "\n\nb\n"),
        ("@d\ndef f(): pass\nb\n", [0], "\n\nb\n"),
        ("a; b; c\n", [1], "a; pass; c\n"),
        ("a; b\n", [0, 1], "pass; pass\n"),
        ("a  # why\nb\n", [0], "\nb\n"),
        ("é = 'ü'; b\n", [1], "é = 'ü'; pass\n"),
        ("x = '''\n'''; b\n", [0], "\npass; b\n"),
    ],
)
def test_dropped_statements_leave_the_other_lines_where_they_are(source, dropped, left):
    nodes = ast.parse(source).body
    text = without(source, [nodes[index] for index in dropped])
    assert text == left
    ast.parse(text)


def test_a_section_is_the_statement_with_its_decorators_and_first_line():
    cell = Cell("c", "x = 1\n\n@d(\n  1)\ndef f():\n    pass\n\ny = 2")
    section = Statement(cell, parse(cell).body[1]).section
    assert (section.first_line, section.text) == (3, "@d(\n  1)\ndef f():\n    pass\n")


def test_a_section_of_a_statement_that_shares_its_line_is_that_statement_alone():
    cell = Cell("c", "a = 1; b = 2")
    assert [Statement(cell, node).section.text for node in parse(cell).body] == [
        "a = 1\n",
        "b = 2\n",
    ]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("__name__ == '__main__'", True),
        ("'__main__' == __name__", True),
        ("__name__ == 'x'", False),
        ("name == '__main__'", False),
        ("True", False),
    ],
)
def test_main_guard(test, expected):
    assert is_main_guard(ast.parse(f"if {test}: pass").body[0]) is expected


def test_parse_tells_what_only_the_compiler_sees():
    with pytest.raises(ProgramError, match="c, line 1: 'await' outside function"):
        parse(Cell("c", "await x"))


def test_parsed_takes_a_cell_that_does_not_parse_for_empty():
    assert parsed(Cell("c", "1 +")).body == []


def test_imported_modules_in_order_and_once():
    tree = ast.parse("from __future__ import division\nimport b.c, a\nfrom b.c import d\nimport a")
    assert imported_modules(tree.body) == ["b.c", "a"]


def test_star_names_of_a_loaded_module_only():
    assert "join" in (star_names("os.path") or set())
    assert star_names("not.loaded") is None


def test_future_flags_make_annotations_text():
    flags = future_flags(["annotations"])
    names_: dict[str, object] = {}
    exec(compile("def f(x: Gone): pass", "c", "exec", flags, dont_inherit=True), names_)
    assert names_["f"].__annotations__ == {"x": "Gone"}  # type: ignore[attr-defined]


# --- the source of live code ------------------------------------------------------------------


def live(source: str, filename: str = "/tmp/ipykernel_test/live.py"):
    names_: dict[str, object] = {}
    exec(compile(source, filename, "exec", dont_inherit=True), names_)
    return names_["f"].__code__  # type: ignore[attr-defined]


FILE = "/tmp/ipykernel_test/live.py"


def test_code_is_found_in_the_cell_compiled_under_its_file_name():
    cells = Cells([Cell("one", "def f(): return 1", FILE), Cell("two", "def f(): return 1", "x")])
    found = cells.holding(live("def f(): return 1"))
    assert found is not None and found.cell.label == "one"


def test_a_cell_run_again_is_known_by_its_newest_label():
    source = "def f(): return 1"
    found = Cells([Cell("old", source, FILE), Cell("new", source, FILE)]).holding(live(source))
    assert found is not None and found.cell.label == "new"


@pytest.mark.parametrize("other", ["def f(): return 2", "\ndef f(): return 1", "def f(): 1 +"])
def test_code_is_not_found_where_the_text_is_another(other):
    assert Cells([Cell("one", other, FILE)]).holding(live("def f(): return 1")) is None


def test_code_of_a_whole_file_is_found_as_well_as_that_of_single_statements():
    source = "import math\ndef f(): return math.floor(2)"
    node = ast.parse(source).body[1]
    alone: dict[str, object] = {}
    exec(compile(ast.Module([node], []), FILE, "exec", dont_inherit=True), alone)
    cells = Cells([Cell("one", source, FILE)])
    assert cells.holding(live(source)) is not None
    assert cells.holding(alone["f"].__code__) is not None  # type: ignore[attr-defined]


def test_code_is_found_by_linecaches_text_and_takes_that_cells_label(monkeypatch):
    source = "def f(): return 1\n"
    monkeypatch.setitem(linecache.cache, FILE, (len(source), None, [source], FILE))
    found = Cells([Cell("one", source)]).holding(live(source))
    assert found is not None and found.cell.label == "one"
    alone = Cells([]).holding(live(source))
    assert alone is not None and alone.cell.label == FILE


def test_the_newest_binding_is_the_last_one_of_the_last_cell():
    cells = Cells(
        [Cell("one", "a = 1\na = 2"), Cell("two", "a = 3\na += 1\nb = 1"), Cell("x", "1+")]
    )
    found = cells.newest("a")
    assert found is not None and (found.cell.label, found.node.lineno) == ("two", 2)
    assert cells.newest("missing") is None
