"""Which cells do the same when they are executed again, and which names only their run can tell."""

import ast
import textwrap

import pytest

from xla_nb.program.outcome import names_of_the_run

OUTSIDE = {"torch", "nn", "dataclass", "len", "dict", "list", "object", "range"}  # steady
HEAD = "import os\nRATE = 3\n"


def of_the_run(source):
    nodes = ast.parse(HEAD + textwrap.dedent(source)).body
    return names_of_the_run(nodes, OUTSIDE.__contains__)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 3",
        "'a docstring'",
        "shape = (2, -3)",
        "names: list = ['a', 'b']",
        "both = RATE * 2, f'{RATE}'",
        "cfg = dict(a=1)\ncfg['b'] = 2",
        "dtype = torch.bfloat16",
        "def f(i, n=3, t=torch.float32): return compute()",
        "class Net(nn.Module):\n    width = 3\n    def forward(self, x): return make(x)",
        "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...",
        "@torch.no_grad()\ndef f(i): pass",
        "@dataclass\nclass A:\n    x: int = 3",
        "@app.route('/')\ndef f(i): pass",
        "try:\n    import a\nexcept ImportError:\n    a = None",
        "def f(i): pass\nTABLE = {'f': f}",
        "N = 1\nN += 2",
        "double = lambda x: make(x)",
        "if RATE:\n    def f(i): pass",
    ],
)
def test_plain_definitions_and_constants_need_no_run(source):
    assert of_the_run(source) == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = make()", {"x"}),
        ("x = OTHER * 2", {"x"}),
        ("x = os.environ['A']", {"x"}),
        ("x = [make() for _ in range(3)]", {"x"}),
        ("N += 2", {"N"}),
        ("def f(i, x=make()): pass", {"f"}),
        ("def f(i, x=OTHER): pass", {"f"}),
        ("class A(OTHER): pass", {"A"}),
        ("class A:\n    x = make()", {"A"}),
        ("class A: pass\nclass B(A): pass", {"A", "B"}),
        ("def deco(f): return f\n@deco\ndef g(): pass", {"deco", "g"}),
        ("t = {}\nfor i in range(3):\n    t[i] = i", {"t", "i"}),
        ("def f(i): pass\nprint(f)", {"f"}),
        ("if (y := make()):\n    z = 1", {"y", "z"}),
        ("with make() as m: pass", {"m"}),
        ("len = 3\nx = len('a')", {"x"}),
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
