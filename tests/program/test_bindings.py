"""Which names statements bind in their own scope."""

import ast

import pytest

from xla_nb.program.bindings import bindings


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x: int", set()),
        ("x: int = 1", {"x"}),
        ("x: (y := int)", {"y"}),
        ("global x\nx = 1", {"x"}),
        ("if y:\n    global x\n    x = [1]", {"x"}),
        ("class C:\n    global z\n    z = [3]\n    other = 1", {"C", "z"}),
        ("class C:\n    class D:\n        global z\n        def z(self): pass", {"C", "z"}),
    ],
)
def test_what_is_bound_at_the_top_level_or_by_a_class_that_says_global(source, names):
    assert bindings(ast.parse(source).body) == names
