"""Which cells do the same when they are executed again, and which names only their run can tell."""

import ast
import textwrap

import pytest

from xla_nb.program.outcome import names_of_the_run

OUTSIDE = {"torch", "nn", "dataclass", "len", "dict", "list", "object", "range"}  # steady
HEAD = "import os\nRATE = 3\n"


def of_the_run(source, elsewhere=lambda names: (set(), set())):
    nodes = ast.parse(HEAD + textwrap.dedent(source)).body
    return names_of_the_run(nodes, OUTSIDE.__contains__, elsewhere)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 3",
        "'a docstring'",
        "shape = (2, -3)",
        "names: list = ['a', 'b']",
        "cfg = dict(a=1)",
        "def f(i, n=3): return compute()",
        "class Net(nn.Module):\n    width = 3\n    def forward(self, x): return make(x)",
        "class A:\n    @x.setter\n    def x(self, v): ...\n    def x(self): ...",
        "@torch.no_grad()\ndef f(i): pass",
        "@dataclass\nclass A:\n    x: int = 3",
        "try:\n    import a\nexcept ImportError:\n    a = None",
        "double = lambda x: make(x)",
    ],
)
def test_plain_definitions_and_literals_need_no_run(source):
    assert of_the_run(source) == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = make()", {"x"}),
        ("x = OTHER * 2", {"x"}),
        ("x = RATE * 2", {"x"}),
        ("x = os.environ['A']", {"x"}),
        ("x = torch.bfloat16", {"x"}),
        ("x = {'a', 'b'}", {"x"}),  # in another order in another process
        ("x = [make() for _ in range(3)]", {"x"}),
        ("N += 2", {"N"}),
        ("N = [1]\nN += [2]", {"N"}),
        ("cfg = {}\ncfg['a'] = 1", {"cfg"}),
        ("def f(i, x=make()): pass", {"f"}),
        ("def f(i, x=RATE): pass", {"f"}),
        ("def f(i): pass\nTABLE = {'f': f}", {"f", "TABLE"}),
        ("class A(OTHER): pass", {"A"}),
        ("class A(nn.Module, metaclass=OTHER): pass", {"A"}),
        ("class A:\n    x = make()", {"A"}),
        ("class A: pass\nclass B(A): pass", {"A", "B"}),
        ("def deco(f): return f\n@deco\ndef g(): pass", {"deco", "g"}),
        ("@app.route('/')\ndef f(i): pass", {"f"}),
        ("t = {}\nfor i in range(3):\n    t[i] = i", {"t", "i"}),
        ("def f(i): pass\nprint(f)", {"f"}),
        ("if RATE:\n    def f(i): pass", {"f"}),
        ("if (y := make()):\n    z = 1", {"y", "z"}),
        ("with make() as m: pass", {"m"}),
        ("dict = 3\nx = dict(a=1)", {"x"}),
        ("def f(i):\n    global n\n    n = 1\nf(0)", {"f", "n"}),
        ("import app\n@app.now\ndef f():\n    global n\n    n = 1", {"f"}),
        ("import app\nclass A:\n @app.now\n def f():\n  global n\n  n = 1", {"A"}),
    ],
)
def test_what_is_computed_is_of_the_run(source, names):
    assert of_the_run(source) == names


def test_so_is_all_that_may_refer_to_it():
    assert of_the_run("def f(i): return x\nx = make()\nt = []") == {"f", "x", "t"}


def test_imports_and_constants_beside_it_are_not():
    assert not {"os", "RATE"} & of_the_run("x = make()")


def test_a_constant_that_is_changed_is():
    assert of_the_run("N = 1\nN = make(N)") == {"N"}


SETS = "def f(i):\n    global n\n    n = 1\n"
METHOD = "class A:\n    def m(self):\n        global n\n        n = 1\n"


@pytest.mark.parametrize(
    "source",
    [
        f"x = make()\n{SETS}",
        f"x = make()\n{METHOD}",
        "x = make()\ndef f(i):\n    def g():\n        global n\n        n = 1\n    g()",
        f"x = make()\n{SETS}def g(i): return f(i)",
        f"x = OTHER()\nx.f()\n{SETS}",
        f"@torch.no_grad()\n{SETS}x = make()",
        f"if make():\n{textwrap.indent(SETS, '    ')}",
    ],
)
def test_what_only_functions_bind_that_the_top_level_does_not_call_is_not(source):
    assert "n" not in of_the_run(source)


@pytest.mark.parametrize(
    "source",
    [
        f"{SETS}f(0)",
        f"{SETS}def g(): f(0)\ng()",
        f"{SETS}class B:\n    def __init__(self): f(0)\nb = B()",
        f"{METHOD}A().m()",
        f"{METHOD}class B(A):\n    pass\nb = B()",
        f"{SETS}list(map(f, [1]))",
        f"{SETS}x = make(lambda: f(0))",
        f"@make\n{SETS}",
        "class A:\n    def m():\n        global n\n        n = 1\n    m()",
        "class A(OTHER):\n    def m(self):\n        global n\n        n = 1",
        f"{SETS}with make(f): pass",
        f"{SETS}exec('f(0)')",
        f"{SETS}globals()['f'](0)",
        f"if make():\n{textwrap.indent(SETS, '    ')}    f(0)",
        f"{SETS}def g(i, x=f(0)): pass",
    ],
)
def test_what_only_functions_bind_that_the_top_level_may_call_is(source):
    assert "n" in of_the_run(source)


def test_so_is_what_functions_bind_that_others_of_the_notebook_call():
    def elsewhere(names):
        return ({"f"} if "call" in names else set()), set()

    assert "n" in of_the_run(f"{SETS}call()", elsewhere)
    assert "n" not in of_the_run(f"{SETS}other()", elsewhere)


def test_a_constant_that_a_function_called_by_another_of_the_notebook_binds_anew_is():
    def elsewhere(names):
        return ({"set_seed"} if "call" in names else set()), (
            {"RATE"} if "set_seed" in names else set()
        )

    assert "RATE" in of_the_run("call()", elsewhere)
    assert "RATE" not in of_the_run("other()", elsewhere)
