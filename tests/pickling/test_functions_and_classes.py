"""What the notebook holds is on a rank what it was in the notebook."""

from __future__ import annotations

import sys

import pytest

from tests.support.notebook_double import importable_folder, opened, shipped
from xla_nb.program.build import Cell

notebook = pytest.fixture(opened)
local = pytest.fixture(importable_folder)


# --- definitions ------------------------------------------------------------------------------


def test_a_function_created_by_exec_is_sent_by_value(notebook):
    notebook.run("exec('def g(): return 9')")
    program = notebook.build("def f(i): return g()")
    assert shipped(program) == {"f", "g"}
    assert notebook.rank(program) == 9


def test_the_live_definition_of_a_redefined_function_is_sent(notebook):
    notebook.run("def g(): return 1")
    notebook.run("def g(): return 2")
    assert notebook.launch("def f(i): return g()") == 2


def test_the_definition_of_a_cell_run_again_is_sent(notebook):
    notebook.run("def g(): return 1")
    notebook.run("def g(): return 2")
    notebook.cells.insert(0, notebook.cells.pop())  # history in any order: the code decides
    assert notebook.launch("def f(i): return g()") == 2


def test_a_definition_that_never_ran_is_not_sent(notebook):
    notebook.run("def g(): return 1")
    notebook.cells.append(Cell("Cell In[2]", "1/0\ndef g(): return 2", "/tmp/x.py"))
    assert notebook.launch("def f(i): return g()") == 1


def test_the_live_one_of_two_definitions_in_a_cell_is_sent(notebook):
    notebook.run("def g(): return 1\nold = g\ndef g(): return 2")
    assert notebook.launch("def f(i): return g(), old()") == (2, 1)


def test_an_alias_is_the_same_function(notebook):
    notebook.run("def g(): return 1\nh = g")
    assert notebook.launch("def f(i): return h is g and h()") == 1


def test_an_alias_of_a_redefined_function_is_sent_by_value(notebook):
    notebook.run("def g(): return 1\nh = g")
    notebook.run("def g(): return 2")
    assert notebook.launch("def f(i): return h(), g()") == (1, 2)


def test_recursive_functions_are_sent(notebook):
    notebook.run("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n and even(n - 1)")
    notebook.run("def fact(n): return n and n * fact(n - 1) or 1")
    assert notebook.launch("def f(i): return even(4), fact(4)") == (True, 24)


def test_a_wrapper_added_later_is_kept(notebook):
    notebook.run(
        """
        import functools
        def twice(fn):
            @functools.wraps(fn)
            def inner(*a): return fn(*a) * 2
            return inner
        def g(): return 2
        g = twice(g)
        """
    )
    assert notebook.launch("def f(i): return g()") == 4


@pytest.mark.parametrize(
    ("decorated", "call", "expected"),
    [
        ("@plain\ndef g(x): return x", "g(1)", 2),
        ("@wrapping\ndef g(x): return x", "g(1)", 2),
        ("@wrapping\n@plain\ndef g(x): return x", "g(1)", 3),
        ("import functools\n@functools.lru_cache(maxsize=None)\ndef g(x): return x", "g(1)", 1),
        ("import functools\n@functools.cache\ndef g(x): return k + x", "g(1)", 11),
        (
            "import contextlib\n@contextlib.contextmanager\ndef g(x): yield x",
            "g(1).__enter__()",
            1,
        ),
        ("@Counting\ndef g(x): return x", "(g(1), g.calls)", (1, 1)),
        (
            "import functools\n@functools.singledispatch\ndef g(x): return 0\n"
            "@g.register\ndef _(x: int): return 8",
            "(g(1), g('a'))",
            (8, 0),
        ),
    ],
)
def test_a_decorated_function_stays_decorated(notebook, decorated, call, expected):
    notebook.run(
        """
        from functools import wraps
        k = 10
        def add(n): return n + one
        one = 1
        def plain(fn):
            return lambda x: add(fn(x))
        def wrapping(fn):
            @wraps(fn)
            def inner(x): return add(fn(x))
            return inner
        class Counting:
            def __init__(self, fn): self.fn, self.calls = fn, 0
            def __call__(self, x):
                self.calls += 1
                return self.fn(x)
        """
    )
    notebook.run(decorated)
    assert notebook.launch(f"def f(i): return {call}") == expected


def test_a_function_registered_with_an_object_stays_registered(notebook):
    notebook.run(
        """
        class Registry:
            def __init__(self): self.all = {}
            def add(self, fn):
                self.all[fn.__name__] = fn
                return fn
        reg = Registry()
        """
    )
    notebook.run("@reg.add\ndef g(): return 6")
    assert notebook.launch("def f(i): return reg.all['g'](), g()") == (6, 6)


# --- imports ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "expression"),
    [
        ("import math", "math.floor(2.5)"),
        ("import os.path", "len(os.path.join('', ''))+2"),
        ("import xml.dom.minidom", "xml.dom.minidom.Node.ATTRIBUTE_NODE"),
        ("import xml.dom.minidom as md", "md.Node.ATTRIBUTE_NODE"),
        ("from xml.dom import minidom", "minidom.Node.ATTRIBUTE_NODE"),
        ("from math import floor", "floor(2.5)"),
        ("from math import floor as fl", "fl(2.5)"),
        ("from math import *", "floor(2.5)"),
        ("from collections import OrderedDict as OD", "len(OD(a=1, b=2))"),
        ("from typing import Optional", "len(Optional[int].__args__)"),
        ("from functools import partial", "partial(int, '2')()"),
    ],
)
def test_an_import_of_an_earlier_cell_is_repeated(notebook, statement, expression):
    notebook.run(statement)
    assert notebook.launch(f"def f(i): return {expression}") == 2


def test_a_local_module_is_imported_again(notebook, local):
    (local / "local_b.py").write_text("def g(): return 'old'")
    notebook.run("from local_b import g")
    program = notebook.build("def f(i): return g()")
    (local / "local_b.py").write_text("def g(): return 'edited'")
    del sys.modules["local_b"]
    sys.path_importer_cache.clear()
    assert notebook.rank(program) == "edited"


def test_data_imported_from_a_module_is_sent_as_it_is_now(notebook, local):
    (local / "local_c.py").write_text("state = {'lr': 1}")
    notebook.run("from local_c import state\nstate['lr'] = 2")
    program = notebook.build("def f(i): return state['lr']")
    del sys.modules["local_c"]
    assert notebook.rank(program) == 2


# --- classes ----------------------------------------------------------------------------------


def test_the_live_definition_of_a_redefined_class_is_sent(notebook):
    notebook.run("class A:\n    def g(self): return 1")
    notebook.run("class A:\n    def g(self): return 2")
    notebook.cells.reverse()
    assert notebook.launch("def f(i): return A().g()") == 2


def test_a_class_may_extend_its_former_self(notebook):
    notebook.run("class A:\n    def g(self): return 1")
    notebook.run("class A(A):\n    def h(self): return 2")
    assert notebook.launch("def f(i): return A().g(), A().h()") == (1, 2)


@pytest.mark.parametrize(
    ("definition", "expression", "expected"),
    [
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = 3", "P().x", 3),
        (
            "from dataclasses import dataclass\n@dataclass(slots=True, frozen=True)\nclass P:\n"
            "    x: int\n    def g(self): return self.x",
            "P(4).g()",
            4,
        ),
        (
            "class S(Exception):\n    __slots__ = 'best',\n    def __init__(self, best, more):\n"
            "        super().__init__('s'); self.best, self.more = best, more\ns = S(3, 4)",
            "(s.best, s.more, s.args)",
            (3, 4, ("s",)),
        ),
        ("import enum\nclass E(enum.Enum):\n    A = 1", "(E(1).name, E.A.value)", ("A", 1)),
        ("from typing import NamedTuple\nclass N(NamedTuple):\n    x: int = 0", "N(2).x", 2),
        ("from collections import namedtuple\nN = namedtuple('N', 'x')", "N(2).x", 2),
        ("class O:\n    class I:\n        def g(self): return 1", "O.I().g()", 1),
        (
            "import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def g(self): ...\n"
            "class B(A):\n    def g(self): return 1",
            "B().g()",
            1,
        ),
        (
            "import typing\nT = typing.TypeVar('T')\nclass G(typing.Generic[T]):\n    n = 1",
            "G[int]().n",
            1,
        ),
    ],
)
def test_classes_of_all_kinds_are_sent(notebook, definition, expression, expected):
    notebook.run(definition)
    assert notebook.launch(f"def f(i): return {expression}") == expected


def test_a_local_class_is_not_mistaken_for_a_top_level_one(notebook):
    notebook.run("class A:\n    n = 2")
    notebook.run("def make():\n    class A:\n        n = 1\n    return A\nA = make()")
    assert notebook.launch("def f(i): return A.n") == 1
