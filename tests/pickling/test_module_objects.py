"""What a module holds is that module's own object on ranks too, with what the notebook holds."""

from __future__ import annotations

import _warnings
import json
import sys
import textwrap
import warnings

import pytest

from tests.support.installed import need
from tests.support.notebook_double import importable_folder, opened
from xla_nb.pickling.module_objects import Modules
from xla_nb.pickling.parcel import Unopened

notebook = pytest.fixture(opened)
local = pytest.fixture(importable_folder)

CONFMOD = """
    import itertools, threading
    CFG = {"lr": 1, "optim": {"name": "sgd"}}
    NAMES = ["a"]
    def get_lr(cfg=CFG): return cfg["lr"]
    class Registry:
        def __init__(self): self.found = {}
        def register(self, cls):
            self.found[cls.__name__] = cls
            return cls
        def build(self, name): return self.found[name]()
    MODELS = Registry()
    register = MODELS.register
    class Settings:
        values = {"depth": 1}
    def depth(): return Settings.values["depth"]
    NONE = object()
    def is_none(value): return value is NONE
    numbers = itertools.count()
    def number(): return next(numbers)
    current = None
    def start():
        global current
        current = Registry()
        return current
    class Guarded:
        def __init__(self):
            self.lock, self.count = threading.Lock(), 0
    GUARDED = Guarded()
    LOCK = threading.Lock()
"""


@pytest.fixture
def confmod(local):
    """A module of the user's own, as the notebook has imported it."""
    (local / "confmod.py").write_text(textwrap.dedent(CONFMOD))


def on_a_rank(notebook, cell):
    """What the launched cell computes where `confmod` is imported anew."""
    program = notebook.build(cell)
    sys.modules.pop("confmod")
    return notebook.rank(program)


#: What is imported or taken from a module, and what a rank must see of it.
SAME = {
    "a method of Python's generator": (
        "import random\nfrom random import randint",
        "randint.__self__ is random.seed.__self__",
    ),
    "a built-in method of it": (
        "import random\nclass S: pass\ns = S()\ns.rand = random.random",
        "s.rand.__self__ is random.random.__self__",
    ),
    "a partial of it": (
        "import functools, random\nroll = functools.partial(random.randint, 0, 9)",
        "roll.func.__self__ is random.seed.__self__",
    ),
    "NumPy's generator": (
        "import numpy\nfrom numpy.random import rand",
        "rand.__self__ is numpy.random.mtrand._rand",
    ),
    "torch's generator": (
        "import torch\ng = torch.default_generator",
        "g is torch.default_generator",
    ),
    "the environment": ("import os\nfrom os import environ", "environ is os.environ"),
    "its method": ("import os\ngetenv = os.environ.get", "getenv.__self__ is os.environ"),
    "the path": ("import sys\nfrom sys import path, argv", "path is sys.path, argv is sys.argv"),
    "filters of warnings": (
        "import warnings\nfilters = warnings.filters",
        "filters is warnings.filters",
    ),
    "settings of a package": (
        "import matplotlib\nfrom matplotlib import rcParams",
        "rcParams is matplotlib.rcParams",
    ),
}


@pytest.mark.parametrize(("cell", "asked"), SAME.values(), ids=SAME)
def test_an_object_of_a_module_is_the_modules_on_ranks(notebook, cell, asked, monkeypatch):
    need("matplotlib")
    monkeypatch.setattr(warnings, "filters", _warnings.filters)  # of which pytest has a copy
    notebook.run(cell)
    found = notebook.launch(f"def f(rank): return {asked}")
    assert found in (True, (True, True))


def test_the_path_that_the_notebook_has_made_anew_is_the_ranks(notebook, monkeypatch):
    notebook.launch("def f(rank): return rank")  # which looks through modules
    monkeypatch.setattr(sys, "path", [*sys.path])
    notebook.run("import sys\nfrom sys import path")
    assert notebook.launch("def f(rank): return path is sys.path") is True


def test_it_has_what_the_notebook_has_put_into_it(notebook, confmod):
    notebook.run("import confmod\nfrom confmod import CFG, NAMES, get_lr")
    notebook.run("CFG['lr'] = 5\ndel CFG['optim']\nNAMES.append('b')")
    assert on_a_rank(
        notebook,
        "def f(rank):\n"
        "    found = CFG is confmod.CFG, get_lr(), CFG, NAMES, NAMES is confmod.NAMES\n"
        "    CFG['lr'] = 7\n"
        "    return *found[:2], dict(found[2]), *found[3:], get_lr()",
    ) == (True, 5, {"lr": 7}, ["a", "b"], True, 7)


def test_a_registry_has_the_notebooks_entries(notebook, confmod):
    notebook.run(
        "import confmod\nfrom confmod import MODELS\n@MODELS.register\nclass Mine: size = 3"
    )
    assert on_a_rank(
        notebook,
        "@MODELS.register\nclass Other: size = 4\ndef f(rank):\n"
        "    return [confmod.MODELS.build(n).size for n in ('Mine', 'Other')],"
        " confmod.register.__self__ is MODELS",
    ) == ([3, 4], True)


def test_what_a_class_of_a_module_holds_is_its_own(notebook, confmod):
    notebook.run("import confmod\nvalues = confmod.Settings.values\nvalues['depth'] = 9")
    assert on_a_rank(
        notebook, "def f(rank): return confmod.depth(), values is confmod.Settings.values"
    ) == (9, True)


def test_a_sentinel_is_the_modules(notebook, confmod):
    notebook.run("from confmod import NONE, is_none")
    assert on_a_rank(notebook, "def f(rank): return is_none(NONE)")


def test_what_pickles_itself_is_put_back_into_the_module(notebook, confmod):
    notebook.run("from confmod import number, numbers\nnext(numbers), next(numbers)")
    assert on_a_rank(notebook, "def f(rank): return number(), next(numbers), number()") == (2, 3, 4)


def test_an_object_that_a_module_made_later_is_the_modules(notebook, confmod):
    notebook.run("import confmod\ncurrent = confmod.start()\ncurrent.found['x'] = 1")
    assert on_a_rank(notebook, "def f(rank): return confmod.current is current, current.found") == (
        True,
        {"x": 1},
    )


def test_an_array_of_a_module_is_put_back(notebook, local):
    (local / "confmod.py").write_text(
        "import numpy\nTABLE = numpy.zeros(2)\ndef total(): return int(TABLE.sum())"
    )
    notebook.run("import confmod\nfrom confmod import TABLE, total\nTABLE[0] = 4")
    assert on_a_rank(
        notebook, "def f(rank):\n    TABLE[1] = 3\n    return total(), TABLE is confmod.TABLE"
    ) == (7, True)


def test_what_cannot_be_sent_of_it_is_told(notebook, confmod):
    notebook.run("import confmod\nfrom confmod import GUARDED, LOCK\nGUARDED.count = 2")
    program = notebook.build(
        "def f(rank):\n    with LOCK: return GUARDED is confmod.GUARDED, GUARDED.count"
    )
    (note,) = (note for note in program.notes if "GUARDED" in note)
    assert note == (
        "`confmod.GUARDED` is on ranks as `import confmod` makes it: what it holds in the notebook "
        "cannot be sent"
    )
    sys.modules.pop("confmod")
    assert notebook.rank(program) == (True, 0)


def test_what_can_be_sent_beside_what_cannot_is_there(notebook, confmod):
    notebook.run("import confmod, threading\nfrom confmod import CFG, GUARDED, NAMES")
    notebook.run(
        """
        shared, chain = [1], None
        for _ in range(100): chain = [chain]
        CFG["x"], CFG["chain"] = shared, chain
        NAMES.append(shared)
        GUARDED.shared = GUARDED.count = shared
        """
    )
    program = notebook.build(
        "def f(rank): return CFG['x'] is NAMES[1], NAMES, CFG['lr'], GUARDED.count"
    )
    assert ["confmod.GUARDED" in note for note in program.notes] == [True]
    sys.modules.pop("confmod")
    same, names, lr, count = notebook.rank(program)
    assert (same, names, lr, count) == (True, ["a", [1]], 1, 0)


def test_an_object_that_has_another_class_in_the_module_and_cannot_be_sent_is_refused(
    notebook, confmod
):
    notebook.run("import confmod, threading\ncurrent = confmod.start()")
    notebook.run("current.found['lock'] = threading.Lock()")
    program = notebook.build("def f(rank): return current.found")
    sys.modules.pop("confmod")
    with pytest.raises(Unopened, match=r"`confmod\.current` is a NoneType on ranks"):
        notebook.rank(program)


LOCKS = """
    import multiprocessing
    LOCK = multiprocessing.get_context("spawn").Lock()
    def locked():
        with LOCK: return LOCK
"""


def test_a_lock_of_multiprocessing_that_a_module_holds_is_the_notebooks(notebook, local):
    (local / "confmod.py").write_text(textwrap.dedent(LOCKS))
    notebook.run("import confmod\nfrom confmod import LOCK, locked")
    assert on_a_rank(notebook, "def f(rank): return locked() is LOCK is confmod.LOCK") is True


def test_what_the_notebook_has_put_into_a_module_itself_is_sent(notebook, confmod):
    notebook.run("import confmod\nmine = {'a': 1}\nconfmod.mine = mine")
    assert on_a_rank(notebook, "def f(rank): return mine") == {"a": 1}


def test_an_object_that_ranks_do_not_have_in_the_module_is_refused_there(notebook, monkeypatch):
    notebook.run("from sys import argv")
    program = notebook.build("def f(rank): return argv")
    monkeypatch.setattr(sys, "argv", ())
    with pytest.raises(Unopened, match=r"`sys\.argv` is a tuple on ranks, and a list"):
        notebook.rank(program)


def test_what_is_no_module_is_passed_over(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "blocked", None)
    notebook.run("a = [1]")
    assert notebook.launch("def f(rank): return a") == [1]


FIXED = """
    import collections, types
    PAIR = (1, [2])
    def get(): return PAIR[1]
    NUMBERS = (1, 2)
    Point = collections.namedtuple("Point", "x y")
    POINT = Point(1, {})
    class Kind: places = ([],)
    HELD = frozenset([Kind()])
    _table = {"a": 1}
    TABLE = types.MappingProxyType(_table)
    def set_a(value): _table["a"] = value
"""


def test_a_tuple_or_a_view_that_a_module_holds_is_the_modules(notebook, local):
    (local / "confmod.py").write_text(textwrap.dedent(FIXED))
    notebook.run("import confmod\nfrom confmod import *\nPAIR[1].append(3)\nplaces = Kind.places")
    found = on_a_rank(
        notebook,
        """
        def f(rank):
            PAIR[1].append(7)
            set_a(5)
            own = confmod.PAIR, confmod.POINT, confmod.HELD, confmod.TABLE, Kind.places
            same = [one is other for one, other in zip((PAIR, POINT, HELD, TABLE, places), own)]
            return get(), same, TABLE["a"], NUMBERS, POINT.x
        """,
    )
    assert found == ([2, 3, 7], [True] * 5, 5, (1, 2), 1)


def test_a_namespace_of_exec_has_the_ranks_builtins(notebook):
    notebook.run("ns = {}\nexec('def squared(x): return abs(x) ** 2', ns)")
    got = notebook.launch(
        "import builtins\n"
        "def f(rank): return ns['squared'](-3), ns['__builtins__'] is vars(builtins)"
    )
    assert got == (9, True)


def test_the_namespace_of_a_module_is_that_modules(notebook, confmod):
    notebook.run("import confmod\nnames = vars(confmod)")
    got = on_a_rank(
        notebook,
        "def f(rank):\n"
        "    import confmod\n"
        "    confmod.CFG['lr'] = 5\n"
        "    return names is vars(confmod), names['get_lr']()",
    )
    assert got == (True, 5)


def test_what_a_module_has_got_since_is_known_at_a_look(monkeypatch):
    seen = Modules()
    seen.look()
    monkeypatch.setattr(json, "added", held := [], raising=False)
    seen.look()
    assert id(held) in seen.ids
