"""Replacements that the notebook sets in modules are sent with the values that refer to them."""

import keyword
import sys
import types

import pytest
import torch  # imported here so that `local` does not unload it

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
def test_note_reports_replaced_functions_that_torch_calls(notebook, monkeypatch, name, asked):
    notebook.run("import torch\nx, act, made = torch.ones(1), torch.nn.ReLU(), torch.nn.Linear")
    holder, last = name.rpartition(".")[::2]
    monkeypatch.setattr(eval(holder), last, eval(name))  # so that it is restored
    notebook.run(f"own = {name}\n{name} = lambda *args, **named: own(*args, **named)")
    assert list(launched(notebook, f"def f(rank): return {asked}")[1]) == set_notes(name)


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
    """Installed modules whose attributes are replaced, also by launches in other tests."""
    installed = local / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "shapes.py").write_text(SHAPES)
    (installed / "shop.py").write_text("from shapes import area, Box\n")
    (installed / "depot.py").write_text("from shapes import around, twice\naround.unit = 'cm'\n")


def set_notes(*names):
    return [
        f"`{name}` was set in the notebook: ranks get it only through values that refer to it, not "
        "in the module"
        for name in names
    ]


#: Notebook cell, expression on ranks, expected value and notes.
REPLACED = {
    "a function": (
        "shapes.area = traced(shapes.area)\nmine = shapes.area",
        "mine(3), shapes.area(3), calls",
        (9, 9, ["area"]),
        set_notes("shapes.area"),
    ),
    "a cached function": (
        "shapes.area = functools.cache(traced(shapes.area))\nmine = shapes.area",
        "mine(3) + mine(3), calls",
        (18, ["area"]),
        set_notes("shapes.area"),
    ),
    "a function wrapped by the module's decorator": (
        "shapes.area = shapes.twice(shapes.area)\nmine = shapes.area",
        "mine(3)",
        9,
        ["`shapes.area` was wrapped in the notebook after its import; ranks use it as imported"],
    ),
    "a method, also for an instance that inherits it": (
        "from shapes import Box, Small\nBox.area = traced(Box.area)\nmine, box = Box.area, Small()",
        "mine(Box(3)), calls, box.area()",
        (9, ["area"], 1),
        set_notes("shapes.Box.area"),
    ),
    "a method of a class reached through another module": (
        "import shop\nshapes.Box.area = traced(shapes.Box.area)",
        "shop.Box(2).area()",
        4,
        set_notes("shapes.Box.area"),
    ),
    "a notebook subclass": (
        "class Tall(shapes.Box): pass\nshapes.Box = Tall",
        "shapes.Box.__name__",
        "Box",
        set_notes("shapes.Box"),
    ),
    "a class that names the module as its own": (
        "class Box(shapes.Box):\n    __module__ = 'shapes'\n"
        "    def area(self): return -1\nshapes.Box = Box\nbox = shapes.Box(3)",
        "box.area(), type(box).__mro__[1] is shapes.Box, shapes.is_box(box)",
        (-1, True, True),
        set_notes("shapes.Box.area", "shapes.Box"),
    ),
    "a function that the module imported": (
        "import shop\nshop.area = traced(shop.area)",
        "shop.area(3)",
        9,
        set_notes("shop.area"),
    ),
    "a function added to a module": (
        "shapes.mine = traced(shapes.area)",
        "hasattr(shapes, 'mine') and shapes.mine(3)",
        False,
        set_notes("shapes.mine"),
    ),
    "nothing replaced": (
        "from shapes import area, around, Small",
        "(area is shapes.area, around is shapes.around, Small.__base__ is shapes.Box)",
        (True, True, True),
        [],
    ),
    "a decorator set up by the module from which it is imported": (
        "from depot import twice\n@twice\ndef mine(side): return side",
        "mine(2), shapes.around.unit",
        (4, "cm"),
        [],
    ),
    "nothing replaced in torch": (
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
def test_replacements_reach_ranks_through_values_with_a_note(
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
def test_note_covers_replacements_in_modules_that_the_cell_imports(notebook, modules, cell):
    notebook.run(
        f"{TRACED}import shapes\n"
        "shapes.area, shapes.Box.area = traced(shapes.area), traced(shapes.Box.area)"
    )
    notebook.run("del shapes")
    assert set(set_notes("shapes.area")) <= {*notebook.build(cell).notes}


ANEW = {
    "a function replaced by another": ("F.relu = F.silu", "silu"),
    "a function replaced by its partial": (
        "F.softmax = functools.partial(F.softmax, dim=1)",
        "partial",
    ),
    "a class exported by import *": ("nn.BatchNorm1d = nn.Identity", "Identity"),
}


@pytest.mark.parametrize(("write", "here"), ANEW.values(), ids=ANEW)
def test_note_says_which_library_object_ranks_use(notebook, monkeypatch, write, here):
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


def test_library_aliases_and_self_patches_are_not_noted(notebook):
    import torch_xla.distributed.xla_backend  # noqa: F401  # replaces torch's new_group

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


def test_patches_by_a_library_only_on_ranks_are_not_noted(notebook, modules, monkeypatch):
    notebook.run("import shapes")
    program = notebook.build("def f(rank): return shapes.around(1)")
    its = types.FunctionType((lambda side: 5).__code__, {"__name__": "patches"}, "around")
    monkeypatch.setattr(sys.modules["shapes"], "around", its)
    take_notices()  # from other tests
    assert notebook.rank(program) == 5
    assert take_notices() == []
