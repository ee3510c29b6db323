"""The classes and functions that are sent with a value."""

from __future__ import annotations

import pytest

from tests.support.notebook_double import opened, shipped

notebook = pytest.fixture(opened)


def test_the_class_of_an_instance_is_sent_by_reference(notebook):
    notebook.run(
        "class Net:\n    def __init__(self): self.w = scale * 2\n    def g(self): return 1"
    )
    notebook.values["scale"] = 2
    notebook.run("model = Net()")
    source = "def f(i): return model.w, model.g(), type(model).__module__"
    program = notebook.build(source)
    assert "Net" in program.defines
    assert notebook.rank(program) == (4, 1, "__main__")


def test_classes_are_found_in_containers_slots_and_partials(notebook):
    notebook.run(
        """
        import functools
        class A:
            def g(self): return 'a'
        class B:
            __slots__ = 'inner'
        def h(x): return x.g()
        b = B()
        b.inner = ({'k': [A()]},)
        p = functools.partial(h, 1)
        loop = [b]
        loop.append(loop)
        """
    )
    program = notebook.build("def f(i): return loop[0].inner[0]['k'][0].g(), p.func")
    assert {"A", "B", "h"} <= set(program.defines)
    assert notebook.rank(program)[0] == "a"


def test_the_search_for_classes_does_not_call_properties(notebook):
    notebook.run(
        """
        class Trap:
            @property
            def boom(self): raise SystemExit('called')
            def __getattr__(self, name): raise SystemExit(name)
            def __reduce__(self): return (Trap, ())
            def __iter__(self): raise SystemExit('iterated')
        trap = Trap()
        """
    )
    assert notebook.build("def f(i): return trap").entry == "f"


def test_an_instance_of_a_redefined_class_keeps_its_class(notebook):
    notebook.run("k = 1\nclass Net:\n    def g(self): return 'old', k\nmodel = Net()")
    notebook.run("class Net:\n    def g(self): return 'new', k")
    assert notebook.launch("def f(i): return model.g(), Net().g()") == (("old", 1), ("new", 1))


def test_lambdas_and_closures_are_sent_by_value(notebook):
    notebook.run(
        "k = 3\ng = lambda x: x * k\ndef make(n):\n    return lambda x: x + n\nh = make(5)"
    )
    assert notebook.launch("def f(i): return g(2), h(1)") == (6, 6)


def test_a_name_used_only_as_an_attribute_is_not_sent(notebook):
    notebook.run("model = 1\nx = 2\ng = lambda o: o.model + x")
    assert shipped(notebook.build("def f(i): return g")) == {"g", "x"}


def test_a_huge_container_is_searched_in_bounded_time(notebook):
    notebook.run("class A:\n    n = 1\nhuge = [A()] + [0] * 5_000_000\nhuge.append(huge[0])")
    program = notebook.build("def f(i): return 1, huge")
    assert "A" in program.defines


def test_classes_of_namedtuples_and_enums_are_sent_by_reference(notebook):
    notebook.run(
        "import enum\nfrom collections import namedtuple\n"
        "P = namedtuple('P', 'x')\nclass E(enum.Enum):\n    A = 1\nv = [P(1), E.A]"
    )
    program = notebook.build("def f(i): return type(v[0]) is P and v[1] is E.A")
    assert {"P", "E"} <= set(program.defines)
    assert notebook.rank(program)


def test_a_nested_class_is_sent_with_its_outer_class(notebook):
    notebook.run("class O:\n    class I:\n        n = 1\nv = O.I()")
    assert notebook.launch("def f(i): return type(v) is O.I and v.n") == 1
