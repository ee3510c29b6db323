"""Which names statements bind and read, compared with Python's own symbol tables."""

from __future__ import annotations

import ast
import symtable
import sys
import textwrap
from pathlib import Path

import pytest

from xla_nb.program.bindings import bindings
from xla_nb.program.names import names_in


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
def test_names_read_now_and_later(source, now, later):
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
def test_type_parameters_have_their_own_scope(source, now, later):
    found = names(source)
    assert (set(found.now), set(found.later)) == (now, later)


def test_annotations_kept_as_text_are_hints():
    found = names("def f(x: A, y: 'B.c | list[C]') -> D: pass", lazy_annotations=True)
    assert (set(found.now), set(found.hints)) == (set(), {"A", "B", "C", "D", "list"})


def test_names_under_except_name_error_are_hints():
    found = names("try:\n    a\nexcept (ValueError, NameError):\n    b")
    assert (set(found.hints), set(found.now)) == ({"a"}, {"b", "ValueError", "NameError"})


def test_a_name_has_the_line_of_its_first_use():
    assert names("\na\nb\na").now == {"a": 2, "b": 3}


def test_dotted_names_and_star_imports_are_recorded():
    found = names("from m import *\ntorch.utils.data.X(torch.nn)")
    assert found.stars == ["m"]
    assert {"torch.utils.data.X", "torch.utils.data", "torch.nn"} <= found.paths


def test_names_set_through_global_are_recorded():
    assert names("def f():\n    global n\n    n = 1").sets == {"n"}


LIBRARY = Path(ast.__file__).parent
FILES = [
    *("argparse", "ast", "dataclasses", "enum", "inspect", "typing", "tarfile", "zipfile"),
    *("functools", "contextlib", "asyncio/tasks", "logging/__init__", "test/test_scope"),
]


@pytest.mark.parametrize("file", [f for f in FILES if (LIBRARY / f"{f}.py").exists()])
def test_names_agree_with_pythons_own_symbol_tables(file):
    """For every name that the file never binds."""
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
def test_names_bound_by_statements(source, bound):
    assert bindings(ast.parse(source).body) == bound
