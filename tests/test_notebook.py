"""What a live IPython holds for a launch, and when it learns what launched cells define."""

import os
import sys

import IPython
import pytest

from tests.support.shell import Shell
from xla_nb import notebook
from xla_nb.errors import ProgramError, XlaNbError
from xla_nb.run.kept import Interrupted, Kept


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    made = Shell(tmp_path)
    yield made
    made.shell.restore_sys_module_state()


# ---------------------------------------------------------------- cells


def test_the_number_is_the_running_cells(cells):
    numbers = []
    cells.shell.user_ns["look"] = lambda: numbers.append(cells.notebook.number)
    for _ in range(3):
        cells.run("look()")
    assert numbers == [1, 2, 3]


def test_a_launched_cell_is_named_by_its_number(cells):
    cells.run("1")
    assert cells.launch("x = 1").label == "Cell In[2]"
    assert cells.launch("x = 1").label == "Cell In[3]"


def test_the_lines_of_a_launched_cell_count_from_its_magic(cells):
    assert cells.launch("a = 1\nb = 2\n").source.splitlines()[2] == "b = 2"


def test_ipythons_syntax_in_a_launched_cell_is_python(cells):
    assert "get_ipython().system('ls')" in cells.launch("!ls").source


@pytest.mark.parametrize(
    "text",
    [
        "def f(): pass",
        "\n\ndef f(): pass",
    ],
)
def test_a_cell_knows_what_its_code_was_compiled_under(cells, text):
    cells.run(text)
    (cell,) = cells.scope.cells
    assert cell.label == "Cell In[1]"
    assert cell.source.strip() == "def f(): pass"
    assert cell.filename == cells.shell.user_ns["f"].__code__.co_filename


def test_the_cells_of_a_scope_are_those_before_oldest_first(cells):
    cells.run("a = 1")
    cells.run("b = 2")
    cells.launch("def f(rank): pass")
    assert [cell.source.rstrip() for cell in cells.scopes[0].cells] == ["a = 1", "b = 2"]


def test_a_cell_that_calls_spawn_is_in_its_own_scope(cells):
    found = []
    cells.shell.user_ns["spawn"] = lambda: found.append(cells.scope)
    cells.run("a = 1")
    cells.run("def f(rank): pass\nspawn()")
    assert [cell.label for cell in found[0].cells] == ["Cell In[1]", "Cell In[2]"]


def test_a_cell_launched_before_is_in_the_scope_as_it_was_launched(cells):
    launched = cells.launch("def f(rank): pass")
    cells.launch("def g(rank): pass")
    assert cells.scopes[1].cells == [launched]


# ---------------------------------------------------------------- names


def test_what_the_user_defined_is_in_the_scope(cells):
    cells.run("a = 1\ndef f(): pass\nimport math")
    assert {"a", "f", "math"} <= set(cells.scope.values)
    assert cells.scope.values["a"] == 1


@pytest.mark.parametrize("name", ["open", "exit", "quit", "get_ipython", "In", "Out"])
def test_what_ipython_defined_is_not_in_the_scope(cells, name):
    cells.run("1")
    assert cells.has(name)
    assert name not in cells.scope.values


def test_a_name_of_ipythons_that_the_user_took_is_in_the_scope(cells):
    cells.run("def open(path): return 'mine'")
    assert cells.scope.values["open"]("") == "mine"


# ---------------------------------------------------------------- what cells left to do


def test_what_a_launched_cell_defines_is_not_executed_by_itself(cells):
    cells.launch("def later(rank): pass")
    cells.run("1 + 1")
    cells.run("# later\n'later'")
    assert not cells.has("later")
    assert [pending.names for pending in cells.scope.pending] == [{"later"}]


@pytest.mark.parametrize(
    "mention",
    ["later", "later(0)", "if False:\n    later", "def g():\n    return later", "x = [later]"],
)
def test_a_cell_that_names_it_finds_it_there(cells, mention):
    cells.launch("def later(rank): return 41")
    cells.run(mention)
    assert cells.has("later")
    assert cells.scope.pending == []


@pytest.mark.parametrize("mention", ["later?", "later??", "%time later(0)", "x = !echo {later(0)}"])
def test_a_line_of_ipythons_that_names_it_finds_it_there(cells, mention, capsys):
    cells.launch("def later(rank): return 41")
    cells.run(mention)
    assert "not found" not in capsys.readouterr().out
    assert cells.has("later")


def test_it_is_found_through_a_function_of_the_notebook(cells):
    cells.run("def g(): return h()\ndef h(): return later(1)")
    cells.launch("def later(rank): return rank + 40")
    assert cells.run("g()") == 41


def test_it_is_found_through_a_function_inside_one_of_the_notebook(cells):
    cells.run("def g(): return (lambda: later(1))()")
    cells.launch("def later(rank): return rank + 40")
    assert cells.run("g()") == 41


def test_functions_that_use_each_other_are_looked_through_once(cells):
    cells.run("def g(): return h\ndef h(): return g")
    cells.launch("def later(rank): pass")
    cells.run("g()")
    assert not cells.has("later")


def test_code_that_is_no_python_names_all_its_words(cells):
    cells.launch("def later(rank): pass")
    with pytest.raises(SyntaxError):
        cells.run("later = = 1")
    assert cells.has("later")


def test_another_launch_does_not_execute_it(cells):
    cells.launch("def later(rank): pass")
    cells.launch("def f(rank): return later(rank)")
    assert not cells.has("later")
    (pending,) = cells.scopes[1].pending
    assert (pending.cell.label, pending.names) == ("Cell In[1]", {"later"})


def test_arguments_of_a_launch_may_name_it(cells):
    cells.launch("RATE = 3\ndef f(rank): pass")
    cells.notebook.define_for("(RATE, 1)")
    assert cells.shell.user_ns["RATE"] == 3


def test_what_it_uses_of_other_launched_cells_is_executed_before_it(cells):
    cells.launch("RATE = 3\ndef f(rank): pass")
    cells.launch("TWICE = RATE * 2\ndef g(rank): pass")
    assert cells.run("TWICE") == 6


def test_only_what_a_cell_defines_is_executed_not_what_it_does(cells, capsys):
    cells.launch("print('ran')\ndef later(rank): return 41\nlater(0)")
    assert cells.run("later(0)") == 41
    assert capsys.readouterr().out.count("ran") == 0


def test_it_is_executed_once(cells):
    cells.launch("made = []\ndef later(rank): pass")
    cells.run("made.append(1)")
    assert cells.run("later, made")[1] == [1]


def test_of_two_launched_definitions_the_later_one_counts(cells):
    cells.launch("def later(rank): return 'old'")
    cells.launch("def later(rank): return 'new'")
    assert cells.run("later(0)") == "new"


def test_the_later_definition_counts_also_when_the_earlier_needs_a_name_it_binds(cells):
    cells.run("RATE = 1")
    cells.launch("def later(rank): return 'old', RATE")
    cells.launch("RATE = 2\ndef later(rank): return 'new', RATE")
    assert cells.run("later(0)") == ("new", 2)


def test_a_cell_that_is_executed_uses_the_newest_definitions_from_its_first_call_on(cells):
    cells.run("def helper(): return 'old'")
    cells.launch("def later(rank): return helper()")
    cells.launch("def helper(): return 'new'\ndef f(rank): pass")
    assert cells.run("later(0)") == "new"


def test_the_later_definition_counts_also_when_it_came_with_another_name(cells):
    cells.launch("def later(rank): return 'old'")
    cells.launch("from operator import neg as later\nRATE = 2\ndef f(rank): pass")
    cells.run("RATE")
    assert cells.run("later(1)") == -1


def test_a_name_that_an_older_launch_binds_beside_the_one_that_is_used_stays_the_newest(cells):
    cells.launch("from math import floor as p, ceil as q\ndef f(rank): pass")
    cells.launch("p = 5\ndef g(rank): pass")
    assert cells.run("q(2.5)") == 3
    assert cells.run("p") == 5


@pytest.mark.parametrize(
    "newer", ["def later(rank): return 'new'", "class later:\n    def __new__(c, r): return 'new'"]
)
def test_what_the_notebook_defines_after_a_launch_counts(cells, newer):
    cells.launch("def later(rank): return 'old'")
    cells.run(newer)
    assert cells.run("later(0)") == "new"


def test_what_the_notebook_defines_after_a_launch_is_what_the_next_launch_takes(cells):
    cells.launch("def later(rank): return 'old'")
    cells.run("def later(rank): return 'new'")
    cells.launch("def f(rank): return later(rank)")
    assert not any(pending.names for pending in cells.scopes[1].pending)
    assert cells.scopes[1].values["later"](0) == "new"


def test_what_was_executed_has_the_launched_cells_source_and_lines(cells):
    cells.launch("def later(rank):\n    1 / 0")
    cells.run("later")
    code = cells.shell.user_ns["later"].__code__
    (cell, _) = cells.scope.cells
    assert cell.label == "Cell In[1]"
    assert cell.filename == code.co_filename
    assert cell.source.splitlines()[code.co_firstlineno - 1] == "def later(rank):"


def test_future_imports_of_the_cell_are_in_force_and_of_ours_are_not(cells):
    cells.launch("from __future__ import annotations\ndef later(rank: Missing): pass")
    cells.launch("def plain(rank: int): pass")
    assert cells.run("later.__annotations__") == {"rank": "Missing"}
    assert cells.run("plain.__annotations__") == {"rank": int}


def test_a_definition_that_fails_is_told_and_the_cell_runs(cells, capsys):
    cells.launch("import not_here_at_all\ndef later(rank): not_here_at_all")
    assert cells.run("(lambda: later) and 3") == 3
    said = capsys.readouterr().err
    assert said.startswith("Cell In[1] was launched, but its definitions cannot be executed")
    assert "No module named 'not_here_at_all'" in said


def test_a_definition_that_fails_is_told_once_and_keeps_no_other_from_being_executed(cells, capsys):
    cells.launch("import not_here_at_all\ndef later(rank): not_here_at_all")
    cells.launch("def other(rank): return 1")
    cells.run("x = [lambda: later, other]")
    cells.run("x = [lambda: later, other]")
    assert cells.has("other")
    assert capsys.readouterr().err.count("cannot be executed") == 1


@pytest.mark.parametrize(
    "newer",
    [
        "from math import ceil as rnd",
        "exec('rnd = __import__(\"math\").ceil')",
        "get_ipython().push({'rnd': __import__('math').ceil})",
        "import math\nrnd = math.ceil",
        "globals().update(rnd=__import__('math').ceil)",
    ],
)
def test_what_the_notebook_binds_after_a_launch_is_newer_however_it_does(cells, newer):
    cells.launch("from math import floor as rnd\nKEPT = 5\ndef f(rank): pass")
    cells.run(newer)
    assert cells.run("rnd(2.5)") == 3
    assert cells.run("KEPT, rnd(2.5)") == (5, 3)


def test_a_name_that_the_notebook_binds_to_its_former_value_again_is_newer(cells):
    cells.run("n = 1")
    cells.launch("n = 2\ndef f(rank): pass")
    cells.run("n = 1")
    assert cells.run("n") == 1


def test_a_name_of_a_star_import_stays_the_notebooks(cells):
    cells.launch("from math import *\nKEPT = floor(5.5)\ndef f(rank): pass")
    cells.run("floor = 3")
    assert cells.run("floor") == 3


def test_after_a_reset_what_launched_cells_define_is_gone(cells):
    cells.launch("def later(rank): return 'old'")
    cells.run("get_ipython().run_line_magic('reset', '-f')")
    with pytest.raises(NameError, match="later"):
        cells.run("later(0)")


def test_an_import_of_what_a_launched_cell_imports_executes_nothing_of_it(cells, capsys):
    cells.launch("import os, not_here_at_all\ndef later(rank): return os")
    assert cells.run("import os\nos.sep") == "/"
    assert cells.run("os.sep") == "/"
    assert capsys.readouterr().err == ""


def test_only_what_a_cell_uses_of_a_launched_one_is_executed(cells, capsys):
    cells.launch("import not_here_at_all\nRATE = 3\ndef later(rank): return not_here_at_all")
    assert cells.run("RATE") == 3
    assert capsys.readouterr().err == ""


def test_what_a_launched_cell_puts_into_its_own_values_is_there(cells):
    cells.launch("cfg = {}\ncfg['a'] = 1\ndef f(rank): pass")
    assert cells.run("cfg") == {"a": 1}


# ---------------------------------------------------------------- what only the run can tell


def test_a_value_that_a_launched_cell_computed_is_the_runs(cells):
    cells.launch("import os\nmine = os.getpid()\ndef f(rank): pass")
    assert cells.run("mine") != os.getpid()
    assert cells.run("mine") == cells.run("mine")


def test_it_is_one_value_for_the_next_launch_too(cells):
    cells.launch("import random\nseed = random.random()\ndef f(rank): return seed")
    cells.launch("def g(rank): return seed")
    cells.launch("def h(rank): return seed")
    assert cells.scopes[-1].values["seed"] == cells.run("seed")


def test_what_it_refers_to_of_the_notebook_is_the_notebooks_own(cells):
    cells.run("inner = [1]\nouter = {'inner': inner}")
    cells.launch("pair = list((outer['inner'], 2))\nagain = outer\ndef f(rank): return pair")
    assert cells.run("pair[0] is inner and again is outer")


def test_it_keeps_what_the_notebook_held_at_the_launch(cells):
    cells.run("N = 1\nheld = [0]")
    cells.launch("M = N * 10\nbox = dict(held=held)\ndef f(rank): return M")
    cells.run("N = 5\nfirst, held = held, 'other'")
    assert cells.run("M") == 10
    assert cells.run("box['held'] is first")


def test_its_functions_and_classes_are_those_that_made_it(cells):
    cells.launch("class Net:\n    pass\nnet = Net()\nnets = [net]\ndef f(rank): return net")
    assert cells.run("type(net) is Net and nets[0] is net and f(0) is net")


def test_its_functions_see_what_the_notebook_binds_later(cells):
    cells.launch("import random\nseed = random.random()\nscale = 2\ndef f(rank): return scale")
    assert cells.run("f(0)") == 2
    cells.run("scale = 3")
    assert cells.run("f(0)") == 3


def test_what_statements_have_done_to_a_value_is_in_it(cells):
    cells.launch("table = {}\nfor n in range(3):\n    table[n] = n * n\ndef f(rank): pass")
    assert cells.run("table") == {0: 0, 1: 1, 2: 4}


def test_a_definition_that_is_registered_is_registered_once(cells):
    cells.launch(
        "made = {}\ndef register(fn):\n    made[fn.__name__] = fn\n    return fn\n"
        "@register\ndef g(): return 1\ndef f(rank): pass"
    )
    assert cells.run("list(made)") == ["g"]
    assert cells.run("made['g'] is g and made['g']()") == 1


def test_instances_are_of_the_class_that_an_earlier_launched_cell_defines(cells):
    cells.launch("class Net:\n    pass\ndef f(rank): pass")
    cells.launch("net = Net()\ndef g(rank): pass")
    assert cells.run("type(net) is Net")


def test_instances_stay_of_the_class_that_they_were_made_of(cells):
    cells.launch("class Net:\n    def name(self): return 'old'\ndef f(rank): pass")
    cells.run("Net")
    cells.launch("net = Net()\ndef g(rank): pass")
    cells.run("class Net:\n    def name(self): return 'new'")
    assert cells.run("net.name(), Net().name()") == ("old", "new")


def test_a_name_that_the_notebook_has_bound_since_stays_the_notebooks(cells):
    cells.launch("import random\na = random.random()\nb = random.random()\ndef f(rank): pass")
    cells.run("a = 'mine'")
    assert isinstance(cells.run("b"), float)
    assert cells.run("a") == "mine"


def test_imports_and_constants_beside_it_need_no_run(cells, capsys):
    cells.launch("import math as m\nRATE = 3\nx = m.sqrt(4)\ndef f(rank): pass")
    assert cells.run("RATE") == 3
    assert "x" not in cells.shell.user_ns
    assert capsys.readouterr().err == ""


def test_a_value_of_a_run_that_failed_before_is_named(cells, capsys):
    cells.launch("x = len('abc')\ny = 1 / 0\ndef f(rank): pass")
    with pytest.raises(NameError):
        cells.run("x")
    told = "`x` is not there: Cell In[1] ended before its ranks started, and nothing that it bound"
    assert told in capsys.readouterr().err


def test_a_launch_that_needs_such_a_value_is_refused(cells):
    cells.launch("x = len('abc')\ny = 1 / 0\ndef f(rank): pass")
    told = r"name 'x' is not defined .* Cell In\[1\] assigns it, .* failed before that line"
    with pytest.raises(ProgramError, match=told):
        cells.launch("def g(rank): return x")


def test_a_value_that_cannot_be_sent_is_named_and_the_others_are_there(cells, capsys):
    cells.launch(
        "import threading\nlock = threading.Lock()\nn = len('abc')\ndef f(rank): return lock"
    )
    assert cells.run("n") == 3
    assert capsys.readouterr().err == ""
    with pytest.raises(NameError):
        cells.run("lock")
    told = "`lock` was computed by Cell In[1] and cannot be sent to the notebook: cannot pickle"
    assert told in capsys.readouterr().err


def test_a_value_that_cannot_be_opened_is_named(cells, capsys):
    cells.launch(
        "class Odd:\n    def __setstate__(self, state): raise OSError('no')\n"
        "odd = Odd()\nodd.x = 1\ndef f(rank): pass"
    )
    with pytest.raises(NameError):
        cells.run("odd")
    told = "cannot be opened in the notebook: OSError: no. Run Cell In[1] again."
    assert told in capsys.readouterr().err


def test_tracebacks_and_inspect_show_the_source_of_functions_that_a_run_kept(cells):
    cells.launch("import random\nseed = random.random()\ndef f(rank):\n    return seed\n")
    assert cells.run("import inspect\ninspect.getsource(f)") == "def f(rank):\n    return seed\n"


@pytest.mark.parametrize(
    ("before", "text", "names"),
    [
        ("cfg = {}", "cfg['seed'] = id(cfg)", "cfg"),
        ("rows = []", "rows += [1]", "rows"),
        ("rows = []", "rows.append(len(rows))", "rows"),
        ("box = [[]]", "box[0].append(1)", "box"),
        ("import numpy as np\na = np.ones(3)", "a *= 2", "a"),
        ("import torch\nm = torch.nn.Linear(1, 1)", "torch.nn.init.ones_(m.weight)", "m"),
        ("class Net: depth = 1", "Net.depth = len('ab')", "Net"),
        ("def step(): step.calls = 1", "step()", "step"),
        ("seen = set()", "seen.add(3)", "seen"),
        ("a = [1]\nb = [2]", "print(a, b)", ""),
        ("class A: pass\nseen = {A(), A(), 'x'}", "n = len(seen)", ""),
        ("class A: pass\na = A()\nseen = {a, A()}", "seen.remove(a)", "seen"),
        ("import torch\nm = torch.nn.Linear(1, 1)", "m(torch.ones(1)).backward()", "m"),
        ("import random\nr = random.Random(1)", "x = r.random()", "r"),
        ("class Net: pass", "Net.__call__ = lambda self: 1", "Net"),
        ("count = 0\ndef record():\n    global count\n    count += 1", "record()", "count"),
        ("n = 'ab'\ndef same():\n    global n\n    n = ''.join('ab')", "same()", ""),
        ("rows = []\ndef new():\n    global rows\n    rows = []", "new()", "rows"),
        ("n = 0\ndef drop():\n    global n\n    del n", "drop()", "n"),
        ("n = 0\ndef own():\n    global n\n    n += 1", "n = len('ab')\nown()", ""),
        ("floor = 1\ndef g(): return floor", "from math import *\nx = g() or floor(2.5)", ""),
        ("n = 0\ndef g(): return n", "globals()['n'] = g() + 1", "n"),
    ],
)
def test_what_a_launched_cell_changes_of_the_notebooks_is_found(cells, before, text, names):
    cells.run(before)
    cells.launch(f"{text}\ndef f(rank): pass")
    assert cells.runs[-1].changes == names


@pytest.mark.parametrize(
    ("source", "text", "names"),
    [
        ("class C:\n    count = 0\n    def __init__(self): C.count += 1", "c = C()", "C"),
        ("class C: pass", "C.m = lambda self: 1", "C"),
        ("class C: pass", "C.__call__ = lambda self: 1", "C"),
        ("class C: items = []", "C.items.append(1)", "C"),
        ("class C: items = []\nclass D(C): pass", "D.items.append(1)", "C"),
        ("def g(): pass", "g.calls = 5", "g"),
        ("def g(): pass\nclass C: use = g", "C.use.calls = len('ab')", "g"),
        ("from dataclasses import dataclass\n@dataclass\nclass C: n: int = 1", "C.n = 2", "C"),
        ("rows = []\ndef add(n): rows.append(n)", "add(len('ab'))", "rows"),
        ("n = 0\ndef add():\n    global n\n    n += 1", "add()", "n"),
        ("memory = bytearray(b'ab')", "memory[0] = 0", "memory"),
        ("class C: items = []\ndef g(): return C()", "c = g()\nc.items[:]\nrepr(C)", ""),
        ("class C: items = []", "class C: items = []\nC.items.append(1)", ""),
    ],
)
def test_what_a_launched_cell_changes_of_what_another_has_defined_is_found(
    cells, source, text, names
):
    cells.launch(f"{source}\ndef f(rank): pass")
    cells.launch(f"{text}\ndef g2(rank): pass")
    assert cells.runs[-1].changes == names


def test_what_a_launched_cell_changes_of_both_is_named_together(cells):
    cells.run("rows = []")
    cells.launch("class C: items = [rows]\ndef f(rank): pass")
    cells.launch("class D: items = []\ndef f(rank): pass")
    cells.launch("C.items[0].append(1)\nD.items.append(C)\ndef f(rank): pass")
    assert cells.runs[-1].changes == "C D"


def test_a_launched_cell_that_failed_to_load_leaves_what_the_notebook_had(cells):
    cells.run("x = 'mine'")
    cells.launch("x = len('abc')\ny = 1 / 0\ndef f(rank): pass")
    assert cells.run("x") == "mine"


def test_a_launched_cell_may_run_again_on_what_it_made(cells):
    cells.run("x = 1")
    for _ in range(2):
        cells.launch("x = x + 1\ndef f(rank): pass")
    assert cells.run("x") == 3


def test_a_constant_that_is_bound_anew_changes_nothing_that_was_made_of_it(cells):
    cells.launch("BATCH = 8\nTOTAL = BATCH * 10\ndef f(rank): return TOTAL")
    cells.run("BATCH = 16")
    assert cells.run("TOTAL, BATCH, f(0)") == (80, 16, 80)


def test_a_name_that_the_cell_deletes_is_gone(cells):
    cells.run("tmp = 5")
    cells.launch("tmp = len('abc')\ny = tmp\ndel tmp\ndef f(rank): pass")
    assert cells.run("y") == 3
    with pytest.raises(NameError):
        cells.run("tmp")
    with pytest.raises(ProgramError, match="name 'tmp' is not defined"):
        cells.launch("def g(rank): return tmp")


def test_a_name_that_a_function_of_the_cell_deletes_as_its_own_stays_the_notebooks(cells):
    cells.run("x = 7")
    cells.launch("n = sum([1])\nif n > 1: x = n\ndef f(rank):\n    x = 1\n    del x")
    assert cells.run("n, x") == (1, 7)


def test_a_name_that_a_function_of_the_cell_deletes_in_the_module_is_gone(cells):
    cells.run("x = 7")
    cells.launch(
        "n = sum([1])\nif n > 1: x = n\ndef drop():\n    global x\n    del x\ndrop()\n"
        "def f(rank): pass"
    )
    assert cells.run("n") == 1
    with pytest.raises(NameError):
        cells.run("x")


def test_what_a_function_of_the_cell_sets_is_the_runs(cells):
    cells.launch(
        "count = 0\ndef bump():\n    global count\n    count += 1\nbump()\n"
        "def f(rank): return count"
    )
    assert cells.run("count") == 1


@pytest.mark.parametrize(
    "wrapped",
    [
        "import functools\ndef outer(fn):\n    @functools.wraps(fn)\n"
        "    def inner(): return fn()\n    return inner\n@outer\ndef use(): return model",
        "import functools\n@functools.cache\ndef use(): return model",
        "import functools\nuse = functools.partial(lambda n: model, 1)",
        "class A:\n    @property\n    def p(self): return model\nuse = lambda: A().p",
        "class A:\n    @classmethod\n    def p(cls): return model\nuse = A.p",
        "held = [lambda: model]\nuse = lambda: held[0]()",
    ],
)
def test_what_functions_use_however_they_are_wrapped_is_taken(cells, wrapped):
    cells.run(f"model = 'old'\n{wrapped}")
    cells.launch("model = str(3)\ndef f(rank): pass")
    assert cells.run("use()") == "3"


def test_the_line_of_a_magic_is_filled_in_with_what_launched_cells_define(cells):
    cells.run("N = 1")
    cells.launch("N = 3\nM = len('ab')\ndef f(rank): pass")
    cells.notebook.define_for_line("-n {N} --env A=$M")
    assert cells.run("N, M") == (3, 2)


@pytest.mark.parametrize("then", ["x", "x = f = 1", "get_ipython().run_line_magic('reset', '-f')"])
def test_the_file_is_deleted_once_nobody_needs_it(cells, then, tmp_path):
    cells.launch("x = sorted('ab')\ndef f(rank): pass")
    (file,) = tmp_path.rglob("module.result")
    cells.run(then)
    cells.run("1")
    assert not file.exists()


def test_objects_that_the_values_do_not_refer_to_are_let_go(cells):
    cells.run("class Big: pass\nbig = Big()\nheld = []\nimport weakref\nref = weakref.ref(big)")
    cells.launch("box = tuple([held])\nn = id(big)\ndef f(rank): return box")
    cells.scopes.clear()
    cells.programs.clear()
    cells.run("del big")
    cells.run("import gc; gc.collect()")
    assert cells.run("ref() is None")


# ---------------------------------------------------------------- results


def test_a_result_finds_the_names_of_the_notebook(cells):
    cells.run("class Net: pass")
    assert cells.notebook.resolve("Net") is cells.shell.user_ns["Net"]


def test_a_result_finds_what_launched_cells_define(cells):
    cells.launch("class Net: pass\ndef f(rank): return Net()")
    assert cells.notebook.resolve("Net") is cells.shell.user_ns["Net"]


def test_a_name_nobody_defines_is_a_key_error(cells):
    with pytest.raises(KeyError, match="Missing"):
        cells.notebook.resolve("Missing")


# ---------------------------------------------------------------- which notebook


def test_a_shell_has_one_notebook(cells):
    assert notebook.of(cells.shell) is notebook.of(cells.shell)
    notebook.of.cache_clear()


def test_code_in_a_shell_finds_its_notebook(cells, monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: cells.shell)
    assert notebook.current().shell is cells.shell
    notebook.of.cache_clear()


def test_code_in_no_shell_finds_none(monkeypatch):
    assert notebook.current() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook.current() is None


@pytest.mark.parametrize(
    "cell",
    [
        "if resume:\n    model = [len('abc')]",
        "try:\n    model = open('/not/there').read()\nexcept OSError:\n    pass",
        "for model in list(''):\n    pass",
        "while resume:\n    model = 1",
    ],
)
def test_what_a_launched_cell_might_have_bound_and_has_not_is_as_before(cells, cell):
    cells.run("model, resume = ['trained'], bool('')")
    cells.launch(f"{cell}\ndef f(rank): return rank")
    assert cells.run("model") == ["trained"]


def test_a_cell_that_raised_binds_nothing(cells):
    cells.run("K = 'old'\ndef helper(): return 'old'")
    cells.launch("x = len(5)\nK = 'new'\ndef helper(): return 'new'\ndef f(rank): return helper()")
    assert cells.run("helper(), K") == ("old", "old")
    with pytest.raises(NameError):
        cells.run("f")


def test_a_launch_after_a_cell_that_raised_has_what_the_notebook_had(cells):
    cells.run("K = 'old'")
    cells.launch("x = len(5)\nK = 'new'\ndef f(rank): pass")
    cells.launch("n = len(K)\ndef g(rank): return K")
    assert cells.run("n, K") == (3, "old")


def test_an_import_that_the_notebook_has_is_not_taken_from_it(cells):
    cells.run("import collections as c\nfrom math import pi\nimport os.path")
    cells.launch(
        "import collections as c, os.path\nfrom math import pi\nn = len('abc')\ndef f(rank): pass"
    )
    names = cells.shell.user_ns
    assert {"c", "pi", "os"} <= names.keys()


def test_a_name_that_only_a_function_of_the_cell_binds_is_taken_from_the_run(cells):
    cells.launch(
        "def setup():\n    global model\n    model = [1]\nsetup()\ndef f(rank): return model"
    )
    assert cells.run("model") == [1]
    assert cells.run("model is model and setup.__name__") == "setup"


def test_such_a_name_is_found_through_a_function_of_the_notebook(cells):
    cells.run("OFF = 200\ndef tf(i): return i + OFF")
    cells.launch("def setup():\n    global OFF\n    OFF = sum([1, 2])\nsetup()\ndef f(rank): pass")
    assert cells.run("tf(1)") == 4


@pytest.mark.parametrize(
    "cell",
    [
        "def f(rank):\n    global OFF\n    OFF = 1000\n    return OFF, ids",
        "class A:\n    def m(self):\n        global OFF\n        OFF = 1000\ndef f(rank): A().m()",
        "def f(rank):\n    def g():\n        global OFF\n        OFF = 1000\n    g()",
    ],
)
def test_a_name_that_only_what_ranks_call_binds_stays_the_notebooks(cells, cell):
    cells.run("OFF = 200\ndef tf(i): return i + OFF if 'OFF' in globals() else None")
    before = dict(cells.shell.user_ns)
    cells.launch(f"ids = list(range(3))\n{cell}")
    assert cells.shell.user_ns["OFF"] == before["OFF"]  # as another thread finds it
    assert cells.runs[-1].changes == ""
    assert cells.run("tf(1)") == 201


def test_a_name_that_a_launched_cell_computed_is_not_hidden_by_a_later_one_that_may_set_it(cells):
    cells.launch("OFF = sum([1, 2])\ndef f(rank): return OFF")
    cells.launch("n = sum([1])\ndef g(rank):\n    global OFF\n    OFF = 1000")
    assert cells.run("OFF, n") == (3, 1)


def test_what_the_top_level_binds_in_a_way_that_its_text_does_not_show_is_told(cells):
    cells.run("OFF = 200")
    cells.launch(
        "import sys\nids = list(range(3))\ndef f(rank):\n    global OFF\n    OFF = 1000\n"
        "sys.modules['__main__'].f(0)"
    )
    assert cells.run("OFF") == 200
    assert cells.runs[-1].changes == "OFF"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("SEED = 0\ncall()", 42),
        ("pi = 3\nfrom math import *", 3.141592653589793),
        ("K = 3\nexec('K = 4')", 4),
        ("J = 1\nglobals()['J'] = 2", 2),
        ("SEED = 0\nset_seed(42)", 42),
    ],
)
def test_a_constant_that_the_cell_binds_anew_is_the_runs(cells, cell, value):
    cells.run("def set_seed(s):\n    global SEED\n    SEED = s\ndef call(): set_seed(42)")
    cells.launch(f"{cell}\ndef f(rank): pass")
    assert cells.run(cell.partition(" ")[0]) == value


def test_so_is_one_that_a_function_of_an_earlier_launch_binds_anew(cells):
    cells.launch("def set_seed(s):\n    global SEED\n    SEED = s\ndef f(rank): pass")
    cells.launch("SEED = 0\nset_seed(42)\ndef g(rank): pass")
    assert cells.run("SEED") == 42


def test_members_of_an_enum_of_an_earlier_launch_are_the_enums(cells):
    cells.launch("from enum import Enum\nclass Mode(Enum):\n    TRAIN = 1\ndef f(rank): pass")
    cells.launch("mode = Mode.TRAIN\nn = len('abc')\ndef g(rank): pass")
    assert cells.run("mode is Mode.TRAIN, {Mode.TRAIN: 1}[mode], n") == (True, 1, 3)


def test_what_may_be_suppressed_does_not_hide_the_notebooks_value(cells):
    cells.run("import contextlib\nx = 7")
    cells.launch(
        "with contextlib.suppress(ZeroDivisionError):\n    x = 1 / 0\ndef f(rank): return x"
    )
    assert cells.run("x") == 7


def test_a_computed_tensor_without_its_computation_is_told(cells, capsys):
    cells.run("import torch\nmodel = torch.nn.Linear(2, 1)")
    cells.launch("loss = model(torch.ones(1, 2)).sum()\ndef f(rank): pass")
    cells.run("loss")
    assert (
        "without what computed it (its grad_fn): backward() ends there" in capsys.readouterr().err
    )


def test_an_interrupted_wait_for_a_value_keeps_the_cell_from_being_executed(cells, monkeypatch):
    def interrupted(kept, names):
        raise Interrupted("`x` was not computed yet")

    cells.launch("x = len('abc')\ndef f(rank): pass")
    with monkeypatch.context() as patch:
        patch.setattr(Kept, "_wait", interrupted)
        with pytest.raises(
            XlaNbError, match="This cell was not executed: `x` was not computed yet"
        ):
            cells.run("ran = True\nx")
    assert "ran" not in cells.shell.user_ns
    assert cells.run("x") == 3


def test_interrupted_definitions_can_be_executed_later(cells, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import builtins\nbuiltins.slow_to_import()\n")
    monkeypatch.syspath_prepend(tmp_path)
    cells.launch("from slow_to_import import __name__ as m\ndef f(rank): return m")

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.slow_to_import", interrupted, raising=False)
    with pytest.raises(XlaNbError, match=r"the definitions of Cell In\[1\] were still being"):
        cells.run("ran = m")
    assert not cells.has("ran")
    monkeypatch.setattr("builtins.slow_to_import", bool)
    assert cells.run("m") == "slow_to_import"
    del sys.modules["slow_to_import"]


def test_a_value_whose_runs_files_are_gone_is_told_with_what_to_do(cells, capsys):
    cells.launch("import os\nmodel = os.getpid()\ndef f(rank): return model")
    (run,) = cells.runs
    run.record.module_values.unlink()
    cells.run("1 + 1")
    cells.shell.run_cell("model")
    said = capsys.readouterr()
    assert "FileNotFoundError" not in said.out + said.err
    assert "the files of that run are gone from" in said.err
    assert f"Run {run.label} again." in said.err


@pytest.mark.parametrize("content", [b"", bytes(range(256)), b"%016d{}" % 2])
def test_a_value_whose_file_is_damaged_is_told_with_what_to_do(cells, capsys, content):
    cells.launch("import os\nmodel = os.getpid()\ndef f(rank): return model")
    (run,) = cells.runs
    run.record.module_values.write_bytes(content)
    cells.run("1 + 1")
    cells.shell.run_cell("model")
    said = capsys.readouterr()
    assert "ValueError" not in said.out + said.err
    assert f"{run.record.module_values} is damaged" in said.err
    assert f"Run {run.label} again." in said.err


# ---------------------------------------------------------------- what a statement does not bind


@pytest.mark.parametrize(
    ("before", "launched", "expression"),
    [
        (
            "fast, HAS = None, False",
            "try:\n    import no_such as fast\n    HAS = True\nexcept ImportError:\n    pass",
            "(fast, HAS) == (None, False)",
        ),
        ("k = 3", "try:\n    k = 1 / 0\nexcept ZeroDivisionError:\n    pass", "k == 3"),
        ("x = 3", "x: float", "x == 3"),
        ("A = 1", "if TYPE_CHECKING:\n    import no_such as A\nB = 2", "(A, B) == (1, 2)"),
        ("k = 3", "try:\n    k = 4\nexcept ZeroDivisionError:\n    pass", "k == 4"),
    ],
)
def test_what_a_statement_does_not_bind_keeps_its_value(cells, before, launched, expression):
    cells.run(f"from typing import TYPE_CHECKING\n{before}")
    cells.launch(f"{launched}\ndef f(rank): return {expression}")
    assert cells.run("f(0)")
    assert cells.run(expression)


@pytest.mark.parametrize("package", ["pkgz", "pkgz.inner"])
def test_what_a_star_import_binds_is_newer_than_the_notebooks(
    cells, package, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pkgz").mkdir()
    (tmp_path / "pkgz" / "__init__.py").write_text("aa, _hidden = 9, 9")
    (tmp_path / "pkgz" / "inner.py").write_text("__all__ = ['aa']\naa, other = 9, 9")
    cells.run("aa, other, _hidden = 7, 7, 7")
    cells.launch(f"from {package} import *\ndef f(rank): return aa")
    cells.launch("def g(rank): return aa")
    assert not cells.has("aa")
    assert cells.run("aa, other, _hidden, f(0), g(0)") == (9, 7, 7, 9, 9)
    for name in ("pkgz", "pkgz.inner"):
        sys.modules.pop(name, None)


# ---------------------------------------------------------------- what cannot be read


def test_every_line_end_of_python_ends_a_line(cells):
    launched = cells.launch("a = 1\rb = 2\r\nc = 3")
    assert launched.source.rstrip().split("\n") == ["#%%xla_spawn -n 2", "a = 1", "b = 2", "c = 3"]


def test_a_cell_that_ipython_cannot_read_is_refused_with_its_line(cells):
    with pytest.raises(ProgramError, match=r"^Cell In\[1\], line 4: unindent does not match"):
        cells.launch("if True:\n    a = 1\n  b = 2")


@pytest.mark.parametrize(
    "text",
    ["if True:\n    later\n  b = 2", "later = '\0'", "later = '\ud800'"],
    ids=["indentation", "NUL", "surrogate"],
)
def test_a_cell_that_cannot_be_read_is_left_to_ipython(cells, capsys, text):
    cells.launch("def later(rank): pass")
    with pytest.raises((SyntaxError, ValueError)):
        cells.run(text)
    assert "Error in callback" not in capsys.readouterr().out
    assert cells.has("later")


def test_any_word_of_code_that_is_too_deep_may_be_a_name(cells):
    cells.launch("def later(rank): pass")
    cells.notebook.define_for(f"later, {'-' * 5000}1")
    assert cells.has("later")


def test_a_deep_cell_before_does_not_prevent_a_launch(cells):
    cells.run(
        "import os.path\nn = 0\nif n: pass\n"
        + "".join(f"elif n == {n + 1}: pass\n" for n in range(600))
    )
    assert cells.launch("def f(rank): return n").label == "Cell In[2]"
