"""What the notebook has put into a module in place of the module's own travels as it is."""

from __future__ import annotations

import keyword
import sys
import textwrap

import pytest
import torch  # noqa: F401  # or the folder of a test would forget it with its modules

from tests.support.fresh import launched

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


@pytest.fixture
def modules(local, monkeypatch):
    """Installed modules whose attributes are bound anew, also by the launches of another test."""
    installed = local / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "shapes.py").write_text(
        textwrap.dedent(
            """
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
        )
    )
    (installed / "stars.py").write_text("def starred(): return 1\n")
    (installed / "shop.py").write_text(
        "from shapes import area, Box\nfrom stars import *\n"
        "__all__ = ['made']\nglobals()['made'] = lambda: 2\n"
    )


SENT = {
    "a function": (
        "import shapes\nshapes.area = traced(shapes.area)\nmine = shapes.area",
        "return mine(3), calls",
        (9, ["area"]),
    ),
    "a function with a decorator of the module's around the notebook's": (
        "import shapes\nshapes.area = shapes.twice(traced(shapes.area))\nmine = shapes.area",
        "return mine(3), calls",
        (18, ["area"]),
    ),
    "a function with a cache around the notebook's": (
        "import shapes\nshapes.area = functools.cache(traced(shapes.area))\nmine = shapes.area",
        "return mine(3), mine(3), calls",
        (9, 9, ["area"]),
    ),
    "a method": (
        "from shapes import Box\nBox.area = traced(Box.area)\nmine = Box.area",
        "return mine(Box(3)), calls",
        (9, ["area"]),
    ),
    "a class": (
        "import shapes\nclass Box(shapes.Box):\n    __module__ = 'shapes'\n"
        "    def area(self): return -1\nshapes.Box = Box\nbox = shapes.Box(3)",
        "return box.area(), type(box).__mro__[1] is shapes.Box, shapes.is_box(box)",
        (-1, True, True),
    ),
    "a class of Python's, of C": (
        "import decimal\nclass Decimal(decimal.Decimal):\n    __module__ = 'decimal'\n"
        "    def tag(self): return 'mine'\ndecimal.Decimal = Decimal\none = Decimal('1.5')",
        "return one.tag(), one == decimal.Decimal('1.5')",
        ("mine", True),
    ),
}


@pytest.fixture
def kept(monkeypatch, modules):
    """What is replaced is put back for other tests."""
    import decimal

    monkeypatch.setattr(decimal, "Decimal", decimal.Decimal)


@pytest.mark.parametrize(("cell", "asked", "expected"), SENT.values(), ids=SENT)
def test_what_replaces_a_modules_own_is_sent(notebook, kept, cell, asked, expected):
    notebook.run(TRACED + cell)
    found, notes = launched(notebook, f"def f(rank): {asked}")
    assert found == expected
    assert any("`" in note for note in notes)


NAMED = {
    "a function": ("from shapes import area", "area is shapes.area"),
    "a decorated function": ("from shapes import around", "around is shapes.around"),
    "a class": ("from shapes import Small", "Small.__base__ is shapes.Box"),
    "torch's decorated functions": (
        "import torch\nfrom torch.nn.init import uniform_\n"
        "from torch.nn.functional import softmax\n"
        "step, wrapped = torch.optim.Optimizer.zero_grad, torch.no_grad()(area)\n",
        "uniform_ is torch.nn.init.uniform_ and softmax is torch.nn.functional.softmax and "
        "step is torch.optim.Optimizer.zero_grad and wrapped.__wrapped__ is shapes.area",
    ),
    "a class without a method of its own that has one of a class of the notebook": (
        "class Mine:\n    def area(self): return 0\nfrom shapes import Plain\n"
        "Plain.area = Mine.area",
        "Plain is shapes.Plain and Plain(3).side == 3",
    ),
    "a class in which the notebook has set a method": (
        "from shapes import Small\nSmall.area = lambda self: 0",
        "Small is shapes.Small and Small(3).area() == 9",
    ),
}


@pytest.mark.parametrize(("cell", "is_so"), NAMED.values(), ids=NAMED)
def test_what_a_module_has_made_is_the_modules_own(notebook, modules, cell, is_so):
    notebook.run(f"import shapes\nfrom shapes import area\n{cell}")
    assert launched(notebook, f"def f(rank): return bool({is_so})")[0] is True


_KEPT = (
    "`{}` was set in the notebook: ranks have it only where a value refers to it, not in the module"
)
NOTED = {
    "a function of a module that is used": (
        "import shapes\nshapes.area = traced(shapes.area)",
        "return shapes.area(3)",
        [_KEPT.format("shapes.area")],
    ),
    "a method of an instance's class, which inherits it": (
        "from shapes import Box, Small\nBox.area = traced(Box.area)\nbox = Small(3)",
        "return box.area()",
        [_KEPT.format("shapes.Box.area")],
    ),
    "a method of the notebook's under a library's decorator": (
        "import shapes\nfrom shapes import Box\ndef area(self): return -1\n"
        "Box.area = shapes.twice(area)",
        "return Box(2).area()",
        [_KEPT.format("shapes.Box.area")],
    ),
    "what has another decorator": (
        "import shapes\nshapes.area = shapes.twice(shapes.area)\nmine = shapes.area",
        "return mine(3)",
        [
            "`shapes.area` was wrapped in the notebook after its import; ranks have it as the "
            "import makes it"
        ],
    ),
    "what the module has imported": (
        "import shop\nshop.area = traced(shop.area)",
        "return shop.area(3)",
        [_KEPT.format("shop.area")],
    ),
    "what the module has from import *": (
        "import shop\nshop.starred = traced(shop.starred)",
        "return shop.starred()",
        [_KEPT.format("shop.starred")],
    ),
    "what the module lists as its own": (
        "import shop\nshop.made = traced(shop.made)",
        "return shop.made()",
        [_KEPT.format("shop.made")],
    ),
    "a method of a class that is reached through a module that imports it": (
        "import shop, shapes\nshapes.Box.area = traced(shapes.Box.area)",
        "return shop.Box(2).area()",
        [_KEPT.format("shapes.Box.area")],
    ),
    "what is added to a module": (
        "import shapes\nshapes.mine = traced(shapes.area)",
        "return shapes.mine(3)",
        [_KEPT.format("shapes.mine")],
    ),
    "nothing, where nothing was set": (
        "import shapes",
        "return shapes.area(3), shapes.around(3)",
        [],
    ),
}


@pytest.mark.parametrize(("cell", "asked", "notes"), NOTED.values(), ids=NOTED)
def test_a_note_says_what_ranks_do_not_have_of_a_module(notebook, modules, cell, asked, notes):
    notebook.run(TRACED + cell)
    assert list(launched(notebook, f"def f(rank):\n    if rank: {asked}")[1]) == notes


@pytest.mark.parametrize(
    "cell",
    [
        "import shapes\ndef f(rank): return shapes.area(3)",
        "def f(rank):\n    import shapes as s\n    return s.area(3)",
        "def f(rank):\n    from shapes import area\n    return area(3)",
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
    assert _KEPT.format("shapes.area") in notebook.build(cell).notes


def test_what_a_definition_of_the_notebook_replaces_is_sent_as_it_is(notebook):
    notebook.run("import enum\nclass Kind(enum.IntEnum): A = 1\none = Kind.A")
    notebook.run("class Kind:\n    def area(self): return 0")
    assert notebook.launch("def f(rank): return one.name, Kind().area()") == ("A", 0)


ANEW = {
    "a function of a library for another": ("F.relu = F.silu", "relu", "silu", "relu"),
    "a partial of it": (
        "F.softmax = functools.partial(F.softmax, dim=1)",
        "softmax",
        "partial",
        "softmax",
    ),
    "a class that comes by import *": (
        "nn.BatchNorm1d = nn.Identity",
        "BatchNorm1d",
        "Identity",
        "BatchNorm1d",
    ),
}


@pytest.mark.parametrize(("write", "name", "here", "there"), ANEW.values(), ids=ANEW)
def test_a_note_says_what_a_librarys_name_is_on_ranks(
    notebook, monkeypatch, write, name, here, there
):
    import torch.nn.functional

    module = torch.nn if write.startswith("nn") else torch.nn.functional
    monkeypatch.setattr(module, name, getattr(module, name))
    notebook.run("import functools\nimport torch.nn as nn, torch.nn.functional as F")
    notebook.run(write)
    _, notes = launched(
        notebook, "def f(rank):\n    if rank: return F.relu, F.softmax, nn.BatchNorm1d"
    )
    assert list(notes) == [
        f"`{module.__name__}.{name}` is `{here}` in the notebook, but `{there}` on ranks, which "
        "have it as the import makes it"
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
