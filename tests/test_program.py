"""A cell and what it needs of the notebook: what a rank computes is what the notebook would.

The notebook here is a double that compiles and executes cells as ipykernel does; a program is
tried by pickling its values as they travel and executing its module's text in a fresh module.
"""

from __future__ import annotations

import ast
import io
import linecache
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from xla_nb.errors import ProgramError
from xla_nb.program import (
    Cell,
    Program,
    Restore,
    Scope,
    Section,
    bound,
    build,
    build_call,
    definitions,
    module_source,
)


class Notebook:
    """Executes cells statement by statement, under file names that linecache knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = types.ModuleType("__main__")
        self.values = vars(self.main)
        self.cells: list[Cell] = []
        self.pending: list[Cell] = []
        self._patch = monkeypatch

    def run(self, source: str, label: str | None = None) -> None:
        source = textwrap.dedent(source)
        filename = f"/tmp/ipykernel_test/{abs(hash(source))}.py"  # by content, as ipykernel's
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self.cells.append(Cell(label or f"Cell In[{len(self.cells) + 1}]", source, filename))
        self._patch.setitem(sys.modules, "__main__", self.main)
        flags = 0
        for node in ast.parse(source).body:
            module = ast.Module([node], [])
            code = compile(module, filename, "exec", flags, dont_inherit=True)
            flags |= code.co_flags & 0x1000000  # from __future__ import annotations
            exec(code, self.values)

    @property
    def scope(self) -> Scope:
        return Scope(self.values, tuple(self.cells), tuple(self.pending))

    def build(self, source: str, entry: str | None = None, args: tuple[Any, ...] = ()) -> Program:
        cell = Cell(f"Cell In[{len(self.cells) + 1}]", textwrap.dedent(source))
        return build(cell, self.scope, entry=entry, args=args, name="xla_nb_cell")

    def launch(self, source: str, *args: Any, entry: str | None = None) -> Any:
        return self.rank(self.build(source, entry, args), *args)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        program = build_call(fn, self.scope, args=args, name="xla_nb_call")
        return self.rank(program, *args)

    def rank(self, program: Program, *args: Any) -> Any:
        """What rank 0 computes."""
        main = self.load(program)
        if program.body is None:
            lock = {"lock": "the lock"} if program.takes_lock else {}
            return vars(main)[program.entry](0, *args, **lock)
        vars(main).update(rank=0, world_size=4, device="xla:0", lock="the lock")
        *nodes, last = ast.parse(program.body.text).body
        exec(compile(ast.Module(nodes, []), "body", "exec", program.flags, True), vars(main))
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "body", "exec", program.flags, True), vars(main))
            return None
        code = compile(ast.Expression(last.value), "body", "eval", program.flags, True)
        return eval(code, vars(main))

    def load(self, program: Program) -> types.ModuleType:
        self._patch.setitem(sys.modules, "__main__", self.main)
        groups = [_dump(group, program.defines) for group in program.groups]
        fresh = types.ModuleType("__main__")
        fresh.get_ipython = lambda: None  # type: ignore[attr-defined]
        self._patch.setitem(sys.modules, "__main__", fresh)
        loading = types.ModuleType("xla_nb.loading")
        loading.restore = lambda index, names: names.update(  # type: ignore[attr-defined]
            cloudpickle.loads(groups[index])
        )
        self._patch.setitem(sys.modules, "xla_nb.loading", loading)
        text, _ = module_source(program)
        exec(compile(text, "xla_nb_cell.py", "exec", dont_inherit=True), vars(fresh))
        return fresh


def _dump(group: Any, defines: tuple[str, ...]) -> bytes:
    """As the real way out: what the program defines goes by name, the rest by value."""

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            named = isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__"
            if named and obj.__qualname__.split(".")[0] in defines:
                found: Any = sys.modules["__main__"]
                for part in obj.__qualname__.split("."):
                    found = getattr(found, part, None)
                if found is obj:
                    return obj.__qualname__
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(dict(group))
    return file.getvalue()


def shipped(program: Program) -> set[str]:
    return {name for group in program.groups for name in group}


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    before = set(linecache.cache)
    yield Notebook(monkeypatch)
    for name in set(linecache.cache) - before:
        del linecache.cache[name]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


# --- the entry --------------------------------------------------------------------------------


def test_entry_is_the_last_function_of_the_cell(notebook):
    assert notebook.launch("def a(i): return 'a'\ndef b(i): return 'b'") == "b"


def test_entry_is_the_function_named(notebook):
    assert notebook.launch("def a(i): return 'a'\ndef b(i): return 'b'", entry="a") == "a"


def test_entry_may_be_a_function_of_the_notebook(notebook):
    notebook.run("lr = 0.1\ndef train(i, n): return lr * n")
    assert notebook.launch("steps = 3", 3, entry="train") == pytest.approx(0.3)


def test_entry_wins_over_statements_after_it(notebook):
    assert notebook.launch("def f(i): return n\nn = 7\nn + 1") == 7


def test_entry_may_be_imported_in_the_cell(notebook):
    assert notebook.launch("from operator import neg", entry="neg") == 0


def test_entry_defined_under_an_if_can_be_named(notebook):
    assert notebook.launch("if True:\n    def f(i): return i + 1", entry="f") == 1


def test_misspelt_entry_names_the_close_match_and_the_candidates(notebook):
    with pytest.raises(ProgramError, match=r"trian.*Did you mean train\?.*defines train, eval_"):
        notebook.build("def train(i): pass\ndef eval_(i): pass", entry="trian")


@pytest.mark.parametrize("source", ["class run: pass", "run = 3", "run = [1]"])
def test_entry_that_is_no_function_is_refused(notebook, source):
    with pytest.raises(ProgramError, match="run cannot be launched"):
        notebook.build(source + "\ndef other(i): pass", entry="run")


def test_entry_of_the_notebook_that_is_no_function_is_refused(notebook):
    notebook.run("run = 3")
    with pytest.raises(
        ProgramError, match="run cannot be launched: in the notebook it is of type int"
    ):
        notebook.build("x = 1", entry="run")


def test_async_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match=r"line 2: f is an async function.*asyncio\.run"):
        notebook.build("\nasync def f(i): pass")


def test_generator_entry_is_refused(notebook):
    with pytest.raises(ProgramError, match="f is a generator"):
        notebook.build("def f(i):\n    if i:\n        yield 1")


def test_a_generator_inside_the_entry_is_fine(notebook):
    assert notebook.launch("def f(i):\n    def g():\n        yield 1\n    return list(g())") == [1]


def test_main_block_of_a_pasted_script_is_left_out_with_a_note(notebook):
    source = "def f(i): return 5\nif __name__ == '__main__':\n    xmp.spawn(f)\n"
    program = notebook.build(source)
    assert notebook.rank(program) == 5
    assert "line 2" in program.notes[0]


# --- arity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "args", "takes_lock"),
    [
        ("i", (), False),
        ("i, lr", (1,), False),
        ("i, lr, lock", (1,), True),
        ("i, lock, lr=2", (), True),
        ("i, *, lock", (), True),
        ("i, lock=None", (), True),
        ("i, lock", (1,), False),  # it is passed
        ("*args", (1, 2), False),
        ("lock", (), False),  # the rank's index comes first
    ],
)
def test_lock_goes_to_a_parameter_of_that_name_that_is_not_passed(
    notebook, signature, args, takes_lock
):
    program = notebook.build(f"def f({signature}): return 1", args=args)
    assert program.takes_lock is takes_lock
    assert notebook.rank(program, *args) == 1


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        ("i, lr, n", (1,), r"line 1: f\(i, lr, n\).*1 argument follow.*--args \"\(lr, n,\)\""),
        ("i", (1, 2), "Pass no arguments"),
        ("", (), "first parameter for the rank"),
        ("i, *, lr", (), "'lr'"),
        ("i, lr=None, /, *, lock", (1, 2), "too many positional"),
    ],
)
def test_wrong_arity_is_said_before_the_launch(notebook, signature, args, message):
    with pytest.raises(ProgramError, match=message):
        notebook.build(f"def f({signature}): return 1", args=args)


def test_arity_of_a_decorated_entry_is_left_to_its_decorator(notebook):
    notebook.run("def inject(f): return lambda i: f(i, 'cfg')")
    assert notebook.launch("@inject\ndef f(i, cfg): return cfg") == "cfg"


# --- names ------------------------------------------------------------------------------------


def test_missing_name_is_told_with_cell_line_and_a_close_match(notebook):
    notebook.run("learning_rate = 1")
    with pytest.raises(ProgramError, match=r"Cell In\[2\], line 3: .*learning_rat .*mean learning"):
        notebook.build("def f(i):\n    pass\n    return learning_rat")


def test_missing_name_of_an_earlier_function_is_told_in_its_cell(notebook):
    notebook.run("def helper():\n    return gone")
    with pytest.raises(ProgramError, match=r"Cell In\[1\], line 2: the name gone"):
        notebook.build("def f(i): return helper()")


def test_rank_is_no_global_of_a_function(notebook):
    with pytest.raises(ProgramError, match=r"rank.*make it a parameter"):
        notebook.build("def f(i): return rank")


@pytest.mark.parametrize(
    "source",
    [
        "def f(i):\n    try:\n        return gone\n    except NameError:\n        return 'ok'",
        "def f(i):\n    return 'ok'\nclass A:\n    def g(self) -> 'Gone': ...",
        "from os.path import *\ndef f(i): return join('o', 'k').replace('/', '')",
        "def f(i):\n    global made\n    made = 'ok'\n    return g()\ndef g(): return made",
        "def f(i): return [ok for ok in ['ok']][0]",
        "def f(i):\n    if (n := 'ok'): return n",
    ],
)
def test_names_that_need_not_be_in_the_notebook(notebook, source):
    assert notebook.launch(source, entry="f") == "ok"


def test_star_import_of_a_loaded_module_does_not_hide_other_missing_names(notebook):
    with pytest.raises(ProgramError, match="joinn"):
        notebook.build("from os.path import *\ndef f(i): return joinn('o', 'k')")


def test_star_import_of_an_unknown_module_ends_the_check(notebook):
    assert notebook.build("from not_loaded_yet import *\ndef f(i): return anything")


def test_a_name_in_a_fstring_a_default_and_an_annotation_is_taken_along(notebook):
    notebook.run("a = 1\nb = 2\nc = int")
    assert notebook.launch("def f(i, x: c = b): return f'{a}{x}', f.__annotations__") == (
        "12",
        {"x": int},
    )


def test_a_name_only_in_a_lazy_annotation_is_taken_along_but_may_be_missing(notebook):
    notebook.run("class Net: pass")
    source = (
        "from __future__ import annotations\nimport typing\n"
        "def f(i: int) -> Gone: return typing.get_type_hints(g)['x'].__name__\n"
        "def g(x: Net): ..."
    )
    assert notebook.launch(source, entry="f") == "Net"


def test_syntax_error_shows_line_text_and_caret(notebook):
    with pytest.raises(ProgramError) as caught:
        notebook.build("def f(i):\n    retrun 1")
    assert "line 2" in str(caught.value)
    assert str(caught.value).splitlines()[1:] == ["        retrun 1", "               ^"]


def test_relative_import_is_refused(notebook):
    with pytest.raises(ProgramError, match=r"line 2.*relative import"):
        notebook.build("def f(i):\n    from . import x")


def test_a_name_computed_on_the_ranks_only_is_explained(notebook):
    notebook.pending.append(Cell("Cell In[1]", "loss = 3\nloss"))
    with pytest.raises(ProgramError, match=r"Cell In\[1\] binds it, but not in the notebook"):
        notebook.build("def f(i): return loss")


def test_return_at_the_top_level_is_a_syntax_error(notebook):
    with pytest.raises(ProgramError, match="line 2: 'return' outside function"):
        notebook.build("x = 1\nreturn x")


def test_a_name_of_the_notebook_goes_before_a_builtin(notebook):
    notebook.run("from operator import sub as max\nid = 4")
    assert notebook.launch("def f(i): return max(5, 3), id, abs(-1)") == (2, 4, 1)


# --- values -----------------------------------------------------------------------------------


def test_constants_are_taken_along_through_functions(notebook):
    notebook.run("lr = 0.5")
    notebook.run("def scale(x): return x * lr")
    assert notebook.launch("def f(i, x): return scale(x)", 4) == 2


def test_only_what_is_needed_is_taken_along(notebook):
    notebook.run("a = 1\nb = 2\ndef g(): return b")
    assert shipped(notebook.build("def f(i): return a")) == {"a"}


def test_values_that_share_an_object_still_do(notebook):
    notebook.run("a = [1]\nb = {'a': a}")
    assert notebook.launch("def f(i): return b['a'] is a")


def test_an_instance_brings_its_class_by_reference(notebook):
    notebook.run(
        "class Net:\n    def __init__(self): self.w = scale * 2\n    def g(self): return 1"
    )
    notebook.values["scale"] = 2
    notebook.run("model = Net()")
    source = "def f(i): return model.w, model.g(), type(model).__module__"
    program = notebook.build(source)
    assert "Net" in program.defines
    assert notebook.rank(program) == (4, 1, "__main__")


def test_classes_are_found_deep_in_containers_slots_and_partials(notebook):
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


def test_a_property_is_never_called_in_search_of_classes(notebook):
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


def test_an_instance_of_a_class_that_the_cell_defines_anew_becomes_one_of_the_new(notebook):
    notebook.run("class Net:\n    def g(self): return 'old'\nmodel = Net()")
    source = "class Net:\n    def g(self): return 'new'\ndef f(i): return model.g()"
    assert notebook.launch(source) == "new"


def test_an_instance_needed_while_the_cell_defines_its_class_keeps_the_old(notebook):
    notebook.run("class Net:\n    def g(self): return 'old'\nmodel = Net()")
    source = "was = model.g()\nclass Net:\n    def g(self): return 'new'\ndef f(i): return was"
    assert notebook.launch(source) == "old"


def test_an_instance_of_a_class_since_redefined_travels_with_its_own_class(notebook):
    notebook.run("k = 1\nclass Net:\n    def g(self): return 'old', k\nmodel = Net()")
    notebook.run("class Net:\n    def g(self): return 'new', k")
    assert notebook.launch("def f(i): return model.g(), Net().g()") == (("old", 1), ("new", 1))


def test_lambda_and_closure_travel_by_value(notebook):
    notebook.run(
        "k = 3\ng = lambda x: x * k\ndef make(n):\n    return lambda x: x + n\nh = make(5)"
    )
    assert notebook.launch("def f(i): return g(2), h(1)") == (6, 6)


def test_what_a_lambda_only_names_as_an_attribute_stays_at_home(notebook):
    notebook.run("model = 1\nx = 2\ng = lambda o: o.model + x")
    assert shipped(notebook.build("def f(i): return g")) == {"g", "x"}


def test_a_function_named_restore_is_the_users_own(notebook):
    notebook.run("a = 1\nb = [a]\ndef restore(x=a): return x, b")
    assert notebook.launch("def f(i): return restore()") == (1, [1])


def test_a_huge_container_is_looked_at_in_bounded_time(notebook):
    notebook.run("class A:\n    n = 1\nhuge = [A()] + [0] * 5_000_000\nhuge.append(huge[0])")
    program = notebook.build("def f(i): return 1, huge")
    assert "A" in program.defines


def test_a_function_made_by_exec_travels_by_value(notebook):
    notebook.run("exec('def g(): return 9')")
    program = notebook.build("def f(i): return g()")
    assert shipped(program) == {"g"}
    assert notebook.rank(program) == 9


def test_the_origin_of_a_value_is_the_cell_that_bound_it_last(notebook):
    notebook.run("a = 1")
    notebook.run("a = 2")
    notebook.run("b = 2")
    assert notebook.build("def f(i): return a").origins == {"a": "Cell In[2]"}


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
def test_an_earlier_import_is_made_again(notebook, statement, expression):
    notebook.run(statement)
    program = notebook.build(f"def f(i): return {expression}")
    assert not shipped(program)
    assert notebook.rank(program) == 2


def test_submodules_that_are_used_are_loaded(notebook, local):
    (local / "pack_a").mkdir()
    (local / "pack_a" / "__init__.py").write_text("")
    (local / "pack_a" / "sub.py").write_text("n = 4")
    notebook.run("import pack_a as p")
    notebook.run("from pack_a.sub import n as unused")
    program = notebook.build("def f(i): return p.sub.n")
    for name in ("pack_a", "pack_a.sub"):
        del sys.modules[name]
    assert notebook.rank(program) == 4


def test_a_local_module_is_imported_anew(notebook, local):
    (local / "local_b.py").write_text("def g(): return 'old'")
    notebook.run("from local_b import g")
    program = notebook.build("def f(i): return g()")
    (local / "local_b.py").write_text("def g(): return 'edited'")
    del sys.modules["local_b"]
    sys.path_importer_cache.clear()
    assert notebook.rank(program) == "edited"


def test_data_imported_from_a_module_travels_as_it_is_now(notebook, local):
    (local / "local_c.py").write_text("state = {'lr': 1}")
    notebook.run("from local_c import state\nstate['lr'] = 2")
    program = notebook.build("def f(i): return state['lr']")
    del sys.modules["local_c"]
    assert notebook.rank(program) == 2


def test_submodules_that_were_imported_are_loaded_though_nobody_names_them(notebook, local):
    (local / "pack_e").mkdir()
    (local / "pack_e" / "__init__.py").write_text("")
    (local / "pack_e" / "sub.py").write_text("n = 4")
    notebook.run("import pack_e.sub")
    program = notebook.build("def f(i): return getattr(pack_e, 'sub').n")
    for name in ("pack_e", "pack_e.sub"):
        del sys.modules[name]
    assert notebook.rank(program) == 4


def test_the_imports_of_the_cell_are_listed(notebook):
    program = notebook.build("import os.path, sys\nfrom xml.dom import minidom\ndef f(i): pass")
    assert program.imports == ("os.path", "sys", "xml.dom")


# --- the definition that is live --------------------------------------------------------------


def test_the_redefined_function_is_the_one_taken(notebook):
    notebook.run("def g(): return 1")
    notebook.run("def g(): return 2")
    assert notebook.launch("def f(i): return g()") == 2


def test_an_older_cell_run_again_makes_its_definition_the_live_one(notebook):
    notebook.run("def g(): return 1")
    notebook.run("def g(): return 2")
    notebook.cells.insert(0, notebook.cells.pop())  # history in any order: the code decides
    assert notebook.launch("def f(i): return g()") == 2


def test_a_definition_the_kernel_never_ran_is_not_taken(notebook):
    notebook.run("def g(): return 1")
    notebook.cells.append(Cell("Cell In[2]", "1/0\ndef g(): return 2", "/tmp/x.py"))
    assert notebook.launch("def f(i): return g()") == 1


def test_of_two_definitions_in_one_cell_the_live_one_is_taken(notebook):
    notebook.run("def g(): return 1\nold = g\ndef g(): return 2")
    assert notebook.launch("def f(i): return g(), old()") == (2, 1)


def test_an_alias_names_the_same_function(notebook):
    notebook.run("def g(): return 1\nh = g")
    program = notebook.build("def f(i): return h is g and h()")
    assert not shipped(program)
    assert notebook.rank(program) == 1


def test_an_alias_of_a_function_since_redefined_travels_by_value(notebook):
    notebook.run("def g(): return 1\nh = g")
    notebook.run("def g(): return 2")
    assert notebook.launch("def f(i): return h(), g()") == (1, 2)


def test_recursion_and_mutual_recursion(notebook):
    notebook.run("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n and even(n - 1)")
    notebook.run("def fact(n): return n and n * fact(n - 1) or 1")
    assert notebook.launch("def f(i): return even(4), fact(4)") == (True, 24)


def test_a_wrapper_put_around_a_function_later_is_kept(notebook):
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


def test_a_default_keeps_the_value_it_was_made_with(notebook):
    notebook.run("n = 5\ndef g(x=n, y=[1], *, k=n, z=1): return x, k\nn = 7")
    assert notebook.launch("def f(i): return g()") == (5, 5)


def test_an_attribute_set_on_a_function_is_kept(notebook):
    notebook.run("def g(): return g.calls\ng.calls = 3")
    assert notebook.launch("def f(i): return g()") == 3


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
def test_a_decorated_function_is_decorated_again(notebook, decorated, call, expected):
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


def test_a_function_registered_with_an_object_of_the_notebook(notebook):
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


# --- classes ----------------------------------------------------------------------------------


def test_bases_metaclass_keywords_and_nested_references_come_before(notebook):
    notebook.run("def tag(): return 't'\nlevel = 2")
    notebook.run("class Meta(type):\n    def __new__(m, *a, **k): return super().__new__(m, *a)")
    notebook.run("class Base(metaclass=Meta, kind=level): n = level\n")
    notebook.run("class Net(Base):\n    t = tag()\n    def g(self): return super().__repr__()[:1]")
    assert notebook.launch("def f(i): return Net.t, Net.n, Net().g()") == ("t", 2, "<")


def test_a_redefined_class_is_the_live_one(notebook):
    notebook.run("class A:\n    def g(self): return 1")
    notebook.run("class A:\n    def g(self): return 2")
    notebook.cells.reverse()
    assert notebook.launch("def f(i): return A().g()") == 2


def test_a_class_extending_its_former_self(notebook):
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
def test_a_class_of_every_kind(notebook, definition, expression, expected):
    notebook.run(definition)
    assert notebook.launch(f"def f(i): return {expression}") == expected


def test_instances_of_a_namedtuple_and_an_enum_travel_by_reference(notebook):
    notebook.run(
        "import enum\nfrom collections import namedtuple\n"
        "P = namedtuple('P', 'x')\nclass E(enum.Enum):\n    A = 1\nv = [P(1), E.A]"
    )
    program = notebook.build("def f(i): return type(v[0]) is P and v[1] is E.A")
    assert {"P", "E"} <= set(program.defines)
    assert notebook.rank(program)


def test_a_local_class_is_not_taken_for_a_top_level_one_of_its_name(notebook):
    notebook.run("class A:\n    n = 2")
    notebook.run("def make():\n    class A:\n        n = 1\n    return A\nA = make()")
    assert notebook.launch("def f(i): return A.n") == 1


def test_an_instance_of_a_class_that_statements_define_anew_keeps_its_own(notebook):
    notebook.run("class A:\n    def g(self): return 'old'\na = A()")
    source = "n = rank\nclass A:\n    k = n\n    def g(self): return 'new'\na.g(), A().g()"
    assert notebook.launch(source) == ("old", "new")


def test_a_nested_class_brings_the_outer_one(notebook):
    notebook.run("class O:\n    class I:\n        n = 1\nv = O.I()")
    assert notebook.launch("def f(i): return type(v) is O.I and v.n") == 1


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
def test_a_class_is_seen_as_it_is_now(notebook, patch, expected):
    notebook.run("class Net:\n    n = 1\n    tag = 'tag'\n    def g(self): return 'old'")
    notebook.run("model = Net()")
    notebook.run(patch)
    assert notebook.launch("def f(i): return model.g(), Net.n") == expected


def test_a_class_that_nobody_touched_is_not_patched(notebook):
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


# --- order ------------------------------------------------------------------------------------


def test_what_a_decorator_calls_is_there_before_it_is_called(notebook):
    notebook.run("def g(): return table['k']\n")
    notebook.run("table = {'k': 1}\ndef deco(fn):\n    g()\n    return fn")
    notebook.run("@deco\ndef h(): return 1")
    assert notebook.launch("def f(i): return h()") == 1


def test_values_needed_to_define_come_early_and_the_others_in_one_late_group(notebook):
    notebook.run("n = 1\na = 2\nb = 3\ndef g(x=n): return x + a + b")
    program = notebook.build("def f(i): return g()")
    assert [set(group) for group in program.groups] == [{"n"}, {"a", "b"}]
    assert notebook.rank(program) == 6


def test_early_values_share_a_group_where_they_can(notebook):
    notebook.run("a = [1]\nb = [a]\nclass A:\n    x = a\nclass B:\n    x = b\ndef g(): pass")
    program = notebook.build("class C(A, B):\n    same = b[0] is a\ndef f(i): return C.same")
    assert len(program.groups) == 1
    assert notebook.rank(program)


def test_the_cells_own_top_level_finds_what_it_uses(notebook):
    notebook.run("cfg = {'n': 2}\ndef setup(): return cfg['n']")
    assert notebook.launch("n = setup()\ndef f(i): return n") == 2


def test_the_cells_definitions_serve_the_functions_of_earlier_cells(notebook):
    notebook.run("def g(): return helper()\ndef helper(): return 'old'")
    assert notebook.launch("def helper(): return 'new'\ndef f(i): return g()") == "new"


# --- cells of statements ----------------------------------------------------------------------


def test_a_cell_of_statements_has_the_ranks_names_and_gives_its_last_expression(notebook):
    assert notebook.launch("x = rank + world_size\n(x, device, lock)") == (4, "xla:0", "the lock")


def test_statements_may_change_a_name_of_the_notebook(notebook):
    notebook.run("n = 5")
    assert notebook.launch("n += 1\nn") == 6


def test_a_name_that_statements_bind_first_is_not_shipped(notebook):
    notebook.run("n = 5\nfile = open('/dev/null')\nk = 1")
    program = notebook.build("n = 1\nwith open('/dev/null') as file: k\nfile, n")
    notebook.values["file"].close()
    assert shipped(program) == {"k"}


def test_a_name_bound_in_one_branch_is_taken_along(notebook):
    notebook.run("n = 5")
    assert notebook.launch("if rank == 1:\n    n = 1\nn") == 5


def test_definitions_of_a_cell_of_statements_are_in_the_module(notebook):
    program = notebook.build("import math\nx = rank\nclass Net:\n    n = 1\nmath.floor(Net.n + x)")
    assert vars(notebook.load(program))["Net"].n == 1
    assert notebook.rank(program) == 1


def test_a_definition_that_needs_what_statements_compute_stays_with_them(notebook):
    source = "n = rank + 5\nclass Net:\n    k = n\nNet.k"
    program = notebook.build(source)
    assert "Net" not in vars(notebook.load(program))
    assert notebook.rank(program) == 5


def test_a_class_used_before_the_cell_defines_it_anew_is_the_old_one(notebook):
    notebook.run("class A:\n    n = 'old'")
    assert notebook.launch("was = A.n\nclass A:\n    n = 'new'\nwas, A.n") == ("old", "new")


def test_main_block_of_statements_is_run(notebook):
    assert notebook.launch("if __name__ == '__main__':\n    x = 3\nx") == 3


def test_a_cell_without_anything_is_an_empty_program(notebook):
    program = notebook.build("# nothing\n")
    assert (program.entry, program.steps) == (None, ())


# --- pending cells ----------------------------------------------------------------------------


def test_definitions_of_a_pending_cell_come_from_its_source(notebook):
    notebook.run("lr = 2")
    notebook.pending.append(
        Cell("Cell In[2]", "import math\nn = 3\ndef g(): return math.floor(lr * n)\ndef t(i): pass")
    )
    assert notebook.launch("def f(i): return g()") == 6


def test_the_newest_pending_cell_wins_over_older_ones_and_over_values(notebook):
    notebook.run("def g(): return 1")
    notebook.pending.append(Cell("Cell In[2]", "def g(): return 2"))
    notebook.pending.append(Cell("Cell In[3]", "def g(): return 3"))
    assert notebook.launch("def f(i): return g()") == 3


def test_what_a_pending_cell_of_statements_computed_is_not_there(notebook):
    notebook.pending.append(Cell("Cell In[1]", "n = 3\nn"))
    with pytest.raises(ProgramError, match="the name n "):
        notebook.build("def f(i): return n")


def test_a_pending_function_can_be_the_entry(notebook):
    notebook.pending.append(Cell("Cell In[1]", "def train(i, lr): return lr"))
    assert notebook.launch("x = 1", 5, entry="train") == 5
    with pytest.raises(ProgramError, match=r"Cell In\[1\], line 1: train"):
        notebook.build("x = 1", entry="train")


def test_star_import_of_a_pending_cell(notebook):
    notebook.pending.append(Cell("Cell In[1]", "from math import *\ndef t(i): pass"))
    assert notebook.launch("def f(i): return floor(2.5)") == 2


def test_a_pending_name_bound_in_steps_takes_all_of_them(notebook):
    notebook.pending.append(Cell("Cell In[1]", "a = 1; b = 2\na += b\ndef t(i): pass"))
    assert notebook.launch("def f(i): return a") == 3


# --- what the notebook runs later -------------------------------------------------------------


def test_definitions_keep_their_lines_and_leave_the_work_out():
    source = "import os\nlr = 1\nprint(lr)\n@deco\ndef f(i):\n    return 1\nf(0)\nclass A: pass\n"
    kept = definitions(Cell("c", source))
    assert kept == "import os\nlr = 1\n\n@deco\ndef f(i):\n    return 1\n\nclass A: pass\n"
    assert bound(Cell("c", source)) == ("A", "f", "lr", "os")


def test_definitions_of_statements_are_imports_functions_and_classes_only():
    assert definitions(
        Cell("c", "import os\nlr = 1\nclass A:\n    x = 1\nclass B:\n    y = lr\n")
    ) == ("import os\n\nclass A:\n    x = 1\n")


def test_definitions_keep_an_import_with_its_fallback():
    source = "try:\n    import a\nexcept ImportError:\n    a = None\ndef f(i): pass\n"
    assert definitions(Cell("c", source)) == source


def test_definitions_on_one_line_with_work_are_kept_alone():
    assert definitions(Cell("c", "import os; print(1)\ndef f(i): pass\n")).startswith(
        "import os; pass\n"
    )


# --- lines and text ---------------------------------------------------------------------------


def test_sections_carry_the_lines_of_their_cells(notebook):
    notebook.run("# one\n\n@staticmethod\ndef g():\n    return 1 / 0\n")
    program = notebook.build("# line\n\ndef f(i):\n    g()")
    places = {}
    for step in program.steps:
        if isinstance(step, Section):
            tree = ast.increment_lineno(ast.parse(step.text), step.first_line - 1)
            places[step.label] = tree.body[0].body[0].lineno
            full = program.sources[step.label].splitlines()
            assert full[places[step.label] - 1].strip() in ("return 1 / 0", "g()")
    assert places == {"Cell In[1]": 5, "Cell In[2]": 4}


def test_the_map_leads_from_the_file_to_the_cells(notebook):
    notebook.run("n = 1\n\ndef g():\n    return n")
    program = notebook.build("def f(i):\n    return g()")
    text, mapped = module_source(program)
    lines = text.splitlines()
    found = {}
    for piece in mapped:
        for offset, line in enumerate(lines[piece.start - 1 : piece.end]):
            source = program.sources[piece.label].splitlines()
            assert source[piece.first_line - 1 + offset] == line
            found[piece.label] = True
    assert set(found) == {"Cell In[1]", "Cell In[2]"}
    assert any(isinstance(step, Restore) for step in program.steps)


def test_a_future_import_is_in_force_for_the_whole_module(notebook):
    source = "from __future__ import annotations\ndef f(i, x: Gone = 1): return x"
    program = notebook.build(source)
    assert module_source(program)[0].splitlines()[1] == "from __future__ import annotations"
    assert notebook.rank(program) == 1


def test_text_with_other_line_breaks_inside_keeps_its_lines(notebook):
    notebook.run("s = 'a\x0cb\u2028c'\n\x0c\ndef same(fn): return fn")
    notebook.run("s = 'a\x0cb\u2028c'\n\x0c\n@same\ndef g():\n    return 1")
    program = notebook.build("def f(i): return g()")
    assert "@same\ndef g():\n    return 1\n" in module_source(program)[0]
    assert notebook.rank(program) == 1


def test_magics_of_an_earlier_function_are_checked(notebook):
    notebook.run("def g():\n    get_ipython().run_line_magic('timeit', 'x')")
    with pytest.raises(ProgramError, match=r"Cell In\[1\], line 2: %timeit"):
        notebook.build("def f(i): return g()")


# --- a call of a live function ----------------------------------------------------------------


def test_call_of_a_notebook_function_from_its_source(notebook):
    notebook.run("n = 2\ndef f(i, x): return i + x + n")
    program = build_call(notebook.values["f"], notebook.scope, args=(1,), name="c")
    assert (program.entry, shipped(program), program.defines) == ("f", {"n"}, ("f",))
    assert notebook.call(notebook.values["f"], 1) == 3


def test_call_of_a_function_of_a_module_by_import(notebook, local):
    (local / "local_d.py").write_text("def f(i): return 'd'")
    notebook.run("import local_d")
    program = build_call(notebook.values["local_d"].f, notebook.scope, args=(), name="c")
    assert "from local_d import f" in module_source(program)[0]
    assert notebook.rank(program) == "d"


@pytest.mark.parametrize(
    "expression",
    [
        "lambda i: h(i)",
        "make(7)",
        "functools.partial(two, b=7)",
        "Net().run",
        "Net()",
    ],
)
def test_call_of_anything_callable_by_value(notebook, expression):
    notebook.run(
        """
        import functools
        def h(i): return 7
        def make(n):
            return lambda i: n
        def two(i, b): return b
        class Net:
            def run(self, i): return h(i)
            __call__ = run
        """
    )
    notebook.run(f"fn = {expression}")
    fn = notebook.values.pop("fn")
    assert notebook.call(fn) == 7


def test_call_with_the_wrong_arity_says_how_to_pass_arguments(notebook):
    notebook.run("def f(i, lr): pass")
    with pytest.raises(ProgramError, match=r"args=\(lr,\)"):
        notebook.call(notebook.values["f"])


def test_call_of_a_class_of_the_notebook(notebook):
    notebook.run("class Job:\n    def __init__(self, i): self.i = i")
    assert notebook.call(notebook.values["Job"]).i == 0


def test_call_from_a_script_takes_its_definitions_but_not_its_main_block(notebook, tmp_path):
    path = tmp_path / "script.py"
    source = (
        "import math\nN = 2\ndef f(i): return math.floor(N)\nif __name__ == '__main__':\n    1\n"
    )
    path.write_text(source)
    exec(compile(source, str(path), "exec"), notebook.values)
    notebook.cells.append(Cell(str(path), source, str(path)))
    program = build_call(notebook.values["f"], notebook.scope, args=(), name="c")
    assert (program.steps[-2].label, program.steps[-2].first_line) == (str(path), 3)
    assert notebook.rank(program) == 2


def test_call_from_a_script_edited_since_it_started_uses_what_runs(notebook, tmp_path):
    path = tmp_path / "script.py"
    exec(compile("def f(i): return 'started'", str(path), "exec"), notebook.values)
    edited = "def f(i): return 'edited'"
    path.write_text(edited)
    notebook.cells.append(Cell(str(path), edited, str(path)))
    assert notebook.call(notebook.values["f"]) == "started"


# --- a real IPython ---------------------------------------------------------------------------

REAL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from xla_nb import program

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell(config=config)
ran = []
for text in [
    "\\n\\n# IPython drops leading blank lines\\ndef g(): return 1",
    "from __future__ import annotations\\nn = 2\\nfiles = !echo a",
    "class A:\\n    def get(self, x: Gone = None): return g() + n\\na = A(); a",
    "%env XLA_NB_UNUSED=1\\n",
]:
    shell.run_cell(text).raise_error()
    source = shell.transform_cell(text)
    filename = shell.compile.get_code_name(text, source, len(ran) + 1)
    ran.append(program.Cell(f"Cell In[{len(ran) + 1}]", source, filename))
cell = program.Cell("Cell In[9]", "def f(i): return a.get(), open, exit, files")
made = program.build(cell, program.Scope(shell.user_ns, ran), entry=None, args=(), name="m")
text, _ = program.module_source(made)
print(sorted(made.defines), sorted(n for group in made.groups for n in group), sorted(made.sources))
"""


def test_cells_of_a_real_ipython_are_understood():
    pytest.importorskip("IPython")
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == [
        "['A', 'f', 'g'] ['a', 'files', 'n'] ['Cell In[1]', 'Cell In[3]', 'Cell In[9]']"
    ], done.stdout + done.stderr
