"""What the notebook has put into a module in place of the module's own travels as it is."""

import keyword
import sys
import types

import pytest
import torch  # or the folder of a test would forget it with its modules

from tests.support.fresh import launched
from xla_nb.pickling.rebuild import take_notices

pytestmark = pytest.mark.usefixtures("fresh_processes")

TRACED = """
import functools
calls = []
def traced(f):
    @functools.wraps(f)
    def traced_call(*args, **named):
        calls.append(f.__name__)
        return f(*args, **named)
    return traced_call
"""


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("torch.Tensor.sigmoid", "x.sigmoid().item()"),
        ("torch.nn.functional.relu", "act(x).item()"),
        ("torch.nn.init.kaiming_uniform_", "type(made(1, 1)).__name__"),
    ],
)
def test_what_torchs_own_code_calls_is_told_all_the_same(notebook, monkeypatch, name, asked):
    notebook.run("import torch\nx, act, made = torch.ones(1), torch.nn.ReLU(), torch.nn.Linear")
    holder, last = name.rpartition(".")[::2]
    monkeypatch.setattr(eval(holder), last, eval(name))  # to be put back
    notebook.run(f"own = {name}\n{name} = lambda *args, **named: own(*args, **named)")
    assert list(launched(notebook, f"def f(rank): return {asked}")[1]) == kept(name)


SHAPES = """
import dataclasses, functools
def twice(f):
    @functools.wraps(f)
    def doubled(*args): return 2 * f(*args)
    return doubled
def area(side): return side * side
@twice
def around(side): return 2 * side
class Box:
    def __init__(self, side=1): self.side = side
    def area(self): return area(self.side)
class Small(Box): pass
@dataclasses.dataclass
class Plain: side: int = 1
def is_box(value): return isinstance(value, Box)
"""


@pytest.fixture
def modules(local, monkeypatch):
    """Installed modules whose attributes are bound anew, also by the launches of another test."""
    installed = local / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "shapes.py").write_text(SHAPES)
    (installed / "shop.py").write_text("from shapes import area, Box\n")


def kept(*names):
    return [
        f"`{name}` was set in the notebook: ranks get it only through values that refer to it, not "
        "in the module"
        for name in names
    ]


#: What the notebook does, what a rank is asked and answers, and the notes.
REPLACED = {
    "a function": (
        "shapes.area = traced(shapes.area)\nmine = shapes.area",
        "mine(3), shapes.area(3), calls",
        (9, 9, ["area"]),
        kept("shapes.area"),
    ),
    "what a cache has": (
        "shapes.area = functools.cache(traced(shapes.area))\nmine = shapes.area",
        "mine(3) + mine(3), calls",
        (18, ["area"]),
        kept("shapes.area"),
    ),
    "what has another decorator of the module's": (
        "shapes.area = shapes.twice(shapes.area)\nmine = shapes.area",
        "mine(3)",
        9,
        ["`shapes.area` was wrapped in the notebook after its import; ranks use it as imported"],
    ),
    "a method, also of an instance whose class inherits it": (
        "from shapes import Box, Small\nBox.area = traced(Box.area)\nmine, box = Box.area, Small()",
        "mine(Box(3)), calls, box.area()",
        (9, ["area"], 1),
        kept("shapes.Box.area"),
    ),
    "a method of a class that is reached through a module that imports it": (
        "import shop\nshapes.Box.area = traced(shapes.Box.area)",
        "shop.Box(2).area()",
        4,
        kept("shapes.Box.area"),
    ),
    "a subclass of the notebook's": (
        "class Tall(shapes.Box): pass\nshapes.Box = Tall",
        "shapes.Box.__name__",
        "Box",
        kept("shapes.Box"),
    ),
    "a class": (
        "class Box(shapes.Box):\n    __module__ = 'shapes'\n"
        "    def area(self): return -1\nshapes.Box = Box\nbox = shapes.Box(3)",
        "box.area(), type(box).__mro__[1] is shapes.Box, shapes.is_box(box)",
        (-1, True, True),
        kept("shapes.Box.area", "shapes.Box"),
    ),
    "what the module has imported": (
        "import shop\nshop.area = traced(shop.area)",
        "shop.area(3)",
        9,
        kept("shop.area"),
    ),
    "what is added to a module": (
        "shapes.mine = traced(shapes.area)",
        "hasattr(shapes, 'mine') and shapes.mine(3)",
        False,
        kept("shapes.mine"),
    ),
    "nothing": (
        "from shapes import area, around, Small",
        "(area is shapes.area, around is shapes.around, Small.__base__ is shapes.Box)",
        (True, True, True),
        [],
    ),
    "nothing of torch's": (
        "import torch\nfrom torch.nn.init import uniform_\n"
        "from torch.nn.functional import softmax\n"
        "step, wrapped = torch.optim.Optimizer.zero_grad, torch.no_grad()(shapes.area)",
        "(uniform_ is torch.nn.init.uniform_, softmax is torch.nn.functional.softmax, "
        "step is torch.optim.Optimizer.zero_grad, wrapped.__wrapped__ is shapes.area)",
        (True, True, True, True),
        [],
    ),
}


@pytest.mark.parametrize(("cell", "asked", "expected", "notes"), REPLACED.values(), ids=REPLACED)
def test_what_replaces_a_modules_own_is_on_ranks_where_a_value_refers_to_it_and_told(
    notebook, modules, cell, asked, expected, notes
):
    notebook.run(f"import shapes\n{TRACED}{cell}")
    found, told = launched(notebook, f"def f(rank): return {asked}")
    assert (found, list(told)) == (expected, notes)


@pytest.mark.parametrize(
    "cell",
    [
        "def f(rank):\n    import shapes as s\n    return s.area(3)",
        "import shop, shapes\nfrom shapes import Box\n"
        "def f(rank): return Box(3).area(), shapes.area(3)",
    ],
)
def test_a_note_also_tells_of_what_the_launched_cell_itself_imports(notebook, modules, cell):
    notebook.run(
        f"{TRACED}import shapes\n"
        "shapes.area, shapes.Box.area = traced(shapes.area), traced(shapes.Box.area)"
    )
    notebook.run("del shapes")
    assert set(kept("shapes.area")) <= {*notebook.build(cell).notes}


ANEW = {
    "a function of a library for another": ("F.relu = F.silu", "silu"),
    "a partial of it": ("F.softmax = functools.partial(F.softmax, dim=1)", "partial"),
    "a class that comes by import *": ("nn.BatchNorm1d = nn.Identity", "Identity"),
}


@pytest.mark.parametrize(("write", "here"), ANEW.values(), ids=ANEW)
def test_a_note_says_what_a_librarys_name_is_on_ranks(notebook, monkeypatch, write, here):
    module = torch.nn if write.startswith("nn") else torch.nn.functional
    name = write.partition(" ")[0].partition(".")[2]
    monkeypatch.setattr(module, name, getattr(module, name))
    notebook.run("import functools\nimport torch.nn as nn, torch.nn.functional as F")
    notebook.run(write)
    cell = "def f(rank):\n    if rank: return F.relu, F.softmax, nn.BatchNorm1d"
    assert list(launched(notebook, cell)[1]) == [
        f"`{module.__name__}.{name}` is `{here}` in the notebook but `{name}` on ranks, which "
        "use it as imported"
    ]


def test_what_libraries_have_under_other_names_or_replace_themselves_is_not_told(notebook):
    import torch_xla.distributed.xla_backend  # noqa: F401  # which replaces torch's new_group

    modules = "torch", "torch.nn", "torch.nn.functional", "torch.distributed", "numpy"
    read = [
        f"        {module}.{name}"
        for module in modules
        for name in vars(sys.modules[module])
        if name.isidentifier() and not keyword.iskeyword(name)
    ]
    notebook.run("import numpy, torch.distributed, torch.nn.functional")
    cell = "\n".join(["def f(rank):", "    if rank:", *read])
    assert launched(notebook, cell) == (None, ())


def test_what_a_library_of_ranks_alone_puts_there_is_not_told(notebook, modules, monkeypatch):
    notebook.run("import shapes")
    program = notebook.build("def f(rank): return shapes.around(1)")
    its = types.FunctionType((lambda side: 5).__code__, {"__name__": "patches"}, "around")
    monkeypatch.setattr(sys.modules["shapes"], "around", its)
    take_notices()  # of another test
    assert notebook.rank(program) == 5
    assert take_notices() == []
