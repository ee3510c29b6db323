"""Objects that modules hold are the modules' own on ranks too, with the notebook's content."""

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
    import collections, itertools, multiprocessing, numpy, threading, types
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
    SHARED = multiprocessing.get_context("spawn").Lock()
    def locked():
        with SHARED: return SHARED
    ROWS = numpy.zeros(2)
    def total(): return int(ROWS.sum())
    PAIR = (1, [2])
    NUMBERS = (1, 2)
    Point = collections.namedtuple("Point", "x y")
    POINT = Point(1, {})
    class Kind: places = ([],)
    HELD = frozenset([Kind()])
    _table = {"a": 1}
    TABLE = types.MappingProxyType(_table)
    def set_a(value): _table["a"] = value
"""


@pytest.fixture
def confmod(local):
    """An own module that the notebook has imported."""
    (local / "confmod.py").write_text(textwrap.dedent(CONFMOD))


def on_a_rank(notebook, cell):
    """The result of the launched cell after a fresh import of `confmod`."""
    program = notebook.build(cell)
    sys.modules.pop("confmod")
    return notebook.rank(program)


TAKEN = """
import functools, matplotlib, numpy, os, random, sys, torch, warnings
from random import randint, random as random_
from numpy.random import rand
from os import environ
from sys import path, argv
from matplotlib import rcParams
roll = functools.partial(random.randint, 0, 9)
generator, getenv, filters = torch.default_generator, os.environ.get, warnings.filters
"""
#: Objects taken from modules, and the modules' own.
SAME = {
    "randint.__self__": "random.seed.__self__",
    "random_.__self__": "random.random.__self__",  # a built-in method
    "roll.func.__self__": "random.seed.__self__",
    "rand.__self__": "numpy.random.mtrand._rand",
    "generator": "torch.default_generator",
    "environ": "os.environ",
    "getenv.__self__": "os.environ",
    "path": "sys.path",
    "argv": "sys.argv",
    "filters": "warnings.filters",
    "rcParams": "matplotlib.rcParams",
}


def test_objects_taken_from_modules_are_the_modules_own_on_ranks(notebook, monkeypatch):
    need("matplotlib")
    notebook.launch("def f(rank): return rank")  # scans the modules
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(warnings, "filters", _warnings.filters)  # pytest holds a copy
    notebook.run(TAKEN)
    asked = ", ".join(f"{taken!r}: {taken} is {its}" for taken, its in SAME.items())
    assert notebook.launch(f"def f(rank): return {{{asked}}}") == dict.fromkeys(SAME, True)


#: Notebook cell, expression on a rank with a fresh import of `confmod`, expected value.
PUT_BACK = {
    "a dict and a list changed in the notebook": (
        "from confmod import CFG, NAMES, get_lr\n"
        "CFG['lr'] = 5\ndel CFG['optim']\nNAMES.append('b')",
        "CFG is confmod.CFG, get_lr(), CFG.update(lr=7), get_lr(), CFG, NAMES is confmod.NAMES",
        (True, 5, None, 7, {"lr": 7}, True),
    ),
    "an attribute of a module's class": (
        "values = confmod.Settings.values\nvalues['depth'] = 9",
        "confmod.depth(), values is confmod.Settings.values",
        (9, True),
    ),
    "a registry filled by the notebook": (
        "from confmod import MODELS, register\n@register\nclass Mine: size = 3",
        "confmod.MODELS.build('Mine').size, confmod.MODELS is MODELS is register.__self__",
        (3, True),
    ),
    "a sentinel": ("from confmod import NONE, is_none", "is_none(NONE)", True),
    "an object with its own pickling": (
        "from confmod import number, numbers\nnext(numbers), next(numbers)",
        "number(), next(numbers), number()",
        (2, 3, 4),
    ),
    "an object that the module created later": (
        "current = confmod.start()\ncurrent.found['x'] = 1",
        "confmod.current is current, current.found",
        (True, {"x": 1}),
    ),
    "an array": (
        "from confmod import ROWS, total\nROWS[0] = 4",
        "ROWS.put(1, 3), total(), ROWS is confmod.ROWS",
        (None, 7, True),
    ),
    "a multiprocessing lock": (
        "from confmod import SHARED, locked",
        "locked() is SHARED is confmod.SHARED",
        True,
    ),
    "an attribute added to the module": (
        "mine = confmod.mine = {'a': 1}",
        "mine",
        {"a": 1},
    ),
    "the module's namespace": (
        "names = vars(confmod)",
        "names is vars(confmod), confmod.CFG.update(lr=5), names['get_lr']()",
        (True, None, 5),
    ),
    "tuples, frozen sets and views": (
        "from confmod import *\nPAIR[1].append(3)\nplaces, held = Kind.places, (PAIR, POINT, HELD)",
        "[one is its for one, its in zip(held, (confmod.PAIR, confmod.POINT, confmod.HELD))], "
        "places is Kind.places, TABLE is confmod.TABLE, set_a(5), TABLE['a'], "
        "PAIR[1].append(7), confmod.PAIR[1], NUMBERS, POINT.x",
        ([True] * 3, True, True, None, 5, None, [2, 3, 7], (1, 2), 1),
    ),
}


@pytest.mark.parametrize(("cell", "asked", "expected"), PUT_BACK.values(), ids=PUT_BACK)
def test_module_objects_keep_notebook_content(notebook, confmod, cell, asked, expected):
    notebook.run(f"import confmod\n{cell}")
    assert on_a_rank(notebook, f"def f(rank): return {asked}") == expected


def test_unsendable_module_objects_are_noted_and_others_sent(notebook, confmod):
    notebook.run("import confmod, threading\nfrom confmod import CFG, GUARDED, LOCK, NAMES")
    notebook.run(
        """
        shared, chain = [1], None
        for _ in range(100): chain = [chain]
        CFG["x"], CFG["chain"] = shared, chain
        NAMES.append(shared)
        GUARDED.shared = GUARDED.count = shared
        def guarded():
            with LOCK: return GUARDED is confmod.GUARDED, GUARDED.count
        """
    )
    program = notebook.build(
        "def f(rank): return CFG['x'] is NAMES[1], NAMES, CFG['lr'], guarded()"
    )
    assert [note for note in program.notes if "GUARDED" in note] == [
        "ranks use `confmod.GUARDED` as `import confmod` creates it: its value in the notebook "
        "cannot be sent"
    ]
    sys.modules.pop("confmod")
    assert notebook.rank(program) == (True, ["a", [1]], 1, (True, 0))


def test_module_object_of_another_type_on_ranks_is_refused(notebook, confmod, monkeypatch):
    notebook.run("import confmod, threading\nfrom sys import argv\ncurrent = confmod.start()")
    notebook.run("current.found['lock'] = threading.Lock()")
    program = notebook.build("def f(rank): return current.found")
    sys.modules.pop("confmod")
    with pytest.raises(Unopened, match=r"`confmod\.current` is a NoneType on ranks"):
        notebook.rank(program)
    program = notebook.build("def f(rank): return argv")
    monkeypatch.setattr(sys, "argv", ())
    with pytest.raises(Unopened, match=r"`sys\.argv` is a tuple on ranks but a list"):
        notebook.rank(program)


def test_builtins_of_exec_are_the_ranks_and_non_modules_are_skipped(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "blocked", None)
    notebook.run("ns = {}\nexec('def squared(x): return abs(x) ** 2', ns)")
    cell = "def f(rank): return ns['squared'](-3), ns['__builtins__'] is vars(builtins)"
    assert notebook.launch(f"import builtins\n{cell}") == (9, True)


def test_look_finds_objects_added_to_modules(monkeypatch):
    seen = Modules()
    seen.look()
    monkeypatch.setattr(json, "added", held := [], raising=False)
    seen.look()
    assert id(held) in seen.ids
