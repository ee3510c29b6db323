"""Ranks get what the notebook changed in its own modules, if the program uses it."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest
import torch  # noqa: F401  # imported here so that `local` does not unload it

from tests.support.fresh import launched
from tests.support.notebook_double import importable_folder, opened
from xla_nb.pickling import module_objects

notebook = pytest.fixture(opened)
pytestmark = pytest.mark.usefixtures("fresh_processes")
local = pytest.fixture(importable_folder)

HELPER = """
    import abc, functools, logging, math, threading, torch, typing
    import settings
    REGISTRY, BIG = {}, {}
    CFG = {"lr": 1}
    SCALE, DEBUG = 1, False
    MODEL = None
    COMPUTED = len("four")
    FILE = open("/dev/null")
    LOCK, LOG = threading.Lock(), logging.getLogger(__name__)
    class Conf:
        lr, layers = 0.1, None
        class Inner:
            width = 1
    class Base(abc.ABC):
        @functools.cached_property
        def lazy(self): return 1
    class Net(Base):
        rate = 3
        act = math.floor
        def forward(self): return "own", SCALE
        @property
        def depth(self): return CFG["depth"]
    def register(name):
        def put(made):
            REGISTRY[name] = made
            return made
        return put
    def build(name): return REGISTRY[name]()
    def scaled(x):
        with LOCK: return x * SCALE if not FILE.closed else LOG
    @functools.lru_cache
    def cached(x): return x + SCALE
    def loss(x): return x
    def step(x): return loss(x)
    def deep(): return settings.VALUES["a"], settings.LEVEL
    def hidden(): return BIG
    def single(cls):
        made = {}
        @functools.wraps(cls)
        def get(*args):
            if cls not in made:
                made[cls] = cls(*args)
            return made[cls]
        return get
    def only(cls):
        made = None
        @functools.wraps(cls)
        def get():
            nonlocal made
            made = made or cls()
            return made
        return get
    @single
    class Options:
        count = 0
        def __init__(self, lr=0.1): self.lr = lr
    @only
    class Others: lr = 0.1
    class Single(type):
        made = {}
        rate = 1
        def __call__(cls, *args):
            if cls not in cls.made: cls.made[cls] = super().__call__(*args)
            return cls.made[cls]
    class Table(metaclass=Single):
        lr = 0.1
    def counted(f):
        @functools.wraps(f)
        def call(*args):
            call.calls += 1
            return f(*args), call.calls
        call.calls = 0
        return call
    class Step:
        @counted
        def go(self): return SCALE
    def plain(): return plain.asked
    plain.asked = 0
    def locked(f, lock=threading.Lock()):
        last = []
        @functools.wraps(f)
        def call(x):
            with lock: last.append(x)
            return last
        return call
    @locked
    def guarded(x): return x
    __held, __n = {}, 0
    def put(key):
        global __n
        __held[key] = __n = __n + 1
    def told(): return __held, __n
    def times(by):
        def loss(x): return by * x
        return loss
    class Square(torch.autograd.Function):
        k = 1.0
        @staticmethod
        def forward(ctx, x): return x * Square.k
    class Named(typing.Protocol): label = "file"
"""


@pytest.fixture
def helper(local, notebook):
    """An own module that the notebook has imported."""
    (local / "helper.py").write_text(textwrap.dedent(HELPER))
    (local / "settings.py").write_text(
        "VALUES = {'a': 1}\nLEVEL = 1\nclass Opt:\n    decay = 0.5\n"
    )
    notebook.run("import helper")
    yield local / "helper.py"
    sys.modules["helper"].FILE.close()


#: Notebook cell, expression on ranks, expected value.
KEPT = {
    "a registry filled by a decorator": (
        "@helper.register('mine')\ndef mine(): return 7",
        "helper.REGISTRY['mine'](), helper.build('mine')",
        (7, 7),
    ),
    "a dict item": ("helper.CFG['lr'] = 5", "helper.CFG", {"lr": 5}),
    "a dict read by a property": ("helper.CFG['depth'] = 4", "helper.Net().depth", 4),
    "a global": ("helper.SCALE = 10", "helper.SCALE, helper.scaled(2)", (10, 20)),
    "a global read by a cached function": ("helper.SCALE = 10", "helper.cached(2)", 12),
    "a global read by a method": ("helper.SCALE = 10", "helper.Net().forward()", ("own", 10)),
    "a new global": ("helper.EXTRA = 'x'", "helper.EXTRA", "x"),
    "a class attribute": ("helper.Conf.lr = 0.5", "helper.Conf.lr", 0.5),
    "a base class attribute": (
        "class Wide(helper.Net): pass\nhelper.Net.rate = 9",
        "Wide().rate",
        9,
    ),
    "a library function set on a class": ("helper.Net.act = math.ceil", "helper.Net.act(1.5)", 2),
    "a library function": ("helper.loss = math.sqrt", "helper.step(9)", 3.0),
    "a replaced method": (
        "def forward(self): return 'mine'\nhelper.Net.forward = forward",
        "helper.Net().forward()",
        "mine",
    ),
    "a notebook wrapper around a module function": (
        "def traced(f):\n    @functools.wraps(f)\n    def call(x): return 'traced', f(x)\n"
        "    return call\nhelper.loss = traced(helper.loss)",
        "helper.step(3)",
        ("traced", 3),
    ),
    "a nested class": ("helper.Conf.Inner.width = 5", "helper.Conf.Inner.width", 5),
    "a replaced function called by others": ("helper.loss = lambda x: -x", "helper.step(3)", -3),
    "globals of another own module": (
        "helper.settings.VALUES['a'], helper.settings.LEVEL = 2, 3",
        "helper.deep(), helper.settings.LEVEL",
        ((2, 3), 3),
    ),
    "a decorator's singleton": (
        "options = helper.Options()\noptions.lr = 5",
        "helper.Options().lr, options is helper.Options(), type(options).__name__",
        (5, True, "Options"),
    ),
    "a singleton that no value refers to": ("helper.Options().lr = 5", "helper.Options().lr", 5),
    "an attribute of a singleton's class": (
        "type(helper.Options()).count = 5",
        "helper.Options.__wrapped__.count, helper.Options().count",
        (5, 5),
    ),
    "a singleton in a closure variable": (
        "others = helper.Others()\nothers.lr = 5",
        "helper.Others().lr, helper.Others() is others",
        (5, True),
    ),
    "a metaclass's singleton": (
        "table = helper.Table()\ntable.lr = helper.Single.rate = 5\nhelper.Table.size = 2",
        "helper.Table().lr, table is helper.Table(), helper.Table.rate, table.size",
        (5, True, 5, 2),
    ),
    "the call count of a method decorator": ("helper.Step().go()", "helper.Step().go()", (1, 2)),
    "a function attribute": ("helper.plain.asked = 5", "helper.plain()", 5),
    "closure state next to a lock": ("helper.guarded(5)", "helper.guarded(6)", [5, 6]),
    "private globals": ("helper.put('a')", "helper.told()", ({"a": 1}, 1)),
    "a class whose module name was rebound": (
        "Conf, helper.Conf = helper.Conf, None",
        "Conf.lr, helper.Conf",
        (0.1, None),
    ),
    "a function renamed and replaced": (
        "helper._loss = helper.loss\nhelper.loss = lambda x: 2 * helper._loss(x)",
        "helper.step(3)",
        6,
    ),
    "a method renamed and replaced": (
        "helper.Net.plain = helper.Net.forward\n"
        "helper.Net.forward = lambda self: ('mine', *self.plain())",
        "helper.Net().forward()",
        ("mine", "own", 1),
    ),
    "swapped functions": (
        "helper.loss, helper.hidden = helper.hidden, helper.loss",
        "helper.hidden(3), helper.loss()",
        (3, {}),
    ),
    "a function made by a module factory": ("helper.loss = helper.times(5)", "helper.step(2)", 10),
    "special methods added to a class": (
        "class Wide(helper.Net): pass\n"
        "def sized(self): return 5\n"
        "helper.Net.__len__ = sized\nhelper.Net.__call__ = lambda self, x: ('mine', x)",
        "len(helper.Net()), Wide()(3)",
        (5, ("mine", 3)),
    ),
    "a property setter": (
        "def put(self, value): helper.CFG['depth'] = 100 * value\n"
        "helper.Net.depth = helper.Net.depth.setter(put)\nnet = helper.Net()",
        "setattr(net, 'depth', 3), net.depth",
        (None, 300),
    ),
    "other descriptors": (
        "def by(self, x=1): return x\n"
        "helper.Base.lazy = functools.cached_property(lambda self: 7)\n"
        "helper.Base.lazy.__set_name__(helper.Base, 'lazy')\n"
        "helper.Net.twice = functools.partialmethod(by, 2)\n"
        "helper.Net.single = functools.singledispatchmethod(by)",
        "helper.Net().lazy, helper.Net().twice(), helper.Net().single(4)",
        (7, 2, 4),
    ),
    "attributes of autograd and protocol classes": (
        "helper.Square.k, helper.Named.label = 3.0, 'mine'",
        "helper.Square.apply(helper.torch.ones(1)).item(), helper.Named.label",
        (3.0, "mine"),
    ),
}


def test_function_recompiled_by_autoreload_counts_as_unchanged(notebook, helper):
    notebook.run("helper.step.__code__ = helper.step.__code__.replace(co_firstlineno=1)")
    assert launched(notebook, "def f(rank): return helper.step(3)") == (3, ())


#: Expressions that reach a module, with the cell they need.
WAYS = {
    "holder.config": "holder = types.SimpleNamespace(config=settings)",
    "held['cfg']": "held = {'cfg': settings}",
    "cfg": "cfg = settings",
    "inner()": "def made(cfg): return lambda: cfg\ninner = made(settings)",
    "default()": "def default(cfg=settings): return cfg",
    "helper.settings": "",  # through a module that imports it
    "__import__('settings')": "",
}


@pytest.mark.parametrize("way", WAYS)
def test_settings_module_changes_reach_ranks_by_any_access_path(notebook, helper, way):
    notebook.run("import settings, types\nsettings.LEVEL, settings.VALUES['a'] = 5, 7")
    notebook.run("settings.Opt.decay = 9")
    notebook.run(WAYS[way])
    asked = f"{way}.LEVEL, {way}.VALUES['a'], {way}.Opt.decay, getattr({way}, 'LEV' + 'EL')"
    assert launched(notebook, f"import helper\ndef f(rank): return {asked}") == ((5, 7, 9, 5), ())


#: Modules, notebook cell, launched cell, result of `f`.
OTHERS = {
    "star-imported and computed globals": (
        {
            "base": "MOST = 2\nTABLE = {'a': 1}\n",
            "engine": "from base import *\nBATCH = 4 * MOST\ndef run(): return MOST, BATCH, TABLE",
        },
        "import engine\nengine.MOST, engine.BATCH, engine.TABLE = 50, 999, {'b': 2}",
        "def f(rank): return engine.run()",
        (50, 999, {"b": 2}),
    ),
    "a module in a folder without __init__": (
        {"bare/part": "LIMIT = 1\nSEEN = []\ndef told(): return LIMIT, SEEN\n"},
        "import bare.part\nbare.part.LIMIT = 4\nbare.part.SEEN.append(5)",
        "def f(rank): return bare.part.told()",
        (4, [5]),
    ),
    "a global overwritten by a module that code imports": (
        {"mode": "MODE = 'file'\n", "plug": "import mode\nmode.MODE = 'plug'\n"},
        "import mode, plug\nmode.MODE = 'notebook'",
        "def f(rank):\n    import plug\n    return mode.MODE",
        "notebook",
    ),
    # Unpickling the value used to import it late, so its top level overwrote the values.
    "a global overwritten by a module that only a value refers to": (
        {
            "conf": "LR, PLUG, NAMES = 0.1, {}, []\n",
            "override": "import conf\nconf.LR = 5\nconf.NAMES.append('f')\n"
            "def f(): return conf.LR\nconf.PLUG['f'] = f\n",
        },
        "import conf, override\nconf.LR = 9\nconf.NAMES.append('mine')",
        "def f(rank): return conf.LR, conf.PLUG['f'](), conf.NAMES",
        (9, 9, ["f", "mine"]),
    ),
    "functions and objects from before a module reload": (
        {
            "conf": "LR, SEEN = 0.1, []\ndef told(): return SEEN\n"
            "class Net:\n    def lr(self): return LR\n",
        },
        "import conf, importlib\nfrom conf import told\nnet = conf.Net()\n"
        "importlib.reload(conf)\nconf.LR = 5\nconf.SEEN.append(7)",
        "def f(rank): return net.lr(), told()",
        (5, [7]),
    ),
    "a module that ranks cannot import": (
        {"elsewhere/conf": "lr = 0.1\n"},
        "import sys\nfrom importlib import util\n"
        "spec = util.spec_from_file_location('conf', f'{sys.path[0]}/elsewhere/conf.py')\n"
        "conf = util.module_from_spec(spec)\nspec.loader.exec_module(conf)\nconf.lr = 5",
        "def f(rank): return conf.lr",
        5,
    ),
    "settings that only a module reads which ranks import": (
        {
            "conf": "LR, OPT = 1, {}\nclass Cfg: lr = 1\n",
            "lib/part": "import conf\ndef run(): return conf.LR, conf.OPT, conf.Cfg.lr\n",
            "train": "from lib.part import run\n",
        },
        "import conf\nconf.LR, conf.OPT['a'], conf.Cfg.lr = 2, 3, 4",
        "def f(rank):\n    from train import run\n    return run()",
        (2, {"a": 3}, 4),
    ),
    "one of two names for one object": (
        {
            "conf": "class Cfg:\n    lr = 1\nfirst = now = Cfg()\nLOG = HIST = []\n"
            "class Net:\n    cfg, steps = now, LOG\n"
            "def told(): return first.lr, now.lr, Net.cfg.lr, LOG, HIST, Net.steps is LOG",
        },
        "import conf\nconf.now = conf.Cfg()\nconf.now.lr = 5\nconf.LOG.append(1)\nconf.HIST = [2]",
        "def f(rank): return conf.told()",
        (1, 5, 1, [1], [2], True),
    ),
    "a singleton of a notebook decorator": (
        {},
        "import functools\ndef single(cls):\n    made = {}\n    @functools.wraps(cls)\n"
        "    def get(): return made.setdefault(cls, made.get(cls) or cls())\n    return get\n"
        "@single\nclass Options: items = [[1]]\nOptions().lr = 5",
        "def f(rank): return Options().lr, Options.items is Options().items",
        (5, True),
    ),
}


@pytest.mark.parametrize(("files", "cell", "asks", "expected"), OTHERS.values(), ids=OTHERS)
def test_ranks_get_notebook_state_of_own_modules(notebook, local, files, cell, asks, expected):
    for name, text in files.items():
        path = local / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    notebook.run(cell)
    assert launched(notebook, asks) == (expected, ())


def test_monkeypatched_module_attributes_reach_ranks_until_undone(notebook, helper):
    notebook.run("helper.scaled(1)")
    cell = "def f(rank): return helper.scaled(2), helper.Conf.lr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["helper"], "SCALE", 7)
        patch.setattr("helper.Conf.lr", 0.5)
        assert launched(notebook, cell) == ((14, 0.5), ())
    assert launched(notebook, cell) == ((2, 0.1), ())


def test_note_reports_library_wrapper_around_module_function(notebook, helper):
    notebook.run("import functools\nhelper.loss = functools.cache(helper.loss)")
    found, notes = launched(notebook, "def f(rank): return helper.step(3)")
    assert found == 3
    assert notes == (
        "`helper.loss` was wrapped in the notebook after its import; ranks use it as imported",
    )


@pytest.mark.parametrize(("cell", "asked", "expected"), KEPT.values(), ids=KEPT)
def test_notebook_changes_to_an_own_module_reach_ranks(notebook, helper, cell, asked, expected):
    notebook.run("import functools, math")
    notebook.run(cell)
    assert launched(notebook, f"def f(rank): return {asked}") == (expected, ())


@pytest.mark.parametrize(
    "cell",
    [
        "def f(rank):\n    import helper\n    return helper.scaled(2), helper.CFG",
        "def f(rank):\n    from helper import CFG, scaled\n    return scaled(2), CFG",
        "import helper as h\ndef f(rank): return h.scaled(2), h.CFG",
        "def f(rank): return used()",
    ],
)
def test_changes_reach_ranks_when_the_cell_imports_the_module(notebook, helper, cell):
    notebook.run("helper.SCALE, helper.CFG['lr'] = 3, 4\ndel helper")
    notebook.run("def used():\n    from helper import CFG, scaled\n    return scaled(2), CFG")
    assert launched(notebook, cell) == ((6, {"lr": 4}), ())


def test_unused_module_globals_are_not_sent(notebook, helper):
    notebook.run("helper.BIG['rows'] = b'0' * 1_000_000\ndef used(): return helper.scaled(1)")
    small = notebook.build("def f(rank): return used()").parcel
    assert small.stream.nbytes < 100_000


def test_pip_installed_modules_are_not_own_modules(notebook, helper):
    (helper.parent / "some-1.0.dist-info").mkdir()
    module_objects._is_installed.cache_clear()
    notebook.run("helper.SCALE, helper.CFG['lr'] = 10, 2")
    cell = "def f(rank): return helper.scaled(2), helper.CFG"
    assert launched(notebook, cell) == ((2, {"lr": 1}), ())


def test_notes_report_unsendable_module_globals(notebook, helper):
    notebook.run("helper.CFG['file'], helper.MODEL = open('/dev/null'), open('/dev/null')")
    found, notes = launched(notebook, "def f(rank): return helper.CFG, helper.MODEL")
    assert found == ({"lr": 1}, None)
    assert notes == (
        "ranks use `helper.CFG` as `import helper` creates it: its value in the notebook cannot be "
        "sent",
        "`helper.MODEL` is `TextIOWrapper` in the notebook but `NoneType` on ranks, which use it "
        "as imported",
    )
    notebook.run("helper.CFG['file'].close(), helper.MODEL.close()")


def test_ranks_import_an_edited_module_file_with_a_note(notebook, helper):
    notebook.run("helper.SCALE = 10")
    notebook.build("def f(rank): return helper.SCALE")
    helper.write_text(helper.read_text())
    os.utime(helper, ns=(1, 1))
    assert launched(notebook, "def f(rank): return helper.SCALE") == (10, ())  # same text, new time
    helper.write_text(textwrap.dedent(HELPER).replace("SCALE, DEBUG = 1", "SCALE, DEBUG = 20"))
    told = (
        "the file of `helper` has changed since the notebook imported it: ranks use the version "
        "that they imported, not the notebook's `helper`"
    )
    found = launched(notebook, "def f(rank): return helper.SCALE, helper.CFG")
    assert found == ((20, {"lr": 1}), (told,))


DEFINES = """
import conf
if conf.FAST:
    def act(x): return x * 100
else:
    def act(x): return x
def width(h=conf.H): return h
def plain(h=1): return h
class Net:
    def __init__(self, h=conf.H): self.h = h
    if conf.FAST:
        def way(self): return "fast"
    else:
        def way(self): return "slow"
"""


def test_notes_report_definitions_that_differ_on_ranks(local, notebook):
    """Ranks import the file without the state that the notebook's import found."""
    (local / "conf.py").write_text("FAST, H = False, 1\n")
    (local / "dep.py").write_text(DEFINES)
    notebook.run("import conf; conf.FAST = True; conf.H = 64; import dep")
    cell = "def f(rank): return dep.act(1), dep.width(), dep.plain(), dep.Net().h, dep.Net().way()"
    found, notes = launched(notebook, cell)
    assert found == (1, 1, 1, 1, "slow")
    assert sorted(notes) == [
        "`dep.Net.__init__` differs on ranks, where the import of `dep` defined another: with "
        "defaults (64) in the notebook, with defaults (1) there",
        "`dep.Net.way` differs on ranks, where the import of `dep` defined another: from line 12 "
        "in the notebook, from line 14 there",
        "`dep.act` differs on ranks, where the import of `dep` defined another: from line 4 in "
        "the notebook, from line 6 there",
        "`dep.width` differs on ranks, where the import of `dep` defined another: with "
        "defaults (64) in the notebook, with defaults (1) there",
    ]


def test_note_reports_class_whose_base_was_reloaded(local, notebook):
    (local / "bases.py").write_text("class Base:\n    lr = 1\n")
    (local / "subs.py").write_text("from bases import Base\nclass Sub(Base): pass\n")
    notebook.run("import bases, subs, importlib")
    cell = "def f(rank): return isinstance(subs.Sub(), bases.Base)"
    assert launched(notebook, cell) == (True, ())
    notebook.run("importlib.reload(bases)\nis_one = isinstance(subs.Sub(), bases.Base)")
    found, (note,) = launched(notebook, cell)
    assert (found, notebook.values["is_one"]) == (True, False)
    assert note == (
        "`subs.Sub` extends `bases.Base` as it was before `bases` was imported again; on ranks it "
        "extends the new one"
    )
    notebook.run("importlib.reload(subs)")
    assert launched(notebook, cell) == (True, ())


def test_two_modules_with_the_same_name_are_both_sent(local, notebook):
    for folder in "ab":
        (local / folder).mkdir()
        (local / folder / "twin.py").write_text(f"def who(): return {folder!r}\n")
    notebook.run(
        "import sys\n"
        f"sys.path.insert(0, {str(local / 'a')!r}); import twin as a\n"
        "del sys.path[0], sys.modules['twin']\n"
        f"sys.path.insert(0, {str(local / 'b')!r}); import twin as b\n"
        "del sys.path[0]"
    )
    notebook.run(f"sys.path.append({str(local / 'b')!r})")
    assert launched(notebook, "def f(rank): return a.who(), b.who()")[0] == ("a", "b")
    notebook.run("del sys.path[-1], sys.modules['twin']")
