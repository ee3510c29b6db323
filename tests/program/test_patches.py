"""Attributes set on a class or function after its definition are sent; no others are."""

from __future__ import annotations

import pytest

from tests.support.notebook_double import opened, shipped

notebook = pytest.fixture(opened)


def test_a_default_keeps_its_original_value(notebook):
    notebook.run("n = 5\ndef g(x=n, y=[1], *, k=n, z=1): return x, k\nn = 7")
    assert notebook.launch("def f(i): return g()") == (5, 5)


def test_an_attribute_set_on_a_function_is_kept(notebook):
    notebook.run("def g(): return g.calls\ng.calls = 3")
    assert notebook.launch("def f(i): return g()") == 3


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ("def new(self): return 'new'\nNet.g = new", ("new", 1)),
        ("Net.g = lambda self: self.tag", ("tag", 1)),
        ("Net.n = 5", ("old", 5)),
        ("Net.n = [1, [2]]", ("old", [1, [2]])),
        ("Net.tag = 'added'\nNet.g = lambda self: self.tag", ("added", 1)),
        ("def made(v):\n    return lambda self: v\nNet.g = made('closed')", ("closed", 1)),
        ("Net.other = Net.g\nNet.g = lambda self: self.other()", ("old", 1)),
        ("Net.g = staticmethod(lambda: 's')", ("s", 1)),
        ("Net.g = property(lambda self: lambda: 'p')", ("p", 1)),
    ],
)
def test_a_changed_class_is_sent_as_it_is_now(notebook, patch, expected):
    notebook.run("class Net:\n    n = 1\n    tag = 'tag'\n    def g(self): return 'old'")
    notebook.run("model = Net()")
    notebook.run(patch)
    assert notebook.launch("def f(i): return model.g(), Net.n") == expected


def test_an_unchanged_class_is_not_patched(notebook):
    notebook.run(
        """
        import functools, dataclasses
        import enum
        def extended(cls):
            def extra(self): return 1
            cls.extra = extra
            return cls
        class E(enum.IntEnum):
            A = 1
        @extended
        @functools.total_ordering
        @dataclasses.dataclass(order=False)
        class P:
            x: int = 1
            @functools.cached_property
            def c(self): return 1
            @classmethod
            def make(cls): return cls()
            __count = 0
            def __own(self): return 1
            def __lt__(self, other): return self.x < other.x
        """
    )
    program = notebook.build("def f(i): return P.make() >= P() and E.A")
    assert not shipped(program)
    assert notebook.rank(program)
