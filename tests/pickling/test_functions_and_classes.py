"""Definitions and imports of the notebook are on a rank what they were in the notebook."""

import pytest

#: The cells that define it, an expression that uses it and what that is on a rank.
DEFINED = {
    "a function created by exec": (["exec('def g(): return 9')"], "g()", 9),
    "an object that decorates a function": (
        [
            "class Counting:\n"
            "    def __init__(self, fn): self.fn, self.calls = fn, 0\n"
            "    def __call__(self, x):\n        self.calls += 1\n        return self.fn(x)",
            "@Counting\ndef g(x): return x",
        ],
        "(g(1), g.calls)",
        (1, 1),
    ),
    "a class that extends its former self": (
        ["class A:\n    def g(self): return 1", "class A(A):\n    def h(self): return 2"],
        "(A().g(), A().h())",
        (1, 2),
    ),
    "a class in a class": (
        ["class O:\n    class I:\n        def g(self): return 1"],
        "O.I().g()",
        1,
    ),
    "a local class that took the place of another": (
        [
            "class A:\n    n = 2",
            "def make():\n    class A:\n        n = 1\n    return A\nA = make()",
        ],
        "A.n",
        1,
    ),
    "an exception with slots": (
        [
            "class S(Exception):\n    __slots__ = 'best',\n    def __init__(self, best, more):\n"
            "        super().__init__('s'); self.best, self.more = best, more\ns = S(3, 4)"
        ],
        "(s.best, s.more, s.args)",
        (3, 4, ("s",)),
    ),
}


@pytest.mark.parametrize(("cells", "used", "expected"), DEFINED.values(), ids=DEFINED)
def test_a_definition_is_what_it_is_in_the_notebook(notebook, cells, used, expected):
    for cell in cells:
        notebook.run(cell)
    assert notebook.launch(f"def f(i): return {used}") == expected


@pytest.mark.parametrize(
    ("statement", "expression"),
    [
        ("import os.path", "len(os.path.join('', ''))+2"),
        ("import xml.dom.minidom", "xml.dom.minidom.Node.ATTRIBUTE_NODE"),
        ("import xml.dom.minidom as md", "md.Node.ATTRIBUTE_NODE"),
        ("from xml.dom import minidom", "minidom.Node.ATTRIBUTE_NODE"),
        ("from math import floor as fl", "fl(2.5)"),
        ("from math import *", "floor(2.5)"),
        ("from typing import Optional", "len(Optional[int].__args__)"),
    ],
)
def test_an_import_of_an_earlier_cell_is_repeated(notebook, statement, expression):
    notebook.run(statement)
    assert notebook.launch(f"def f(i): return {expression}") == 2
