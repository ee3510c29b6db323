"""The errors of a job that cannot load its program, before any rank starts."""

import pytest

ADVICE = (
    "Create it inside the function, or fix how its class is pickled (`__reduce__`, `__setstate__`)."
)


@pytest.fixture
def cells(notebook, tmp_path):
    """Run cells; the module `local_shut` has a class that does not accept the arguments that
    pickle passes."""
    (tmp_path / "local_shut.py").write_text(
        "class D(dict):\n"
        "    def __init__(self, a, b): super().__init__(a=a, b=b)\n"
        "    def __reduce__(self): return D, (1,)\n"
    )
    notebook.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    yield notebook
    notebook.ok("sys.path.pop(0); sys.modules.pop('local_shut', None); None")


def test_value_that_cannot_be_unpickled_is_refused_by_name(cells):
    made = cells.ok("from local_shut import D\nd = D(1, 2)").number
    cells.ok("def use(): return d")
    shown = cells.run("%%xla_spawn -n 2 -o shut\nfine = []\ndef f(rank): return fine, use()")
    assert shown.error.replace("\n", " ").count(
        f"Cannot open `d` (local_shut.D, defined in Cell In[{made}], line 2) on ranks: TypeError: "
        f"D.__init__() missing 1 required positional argument: 'b'. {ADVICE}"
    )
    assert not shown.lines


def test_value_with_failing_setstate_is_refused_with_the_failing_line(cells):
    made = cells.ok(
        "class S:\n    def __getstate__(self): return {'n': 1}\n"
        "    def __setstate__(self, state):\n        raise ValueError('no state')\ns = S()"
    ).number
    shown = cells.run("%%xla_spawn -n 2\ndef f(rank): return s.n")
    assert (
        f"Cannot open `s` (__main__.S, defined in Cell In[{made}], line 5) on ranks: "
        f"ValueError: no state (Cell In[{made}], line 4). {ADVICE}"
    ) in shown.error


def test_argument_that_cannot_be_unpickled_is_refused_by_type(cells):
    cells.ok("from local_shut import D")
    shown = cells.run('%%xla_spawn -n 2 --args "(D(1, 2),)"\ndef f(rank, d): return d')
    assert "Cannot open `--args` (local_shut.D) on ranks: TypeError: D" in shown.error
