"""Names that statements bind and read, also compared with Python's symbol tables."""

import ast
import symtable
import sys
import textwrap
from pathlib import Path

import pytest

from xla_nb.program.cell_text import Cell, Cells
from xla_nb.program.names import bindings, names_in, newest


def names(source: str):
    return names_in(ast.parse(textwrap.dedent(source)).body)


NEWER = pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")


@pytest.mark.parametrize(
    ("source", "now", "later"),
    [
        ("a += 1", {"a"}, set()),
        ("del a", {"a"}, set()),
        ("a = 1\ndel a\na", {"a"}, set()),
        ("(a := b) + a", {"b"}, set()),
        ("[(y := x) for x in a]\ny", {"a", "y"}, set()),
        ("[t for t[i] in a]", {"a", "t", "i"}, set()),
        ("for i in a: i + b", {"a", "b"}, set()),
        ("try: a\nexcept E as e: e\ne", {"a", "E", "e"}, set()),
        ("from a import b as c, d\nb, c, d", {"b"}, set()),
        ("match a:\n case {'k': v, **rest}: v, rest\n case [x, *y] | C(x, y) as z: x, y, z",
         {"a", "C"}, set()),
        ("def f(x, y=a, *z, k=b, **w): return x, y, z, k, w, c", {"a", "b"}, {"c"}),
        ("@d\ndef f(x: A) -> B: pass", {"d", "A", "B"}, set()),
        ("def f():\n global g\n g = a\n g", set(), {"a", "g"}),
        ("class A(B, metaclass=M, k=v):\n x = y\n z = x\n def f(self): return x",
         {"B", "M", "v", "y"}, {"x"}),
        ("class A:\n x = x", {"x"}, set()),
        ("class A:\n x = 1\n y = [x for _ in x]", {"x"}, set()),
        ("x: A\nx", {"A", "x"}, set()),
        # A function needs names that may be unbound when it is called.
        ("n = 1\ndef f(): return n", set(), set()),
        ("def f(): return n\nn = 1\nf()", set(), set()),
        ("def f(): return n\nn = g()", {"g"}, {"n"}),
        ("def f(): return n\nf()\nn = 1", set(), {"n"}),
        ("def f(): return n\nif a: n = 1", {"a"}, {"n"}),
        ("def f(): return h()\ndef h(): return f()\nf()", set(), set()),
        ("class A:\n  def f(self): return A, B\nclass B: pass\nA().f()", set(), set()),
        ("with a:\n  def f(): return n\n  f()\n  n = 1", {"a"}, {"n"}),
        ("x = list(map(lambda y: x, z))", {"list", "map", "z"}, {"x"}),
        # Type parameters have their own scope.
        *(pytest.param(*case, marks=NEWER) for case in [
            ("def f[T: A](x: T) -> B: return T, c", {"B"}, {"A", "c"}),
            ("class G[T](B[T]):\n x: T", {"B"}, set()),
            ("type X[T] = dict[T, A]\nX", set(), {"dict", "A"}),
            ("class A:\n class I: pass\n def f[T](self, i: I): pass", set(), set()),
        ]),
    ],
)  # fmt: skip
def test_names_read_now_and_later(source, now, later):
    found = names(source)
    assert (set(found.now), set(found.later)) == (now, later)


#: Statements, and the names that they may read while unbound.
UNBOUND = {
    "if a: b = 1\nelif c: b = 2\nelse: b = 3\nb": {"a", "c"},
    "if a: b = 1\nelif c: b = 2\nb": {"a", "c", "b"},
    "c and (b := c)\nb": {"c", "b"},
    "with a as c, c.d as e:\n  with e: b = 1\nb": {"a"},
    "import x\nwith x.suppress(E): b = 1\nb": {"E", "b"},
    "async for b in a: b\nb": {"a", "b"},
    "try: b = a\nexcept E: pass\nb": {"a", "E", "b"},
    "try: import b\nexcept E: b = None\nb": {"E"},
    "try: a\nexcept E: raise\nelse: b = 1\nb": {"a", "E"},
    "try: a\nexcept E: b\nelse: b = 1": {"a", "E", "b"},
    "try: a\nfinally: b = 1\nb": {"a"},
    "for i in a:\n  try: a\n  except E: b\n  b = 1": {"a", "E", "b"},
    "for i in a:\n  if i: b = 1; break\nelse: b = 2\nb": {"a"},
    "for i in a:\n  for j in i: b = j\n  b": {"a", "b"},
    "for i in a:\n  if i: continue\n  b = 1\nelse: b\ni": {"a", "b", "i"},
    "while a: b = 1\nb": {"a", "b"},
    "while True:\n  b = 1\n  if b: break\nb": set(),
    "match a:\n  case 1: b = 1\n  case _: b = 2\nb": {"a"},
    "for b in a:\n  class A:\n    c = b\n    d = c": {"a"},
    "a = 1\nclass A:\n  del a": set(),
    "x = " + " + ".join(f"n{n}" for n in range(300)): {f"n{n}" for n in range(300)},
    "if a:\n" + "  b = c\n" * 300 + "else: d\nb": {"a", "b", "c", "d"},
    "if a: b = 1\n" + "elif a: b = 1\n" * 600 + "else: c\nb": {"a", "b", "c"},
}


@pytest.mark.parametrize(("source", "unbound"), UNBOUND.items(), ids=range(len(UNBOUND)))
def test_name_counts_as_bound_only_if_all_paths_bind_it(source, unbound):
    assert names(source).now.keys() == unbound


LIBRARY = Path(ast.__file__).parent
FILES = [
    *("argparse", "ast", "dataclasses", "enum", "inspect", "typing", "tarfile", "zipfile"),
    *("functools", "contextlib", "asyncio/tasks", "logging/__init__", "test/test_scope"),
]


@pytest.mark.parametrize("file", [f for f in FILES if (LIBRARY / f"{f}.py").exists()])
def test_names_agree_with_pythons_symbol_tables(file):
    """Compares the names that the file never binds."""
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
    implicit = {"__class__", "__name__"} | inlined
    read = {*found.now, *found.later, *found.hints}
    quoted = {name for name in found.hints if name not in expected}
    assert read - found.binds - quoted - implicit == expected - found.binds - implicit


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("a = b = c.d = 1", {"a", "b"}),
        ("import a.b, c as d", {"a", "d"}),
        ("from a import b, c as d", {"b", "d"}),
        ("try: pass\nexcept E as e: f = 1", {"e", "f"}),
        ("def f(a=(w := 1)):\n    inner = 1", {"f", "w"}),
        ("[(w := x) for x in y]", {"w"}),
        ("match a:\n    case [x, *y]: pass\n    case {**z} as t: pass", {"x", "y", "z", "t"}),
        ("lambda: (w := 1)", set()),
        ("x: (y := int)", {"y"}),
        ("if y:\n    global x\n    x = [1]", {"x"}),
        ("class C:\n    class D:\n        global z\n        def z(self): pass", {"C", "z"}),
    ],
)
def test_bindings_lists_names_bound_by_statements(source, bound):
    assert bindings(compile(source, "", "exec", dont_inherit=True)) == bound


def test_newest_binding_is_the_last_one_in_the_last_cell():
    texts = "a = 1\na = 2", "a = 3\na += 1\nb = 1", "def f():\n    global a\n    a = 5", "1+"
    cells = Cells([Cell(f"cell {n}", text) for n, text in enumerate(texts)])
    found = newest(cells, "a")
    assert found is not None and (found.cell.label, found.node.lineno) == ("cell 1", 2)
    assert newest(cells, "missing") is None
