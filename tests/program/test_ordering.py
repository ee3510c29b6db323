"""Definitions and values come after what they need."""

from __future__ import annotations

import pytest

from tests.support.notebook_double import opened

notebook = pytest.fixture(opened)


def test_values_keep_shared_objects(notebook):
    notebook.run("a = [1]\nb = {'a': a}")
    assert notebook.launch("def f(i): return b['a'] is a")


def test_an_instance_of_a_redefined_class_gets_the_new_class(notebook):
    notebook.run("class Net:\n    def g(self): return 'old'\nmodel = Net()")
    source = "class Net:\n    def g(self): return 'new'\ndef f(i): return model.g()"
    assert notebook.launch(source) == "new"


def test_an_instance_used_during_the_redefinition_keeps_the_old_class(notebook):
    notebook.run("class Net:\n    def g(self): return 'old'\nmodel = Net()")
    source = "was = model.g()\nclass Net:\n    def g(self): return 'new'\ndef f(i): return was"
    assert notebook.launch(source) == "old"


def test_bases_metaclasses_and_nested_references_come_first(notebook):
    notebook.run("def tag(): return 't'\nlevel = 2")
    notebook.run("class Meta(type):\n    def __new__(m, *a, **k): return super().__new__(m, *a)")
    notebook.run("class Base(metaclass=Meta, kind=level): n = level\n")
    notebook.run("class Net(Base):\n    t = tag()\n    def g(self): return super().__repr__()[:1]")
    assert notebook.launch("def f(i): return Net.t, Net.n, Net().g()") == ("t", 2, "<")


def test_an_instance_of_a_class_redefined_by_statements_keeps_the_old_class(notebook):
    notebook.run("class A:\n    def g(self): return 'old'\na = A()")
    source = "n = rank\nclass A:\n    k = n\n    def g(self): return 'new'\na.g(), A().g()"
    assert notebook.launch(source) == ("old", "new")


def test_what_a_decorator_calls_is_defined_before_it_runs(notebook):
    notebook.run("def g(): return table['k']\n")
    notebook.run("table = {'k': 1}\ndef deco(fn):\n    g()\n    return fn")
    notebook.run("@deco\ndef h(): return 1")
    assert notebook.launch("def f(i): return h()") == 1


def test_values_needed_by_definitions_come_early_and_others_in_one_late_group(notebook):
    notebook.run("n = 1\na = 2\nb = 3\ndef g(x=n): return x + a + b")
    program = notebook.build("def f(i): return g()")
    assert [set(group) for group in program.groups] == [{"n"}, {"a", "b"}]
    assert notebook.rank(program) == 6


def test_early_values_share_a_group_where_they_can(notebook):
    notebook.run("a = [1]\nb = [a]\nclass A:\n    x = a\nclass B:\n    x = b\ndef g(): pass")
    program = notebook.build("class C(A, B):\n    same = b[0] is a\ndef f(i): return C.same")
    assert len(program.groups) == 1
    assert notebook.rank(program)


def test_the_cells_top_level_can_use_names_of_the_notebook(notebook):
    notebook.run("cfg = {'n': 2}\ndef setup(): return cfg['n']")
    assert notebook.launch("n = setup()\ndef f(i): return n") == 2


def test_functions_of_earlier_cells_use_the_cells_definitions(notebook):
    notebook.run("def g(): return helper()\ndef helper(): return 'old'")
    assert notebook.launch("def helper(): return 'new'\ndef f(i): return g()") == "new"
