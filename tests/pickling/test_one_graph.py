"""Ranks compute what the notebook would: shared objects stay shared, and live state is kept.

Each case is a notebook whose last cell defines `f`. The result of `f(0)` on a rank is compared with
its result in the notebook afterwards.
"""

from __future__ import annotations

import sys

import pytest

from xla_nb.errors import ShippingError
from xla_nb.pickling.parcel import Unopened
from xla_nb.pickling.rebuild import take_notices


def agree(notebook, *cells):
    """Run the cells, launch a call of `f` and compare it with the same call in the notebook."""
    for cell in cells:
        notebook.run(cell)
    launched = notebook.launch("def launched(rank): return f(rank)")
    notebook._patch.setitem(sys.modules, "__main__", notebook.main)
    here = notebook.values["f"](0)
    assert launched == here, (launched, here)
    return here


IMPORTS = """
import argparse, collections, dataclasses, datetime, enum, functools, math, multiprocessing
import multiprocessing as mp, numpy as np, torch, types, typing, weakref
from dataclasses import dataclass
from typing import List, NamedTuple
"""
ONE_OBJECT = {
    "an object and its __dict__, also if self-referential or shared by instances": """
        args, none = argparse.Namespace(lr=1), argparse.Namespace()
        config, empty = vars(args), vars(none)
        class Own:
            __slots__ = ("slot", "__dict__")
            def __init__(self): self.me, self.slot, self.x = self, [self], 1
        own = Own()
        held = {"vars": vars(own)}
        class Shared:
            state = {}
            def __init__(self): self.__dict__ = self.state
        one, other = Shared(), Shared()
        class Config(dict):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.__dict__ = self
        itself, bare = Config(lr=1), Config()
        def f(rank):
            args.lr, none.x, own.x, one.x, itself.lr, bare.x = range(6)
            me = own.slot[0] is own.me is held["vars"]["me"]
            shared = other.x, Shared.state["x"]
            return config["lr"], empty, held["vars"]["x"], me, shared, itself["lr"], bare["x"]
    """,
    "the __dict__ of an object with __setstate__": """
        class Restored:
            def __setstate__(self, state): self.__dict__.update(state, restored=True)
        one = Restored()
        one.x = 1
        held = vars(one)
        def f(rank):
            one.x = 5
            return held["x"] == 5
    """,
    "a value used as default argument, global, dict item and closure variable": """
        NONE, box = object(), []
        table = {"x": NONE}
        def g(v=NONE): return v is table["x"]
        def add(x, to=box): to.append(x)
        def make():
            mine, n = box, 0
            def up():
                nonlocal n
                n += 1
            return up, lambda: n, lambda: mine
        up, count, get = make()
        def f(rank):
            before = count()
            add(1); up(); up()
            return g(), box is get() and len(get()) > 0, count() - before
    """,
    "bound methods, weak references and a lock held in two places": """
        class Part: pass
        class Whole:
            def __init__(self): self.part = Part()
            def has(self, part): return self.part is part
        whole = Whole()
        part, has = whole.part, whole.has
        ref, names = weakref.ref(part), weakref.WeakKeyDictionary({part: "a"})
        lock = multiprocessing.Lock()
        class Guard:
            def __init__(self): self.lock = lock
        guard = Guard()
        def f(rank):
            with lock: free = guard.lock.acquire(block=False)
            return has(part), has.__self__ is whole, ref() is part, names[part], free
    """,
    "registries filled by a decorator, a metaclass and __init_subclass__": """
        HANDLERS = {}
        def handler(fn):
            HANDLERS[fn.__name__] = fn
            return fn
        @handler
        def go(): return 5
        class Meta(type):
            made = []
            def __init__(cls, *args): Meta.made.append(cls)
        class A(metaclass=Meta): pass
        class Base:
            made = {}
            def __init_subclass__(cls, *, tag, **kw): Base.made[tag] = cls
        class B(Base, tag="b"): pass
        def f(rank):
            made = Base.made["b"] is B, len(Base.made), Meta.made == [A]
            return made, HANDLERS["go"] is go, len(HANDLERS)
    """,
    "values in functools caches, also bounded and with keyword arguments": """
        class Model: pass
        @functools.cache
        def model(): return Model()
        held = model()
        @functools.lru_cache(maxsize=2)
        def get(a, b=0): return [a, b]
        get(1); get(2, b=3)
        last = get("x", b=4)
        def f(rank): return model() is held, get("x", b=4) is last, get.cache_info().maxsize
    """,
    "enum members, also with dataclass and date mixins": """
        class Color(enum.Enum):
            RED = 1
            CRIMSON = 1
            BLUE = "b"
            def low(self): return self.name.lower()
        class Size(enum.IntEnum):
            S = 1
            M = enum.auto()
        class Perm(enum.Flag):
            R = enum.auto()
            W = enum.auto()
        kept = {Color.RED: Size.M, "p": Perm.R | Perm.W}
        @dataclass
        class Body:
            m: float
            r: float
        class Planet(Body, enum.Enum):
            EARTH = 1.0, 2.0
            MARS = 3.0, 4.0
        class Day(datetime.date, enum.Enum):
            A = 2020, 1, 2
        def f(rank):
            of_others = Planet.EARTH.m, Planet(Planet.MARS.value) is Planet.MARS, Day.A.year
            return (Color.CRIMSON is Color.RED, Color(1) is Color.RED, Color["BLUE"].low(),
                    kept[Color.RED] is Size.M, Size.M + 1, Perm.W in kept["p"], len(Color),
                    of_others)
    """,
    "NaN as list item and dict key": """
        copy = float("nan")
        rows = [np.nan, {math.nan: "math"}]
        def f(rank):
            table = rows[1]
            return np.nan in rows, table.get(math.nan), table.get(copy), copy != copy
    """,
    "dataclass sentinels": """
        @dataclasses.dataclass(order=True)
        class P:
            x: int
            y: list = dataclasses.field(default_factory=list)
            kind: "dataclasses.ClassVar[int]" = 3
        fields = dataclasses.fields(P)
        def f(rank):
            other = dataclasses.make_dataclass("Q", [("z", int, 1)], bases=(P,))
            return (P(1) == P(1), P(1) < P(2), [x.name for x in dataclasses.fields(P)],
                    fields[0].default is dataclasses.MISSING, dataclasses.asdict(P(1)),
                    [x.name for x in dataclasses.fields(other)], P(1).y is P(1).y)
    """,
}


@pytest.mark.parametrize("cell", ONE_OBJECT.values(), ids=ONE_OBJECT)
def test_shared_objects_stay_shared_on_ranks(notebook, cell):
    agree(notebook, IMPORTS, cell)


def test_arguments_share_objects_with_globals_and_method_instances(notebook):
    notebook.run("class A: pass\na = A()\nheld = [a]")
    assert notebook.launch("def f(rank, a): return a is held[0]", notebook.values["a"])
    notebook.run(
        "class T:\n    def __init__(self): self.part = [1]\n"
        "    def go(self, rank, part): return self.part is part\nt = T()"
    )
    t = notebook.values["t"]
    assert notebook.call(t.go, t.part)


LIVE_STATE = {
    "attributes set later on classes, dataclasses and functions": [
        "from pathlib import Path\nfrom collections import defaultdict\n"
        "from dataclasses import dataclass\ndef g(): return g.n\n"
        "class C:\n    root = None\n    items = dict()\n    counts = defaultdict(int)\n"
        "@dataclass\nclass D:\n    x: int = 1",
        "C.root = Path('/x')\nC.items['k'] = C\nC.counts['a'] += 2\nC.added = lambda self: 7\n"
        "D.extra = [2]\nD.x = 5\ng.n = 4\ng.deep = {'g': g}",
        "def f(rank): return (C.root, C.items['k'] is C, dict(C.counts), C().added(), D.extra,"
        " D().x, D.x, g(), g.deep['g'] is g)",
    ],
    "current defaults of a function": [
        "N = 2\ndef g(n=N * 10, to=[]):\n    to.append(n)\n    return list(to)",
        "N = 7\ng()\ng.__kwdefaults__ = None\ng.__defaults__ = (3, g.__defaults__[1])",
        "def f(rank): return g()[:2]",
    ],
    "class bodies and decorators do not run again": [
        "import itertools\nids = itertools.count()\nclass A:\n    id = next(ids)\n"
        "FACTOR = 2\ndef times(n):\n    return lambda fn: lambda x: n * fn(x)\n"
        "@times(FACTOR)\ndef g(x): return x",
        "FACTOR = 5",
        "def f(rank): return A.id, g(1)",
    ],
    "a redefined base class": [
        "class B:\n    def g(self): return 1",
        "class A(B): pass",
        "class B:\n    def g(self): return 2",
        "def f(rank): return A().g(), B().g(), issubclass(A, B)",
    ],
    "functions registered with singledispatch": [
        "import functools\n@functools.singledispatch\ndef area(x): return 'any'",
        "@area.register\ndef _(x: int): return 'int'\nclass C: pass\n"
        "@area.register(C)\ndef _(x): return 'C'",
        "def f(rank):\n    area.register(str, lambda x: 'str')\n"
        "    return area(1), area(C()), area('x'), area(1.5), len(area.registry)",
    ],
    "virtual subclasses of an ABC, and methods abstract at definition": [
        "import abc\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def go(self): ...\n"
        "class Open(Base): pass\nclass Closed(abc.ABC):\n    def go(self): ...",
        "class V: pass\nBase.register(V)\nclass W(Base):\n    def go(self): return 1\n"
        "Open.go, Closed.go = Closed.go, Open.go\n"
        "def told(cls):\n    try: return type(cls()).__name__\n"
        "    except TypeError as error: return str(error)",
        "def f(rank): return (issubclass(V, Base), isinstance(V(), Base), W().go(), told(Base),"
        " told(Open), told(Closed))",
    ],
    "slots, properties and class methods": [
        "import functools\nclass S:\n    __slots__ = ('a', '__b')\n"
        "    def __init__(self): self.a, self.__b = 1, 2\n"
        "    @property\n    def b(self): return self.__b\n"
        "    @classmethod\n    def make(cls): return cls()\n"
        "    @staticmethod\n    def three(): return 3\n"
        "class C:\n    @functools.cached_property\n    def v(self): return [1]\n"
        "s, c = S(), C()\nc.v",
        "def f(rank): return s.a, s.b, S.make().b, S.three(), c.v is c.v, C().v",
    ],
    "generic classes, named tuples, typed dicts and protocols": [
        "import typing, collections\nT = typing.TypeVar('T')\n"
        "class Box(typing.Generic[T]):\n    def __init__(self, x: T): self.x = x\n"
        "class P(typing.NamedTuple):\n    x: int\n    y: int = 2\n"
        "class TD(typing.TypedDict):\n    x: int\n"
        "@typing.runtime_checkable\nclass Go(typing.Protocol):\n    def go(self): ...\n"
        "class G:\n    def go(self): return 1\nQ = collections.namedtuple('Q', 'x y')",
        "def f(rank): return (Box[int](3).x, Box.__parameters__ == (T,), P(1), P(1)._asdict(),"
        " TD(x=1), isinstance(G(), Go), isinstance(3, Go), Q(1, 2)._replace(x=5))",
    ],
    "recursive functions, also created by exec, and methods that call super": [
        "def outer():\n    def rec(n): return 1 if n < 2 else n * rec(n - 1)\n    return rec\n"
        "rec = outer()\nexec('def even(n): return n == 0 or odd(n - 1)')\n"
        "def odd(n): return n != 0 and even(n - 1)\nclass A:\n    def go(self): return 'A'\n"
        "class B(A):\n    def go(self): return super().go() + 'B'",
        "def f(rank): return rec(5), even(10), B().go()",
    ],
    "decorators from contextlib and functools": [
        "import contextlib, functools\n@contextlib.contextmanager\ndef opened(x):\n"
        "    yield x + n\nn, seen = 4, []\npart = functools.partial(pow, 2)\n"
        "@functools.wraps(opened)\ndef wrapped(*a): return opened(*a)\n"
        "@contextlib.contextmanager\ndef noted(what):\n    seen.append(what)\n    yield\n"
        "    seen.append('end')\n"
        "@noted('begin')\ndef g(x): return x + 1\ng.tag = seen\nentered = noted(1)",
        "def f(rank):\n    with opened(1) as x, wrapped(2) as y:\n"
        "        told = x, y, part(3), wrapped.__name__\n"
        "    return told, g(1), g(2), g.tag is seen, seen",
    ],
    "a decorator object and an exception with slots": [
        "class Counting:\n    def __init__(self, fn): self.fn, self.calls = fn, 0\n"
        "    def __call__(self, x):\n        self.calls += 1\n        return self.fn(x)\n"
        "class S(Exception):\n    __slots__ = 'best',\n    def __init__(self, best, more):\n"
        "        super().__init__('s'); self.best, self.more = best, more\ns = S(3, 4)",
        "@Counting\ndef g(x): return x\ndef f(rank): return g(1), g.calls, s.best, s.more, s.args",
    ],
    "nested classes, and classes that replace others or their own base": [
        "class A:\n    n = 2\nclass O:\n    class I:\n        def g(self): return 1\n"
        "class E:\n    def g(self): return 1",
        "def make():\n    class A:\n        n = 1\n    return A\nA = make()\n"
        "class E(E):\n    def h(self): return 2",
        "def f(rank): return A.n, O.I().g(), E().g(), E().h()",
    ],
    **{
        statement: [statement, f"def f(rank): return {used}"]
        for statement, used in {
            "import os.path": "os.path.join('a', 'b')",
            "import xml.dom.minidom": "xml.dom.minidom.Node.ATTRIBUTE_NODE",
            "import xml.dom.minidom as md": "md.Node.ATTRIBUTE_NODE",
            "from xml.dom import minidom": "minidom.Node.ATTRIBUTE_NODE",
            "from math import floor as fl": "fl(2.5)",
            "from math import *": "floor(2.5)",
            "from typing import Optional": "Optional[int]",
        }.items()
    },
}


@pytest.mark.parametrize("cells", LIVE_STATE.values(), ids=LIVE_STATE)
def test_ranks_get_current_state_of_classes_and_functions(notebook, cells):
    agree(notebook, *cells)


#: Notebook cell, launched cell, result of `f`.
LAUNCHED = {
    "globals shared by lambdas and closures, and a list that the cell aliases": (
        "log, scale = [], 1\nmul = lambda x: x * scale\ndef make():\n"
        "    def put(x): log.append(x)\n    return put, lambda x: x + scale\n"
        "put, add = make()\ndef grow():\n    global scale\n    scale = 10",
        "mine = log\ndef f(rank): return put(1), mine is log, mine, grow(), mul(2), add(2), scale",
        (None, True, [1], None, 20, 12, 10),
    ),
    "earlier functions see names that the launched cell binds": (
        "lr = 1\ndef get(): return lr, w",
        "lr = w = 5\ndef f(rank): return get()",
        (5, 5),
    ),
    "a notebook class registered with copyreg": (
        "import copyreg\nclass Handle:\n    def __init__(self, n): self.n = n\n"
        "copyreg.pickle(Handle, lambda handle: (Handle, (handle.n + 1,)))\nhandle = Handle(1)",
        "def f(rank): return handle.n",
        2,
    ),
    "a failed guarded import raises only on use": (
        "try:\n    import not_here_at_all as m\n    HAVE = True\nexcept ImportError:\n"
        "    HAVE = False\ndef g(x): return m.go(x) if HAVE else x",
        "def f(rank): return g(4), m.go(4) if HAVE else 5",
        (4, 5),
    ),
    "subclasses of a sent class": (
        "class Base: pass\nclass A(Base):\n    def size(self): return LIMIT\n"
        "class B(A): pass\nLIMIT = 4",
        "def f(rank):\n    (a,) = Base.__subclasses__()\n"
        "    return a.__name__, a().size(), [b.__name__ for b in a.__subclasses__()]",
        ("A", 4, ["B"]),
    ),
    "a logging handler with __reduce__": (
        "import logging\nclass Mine(logging.Handler):\n    def __reduce__(self): return Mine, ()\n"
        "x = Mine()",
        "def f(rank): return type(x).__name__",
        "Mine",
    ),
}


@pytest.mark.parametrize(("cell", "launched", "expected"), LAUNCHED.values(), ids=LAUNCHED)
def test_launched_cell_uses_notebook_definitions(notebook, cell, launched, expected):
    notebook.run(cell)
    assert notebook.launch(launched) == expected


def test_existing_instance_keeps_old_class_when_launched_cell_redefines_it(notebook):
    notebook.run("class A:\n    n = 1\na = A()")
    program = notebook.build("class A:\n    n = 2\na.n, A.n, isinstance(a, A)")
    assert (notebook.rank(program), program.notes) == ((1, 2, False), ())


def test_function_brings_only_globals_named_in_its_code(notebook):
    notebook.run("bad = (n for n in ())\nunrelated = lambda: bad\nn = 3\ngood = lambda: n")
    program = notebook.build("def f(rank): return good()")
    assert set(program.restored) == {"f", "good", "n"}
    assert notebook.rank(program) == 3


def test_refusal_names_the_unsendable_value_inside_a_definition(notebook):
    notebook.run(
        "import threading\ndef guarded(fn):\n    lock = threading.Lock()\n"
        "    def inner(*a):\n        with lock: return fn(*a)\n    return inner"
    )
    notebook.run("k = 2\n@guarded\ndef g(x): return h(x) + k\ndef h(x): return 10 * x")
    told = r"Cannot send `g` .* defined in Cell In\[2\], line 2\) to ranks: `g → lock`"
    with pytest.raises(ShippingError, match=told):
        notebook.build("def f(rank): return g(1)")
    notebook.run("rows = (n for n in ())\ndef g(): return rows\ndef h(): return g()")
    with pytest.raises(ShippingError, match=r"Cannot send `rows` \(builtins.generator, defined in"):
        notebook.build("def f(rank): return h()")


@pytest.mark.parametrize(
    "binds",
    [
        "for _ in ():\n    n = 1",
        "while False:\n    n = 1",
        "try:\n    1 / 0\n    n = 1\nexcept ZeroDivisionError:\n    pass",
        "match 3:\n    case 4:\n        n = 1",
        "if not True:\n    n = 1",
    ],
)
def test_skipped_binding_does_not_hide_the_notebooks_value(notebook, binds):
    notebook.run("n = 5")
    assert notebook.launch(f"{binds}\ndef f(rank): return n") == 5
    assert notebook.launch(f"{binds}\nn") == 5


FOUND = {
    "a cached method's results, and attribute order of classes and functions": """
        class A:
            def __init__(self, x): self.x = x
            def __hash__(self): return hash(self.x)
            def __eq__(self, o): return self.x == o.x
            @functools.lru_cache
            def go(self): return [self.x]
        a = A(1); kept = a.go()
        class C:
            a = [1]
            b = 2
            c = {}
        def g(): pass
        g.x, g.y, g.z = [1], 2, {}
        def f(rank):
            held = a.go() is kept, A.go.cache_info().currsize
            return held, [n for n in vars(C) if n in "abc"], list(vars(g)), C.a, g.z
    """,
    "hooks of parameters, modules and optimizers": """
        p = torch.nn.Parameter(torch.ones(2)); h = p.register_hook(lambda g: g * 2)
        m = torch.nn.Linear(1,1); seen, log = [], []
        m.register_forward_hook(lambda *a: seen.append(1))
        opt = torch.optim.SGD(m.parameters(), lr=.1)
        opt.register_step_post_hook(lambda *a: log.append(1))
        opt.tag = 'x'
        def f(rank):
            log.clear(); seen.clear()
            p.grad = None
            m(torch.ones(1,1)).sum().backward(); p.sum().backward(); opt.step()
            return p.grad.tolist(), seen, log, opt.tag
    """,
    "an optimizer defined in the notebook": """
        class Look(torch.optim.Optimizer):
            def __init__(self, ps):
                super().__init__(ps, {})
                self.k = 5
            def step(self): return self.k
        opt = Look([torch.ones(1, requires_grad=True)])
        def f(rank): return opt.step()
    """,
    "instances stored on their own class, also as keys": """
        @dataclass(frozen=True, slots=True)
        class Cfg:
            a: int = 1
        Cfg.DEFAULT = Cfg()
        class Pair(NamedTuple):
            x: int
            y: int
        Pair.ORIGIN = Pair(0, 0)
        @dataclass(frozen=True)
        class Frozen:
            x: int
        Frozen.known = {Frozen(1), Frozen(2)}
        class P:
            seen = {}
            def __init__(self, x): self.x = x
            def __hash__(self): return hash(self.x)
            def __eq__(self, o): return self.x == o.x
        for i in range(3): P.seen[P(i)] = i
        def f(rank):
            held = [P.seen.get(P(i)) for i in range(3)], Frozen(1) in Frozen.known
            return held, Pair.ORIGIN, Pair(1, 2), Cfg.DEFAULT == Cfg(), repr(Cfg.DEFAULT)
    """,
    "NewType, ParamSpec, TypeVarTuple, and names read in local class bodies": """
        from typing import *
        UserId = NewType('UserId', int)
        P = ParamSpec('P')
        Ts = TypeVarTuple('Ts')
        def deco(fn: Callable[P, int]): return fn
        @deco
        def g(x): return UserId(x)
        SIZE = 4
        def make():
            @dataclass
            class A:
                xs: List[int]
                size: int = SIZE
            return A
        def f(rank):
            types = g(3), UserId.__name__, UserId.__supertype__ is int
            return types, make()([1]).xs, make()([1]).size
    """,
    "names in string annotations": """
        from __future__ import annotations
        class Inner: pass
        class A:
            x: Inner
            y: typing.Optional[Inner]
        def g(a: Inner) -> A: ...
        def f(rank): return sorted(typing.get_type_hints(A)), sorted(typing.get_type_hints(g))
    """,
    "instances with other arguments, delegation or read-only slots": """
        class T(tuple):
            def __new__(cls, a, b): return super().__new__(cls, (a, b))
        class M: v = 3
        class D:
            def __init__(self): self.m = M()
            def __getattr__(self, k): return getattr(self.m, k)
        class Nw:
            def __new__(cls, x):
                o = super().__new__(cls); o.x = x; return o
        class F:
            __slots__ = ('a',)
            def __init__(self): object.__setattr__(self, 'a', 3)
            def __setattr__(self, *a): raise AttributeError('frozen')
        class C(collections.OrderedDict):
            def __init__(self, k, **kw): super().__init__(**kw); self.k = k
        class DD(collections.defaultdict):
            def __init__(self): super().__init__(list)
        t, d, n, x, c, dd = T(1, 2), D(), Nw(3), F(), C(4, a=1), DD()
        dd['x'].append(1)
        def f(rank):
            held = c.k, dict(c), dict(dd), dd['new']
            return t, type(t).__name__, d.v, n.x, x.a, held
    """,
    "multiprocessing values and arrays": """
        v = mp.Value('i', 5); a = mp.Array('d', [1., 2.])
        def f(rank):
            with v.get_lock(): v.value += 1
            r = v.value, list(a)
            v.value = 5
            return r
    """,
    "linked nodes, and an instance used as default, list item and attribute": """
        class N:
            def __init__(self, n): self.n = n
        head = None
        for _ in range(100): head = N(head)
        class A:
            def __init__(self, x): self.x = x
            def __eq__(self, o): return self.x == o.x
            __hash__ = None
        D = A(3)
        def g(a=D, *, b=[D], c=A): return a is D, b[0] is a, c is A
        class B(A):
            d = D
            def go(self, a=D): return self.d is a
        def f(rank):
            k, x = 0, head
            while x is not None: k, x = k + 1, x.n
            return k, g(), B(1).go()
    """,
    "containers whose class changes items on insertion or access": """
        class Shown(dict):
            def items(self): return [(k, v + 1) for k, v in super().items()]
        class Twice(list):
            def __iter__(self): return (2 * x for x in super().__iter__())
        class Hidden(set):
            def __iter__(self): return iter([])
        shown, twice, hidden = Shown(a=1), Twice([1]), Hidden([3])
        class Vocab(dict):
            def __setitem__(self, k, v): super().__setitem__(k, v * 2)
            def update(self, *a): raise AssertionError("not again")
        class Ordered(collections.OrderedDict):
            def __setitem__(self, k, v): super().__setitem__(k, v * 2)
        class Default(collections.defaultdict):
            def __setitem__(self, k, v): super().__setitem__(k, v * 2)
        class Counts(collections.Counter):
            def update(self, *a, **kw): super().update(*a, **kw); self["n"] += 1
        class Log(list):
            def append(self, x): super().append(x + 100)
            def extend(self, xs): super().extend(x + 100 for x in xs)
        class Last(collections.deque):
            def append(self, x): super().append(x + 100)
            def extend(self, xs): super().extend(x + 100 for x in xs)
        class Names(set):
            def add(self, x): super().add(x.upper())
            def update(self, xs): super().update(x.upper() for x in xs)
        voc, od, dd, log, last, names = (
            Vocab(), Ordered(), Default(int), Log(), Last(maxlen=3), Names()
        )
        for d in (voc, od, dd): d["a"], d["b"] = 1, 2
        od.move_to_end("a")
        counts = Counts("aab")
        for x in range(5): log.append(x); last.append(x)
        names.add("x")
        list.append(log, log)
        def f(rank):
            held = list(od.items()), dict(dd), dd["new"], dict(counts), list(last), last.maxlen
            taken = shown["a"], twice[0], len(hidden), log[:5], log[5] is log
            return dict(voc), held, taken, sorted(names), type(names).__name__
    """,
    "a container whose class records insertions": """
        class Table(dict):
            def __init__(self): self.history = []
            def __setitem__(self, k, v):
                self.history.append(k)
                super().__setitem__(k, v)
        class Slotted(list):
            __slots__ = ("seen",)
            def append(self, x):
                self.seen = x
                super().append(x)
        class Restored(dict):
            def __setstate__(self, state): self.n = len(self), state["n"]
        table, slotted, restored = Table(), Slotted(), Restored(a=1)
        restored.n = 5
        table["a"] = 1
        slotted.append(3)
        def f(rank):
            n = restored.n[1] if isinstance(restored.n, tuple) else restored.n
            return dict(table), table.history, list(slotted), slotted.seen, n
    """,
    "containers in reference cycles, and a dict with attributes as items": """
        class Key:
            def __init__(self, owner, name): self.owner, self.name = owner, name
            def __hash__(self): return hash(self.name)
            def __eq__(self, o): return self.name == o.name
        class D(dict): pass
        class S(set): pass
        d, s = D(), S()
        d[Key(d, "k")] = d
        s.add(Key(s, "k"))
        class Config(dict):
            __getattr__ = dict.__getitem__
            __setattr__ = dict.__setitem__
        config = Config(lr=1, sub=Config(a=2))
        def f(rank):
            config.lr, key = 5, Key(None, "k")
            owners = [k.owner is d for k in d], [k.owner is s for k in s]
            return d[key] is d, key in s, owners, config, config.sub.a
    """,
    "weak references with callbacks, and a dead one": """
        class Thing: ...
        class Owner:
            def __init__(self): self.ref = weakref.ref(box[0], self.gone)
            def gone(self, ref): log.append(ref is self.ref)
        box, log, other = [Thing()], [], []
        ref, owner = weakref.ref(box[0], lambda one: other.append(one is ref)), Owner()
        dead = [weakref.ref(Thing(), log.append)]
        log.clear()
        def f(rank):
            lives = ref() is owner.ref() is box[0]
            box.clear()
            return lives, ref(), owner.ref(), log, other, [ref() for ref in dead]
    """,
    "C constants, their types, and sparse tensors": """
        def one_of_each():
            constants = None, NotImplemented, ..., types.MappingProxyType({})
            methods = "".__str__, "".join, str.join, len, int.real, type.__dict__["__doc__"]
            return *constants, *methods, (x for x in ()), iter
        kinds = [type(x) for x in one_of_each()]
        layout, t = torch.strided, torch.sparse_coo_tensor([[0, 1]], [1., 2.], (3,)).coalesce()
        m = torch.nn.Linear(1, 1)
        m.register_buffer("mask", t)
        def f(rank):
            known = layout is torch.strided, torch.sparse_coo, t.layout, t.is_coalesced()
            same = [type(x) is kind for x, kind in zip(one_of_each(), kinds)]
            return same, known, t.to_dense().tolist(), m.mask is t
    """,
    "exception causes, contexts, notes and groups": """
        class Bad(ValueError):
            def __init__(self, code, why):
                super().__init__(why)
                self.code = code
        class Own(Exception):
            def __init__(self, a, b): self.a, self.b = a, b
            def __reduce__(self): return Own, (self.a, self.b)
        try:
            try: {}["k"]
            except KeyError as e:
                e.add_note("a note")
                raise Bad(5, "no") from e
        except Bad as e: bad = e
        try:
            try: 1 / 0
            except ZeroDivisionError: raise Own(1, 2)
        except Own as e: own = e
        try: raise OSError(2, "gone", "x") from None
        except OSError as e: gone = e
        group = ExceptionGroup("some", [bad, own])
        try:
            try: raise group
            except ExceptionGroup as e: raise e.exceptions[0]
        except Bad: pass
        first, second = Bad(1, "a"), KeyError("b")
        first.__cause__, second.__cause__ = second, first
        def links(e):
            names = "__cause__", "__context__", "__suppress_context__", "args", "__notes__"
            return [type(e).__name__, str(e), *(repr(getattr(e, n, None)) for n in names)]
        def f(rank):
            held = [bad, own, gone, group, first, bad.__cause__]
            same = bad.__cause__ is held[-1], bad.__context__ is group, group.exceptions[0] is bad
            cycle = first.__cause__ is second, second.__cause__ is first
            return [links(e) for e in held], same, cycle, bad.code, own.b, gone.filename
    """,
    "values whose __setstate__ reads notebook or class containers": """
        TABLE, NAMES = {"a": 1}, ["b"]
        def scale(x): return x
        scale.cache = {"k": 5}
        def counter():
            seen = ["s"]
            return lambda: seen
        class Read:
            def __getstate__(self): return {"x": 1}
            def __setstate__(self, state):
                self.all = TABLE["a"], NAMES, scale.cache["k"], see()
        class Named:
            names, table, seen = ["a", ("b", 1)], {"a": 1}, {1, 2}
            def __getstate__(self): return {"x": 1}
            def __setstate__(self, state):
                self.all = [*self.names, *self.table.items(), *sorted(self.seen)]
        see = counter()
        one, other = Read(), Named()
        one.__setstate__({}), other.__setstate__({})
        def f(rank):
            NAMES.append(see())
            other.names.append(7)
            same = one.all[1] is NAMES, one.all[-1] is NAMES[-1]
            return one.all, same, other.all, Named.names
    """,
}


#: Cases in which libraries keep resources until the process exits.
MARKS = {
    "multiprocessing values and arrays": pytest.mark.leaves("files"),
    "hooks of parameters, modules and optimizers": pytest.mark.leaves("temporary"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=name, marks=MARKS.get(name, ())) for name, cell in FOUND.items()]
)
def test_values_behave_on_ranks_as_in_the_notebook(notebook, cell):
    agree(notebook, IMPORTS, cell)


def test_long_call_chains_between_functions_are_sent(notebook):
    chain = "\n".join(f"def f{n}(x): return f{n + 1}(x) if x else {n}" for n in range(400))
    notebook.run(f"{chain}\ndef f400(x): return x")
    program = notebook.build("def f(rank): return f0(0), f399(1)")
    assert (notebook.rank(program), program.notes) == ((0, 1), ())


def test_ranks_get_module_objects_with_notebook_changes(notebook, local):
    (local / "local_s.py").write_text(
        "class D(dict): pass\nclass S: __slots__ = ('a',)\nd, s = D(lr=1), S()\ns.a = 1"
    )
    notebook.run("from local_s import d, s\nd['lr'], s.a = 5, 9")
    program = notebook.build("def f(rank): return d['lr'], s.a")
    del sys.modules["local_s"]
    assert notebook.rank(program) == (5, 9)


def test_library_object_in_its_own_set_is_refused(notebook, local):
    (local / "tree_of_keys.py").write_text(
        "import dataclasses\n@dataclasses.dataclass(unsafe_hash=True)\n"
        "class Node:\n    name: str = ''\n"
        "    near: set = dataclasses.field(default_factory=set, hash=False, compare=False)\n"
    )
    notebook.run("from tree_of_keys import Node\nroot, kid = Node('root'), Node('kid')")
    notebook.run("root.near.add(kid)\nkid.near.add(root)\nroot.near.add(root)")
    with pytest.raises(Unopened, match="was hashed before its attributes were set"):
        notebook.launch("def f(rank): return root")


WEAK = {
    "a reference": ("weakref.ref(obj)", "made() is obj"),
    "a proxy": ("weakref.proxy(obj)", "made.itself() is obj"),
    "a set": ("weakref.WeakSet([obj])", "list(made) == [obj]"),
    "a dict with weak values": ("weakref.WeakValueDictionary({1: obj})", "made[1] is obj"),
    "a dict with weak keys": ("weakref.WeakKeyDictionary({obj: 1})", "made[obj] == 1"),
}
NODE = """
    import weakref
    class Node:
        def itself(self): return self
    obj = Node()
"""


@pytest.mark.parametrize(("made", "same"), WEAK.values(), ids=WEAK.keys())
def test_weak_reference_points_to_the_sent_object(notebook, made, same):
    notebook.run(f"{NODE}\n    made = {made}")
    program = notebook.build(f"def f(rank): return {same}")
    assert (notebook.rank(program), program.notes) == (True, ())


@pytest.mark.parametrize("made", [made for made, _ in WEAK.values()], ids=WEAK.keys())
def test_note_reports_weak_references_to_unsent_objects(notebook, made):
    told = "a weak reference is sent without its `Node`, so it is dead on ranks"
    assert dead_reference_notes(notebook, f"made = {made}") == [told]


@pytest.mark.parametrize(
    "cell",
    [
        "obj = Node(); made = weakref.ref(obj); del obj",
        "made = weakref.ref(dict)",
        "made = weakref.ref(Node)",
        "def named(): pass\nmade = weakref.WeakSet([named])",
        "obj.me, made = obj, weakref.WeakKeyDictionary({obj: [obj]})",
    ],
)
def test_no_note_when_weak_references_lose_nothing(notebook, cell):
    assert dead_reference_notes(notebook, cell) == []


def dead_reference_notes(notebook, cell):
    notebook.run(NODE)
    notebook.run(cell)
    take_notices()
    main = notebook.load(notebook.build("def f(rank): return made is None"))  # keeps it alive
    return take_notices() if main else None


SHUT = """
    import collections
    class Shut(collections.UserDict):
        def __reduce__(self): return int, ("no number",)
    shut = Shut()
"""
HOLDERS = {
    "a value named by the cell": ("", "shut"),
    "a value named by a function": ("def g(): return shut", "shut"),
    "the alphabetically first of two names": ("beside = [shut]", "beside"),
    "a function's closure": ("def make(s): return lambda: s\ng = make(shut)", "g"),
    "a function's default": ("def g(x=shut): pass\ndel shut", "g"),
    "a class attribute": ("class C:\n    held = shut\ndel shut", "C"),
    "a cached result": ("@__import__('functools').cache\ndef g(): return shut\ng()", "g"),
}


@pytest.mark.parametrize(("cell", "name"), HOLDERS.values(), ids=HOLDERS.keys())
def test_unpickling_error_names_the_variable_that_holds_the_value(notebook, cell, name):
    notebook.run(SHUT)
    notebook.run(cell)
    used = next((n for n in ("beside", "g", "C") if n in notebook.values), "shut")
    program = notebook.build(f"def f(rank): return {used}, {name if name.isalpha() else used}")
    with pytest.raises(Unopened) as caught:
        notebook.rank(program)
    assert caught.value.name.startswith(name)
    assert "ValueError: invalid literal for int()" in str(caught.value)


@pytest.mark.parametrize("read", ["self.names or 'default'", "getattr(self, 'names', 'default')"])
@pytest.mark.parametrize("names", ["[['a']]", "{'a': []}"])
def test_setstate_reading_an_incomplete_class_raises_an_error(notebook, names, read):
    notebook.run(f"""
        class Named:
            names = {names}
            def __init__(self): self.mine = list(self.names)
            def __getstate__(self): return {{"x": 1}}
            def __setstate__(self, state): self.mine = list({read})
        one = Named()
    """)
    with pytest.raises(Unopened, match=r"`one`.*`Named` is not complete yet"):
        notebook.launch("def f(rank): return one.mine")


def test_typed_cache_arrives_empty_with_a_note(notebook):
    notebook.run("""
        @__import__("functools").lru_cache(typed=True)
        def get(x): return [x]
        get(1)
    """)
    program = notebook.build("def f(rank): return get.cache_info().currsize, get(1)")
    assert notebook.rank(program) == (0, [1])
    assert program.notes == (
        "the cache of `get` is empty on ranks: results of `typed=True` are not sent",
    )


@pytest.mark.parametrize(
    "read", ["len(size.table or [])", "size.table is None or size.table[0]", "self.cached(1) or 0"]
)
def test_setstate_reading_an_incomplete_function_raises_an_error(notebook, read):
    notebook.run(f"""
        import functools
        def size(): pass
        size.table = [[1]]
        @functools.cache
        def cached(x): return x
        class Named:
            def __init__(self): self.n, self.cached = 1, cached
            def __setstate__(self, state):
                self.cached = state["cached"]
                self.n = {read}
        one = Named()
        cached.owner = [one]
    """)
    with pytest.raises(Unopened):
        notebook.launch("def f(rank): return cached(1), one.n")


def test_program_describes_values_by_type_and_cell(notebook):
    notebook.run("import collections\nn = 1\nheld = collections.deque()")
    notebook.run("def g(): return held, n")
    program = notebook.build("def f(rank, *a): return g()", args=([], 1))
    assert program.details == {
        "held": "collections.deque, defined in Cell In[1], line 3",
        "__xla_nb_args__": "builtins.list, builtins.int",
    }


def test_redefined_subclass_appears_once_and_unsendable_one_is_left_out(notebook):
    notebook.run("class Base: pass\nclass A(Base): pass")
    notebook.run("class A(Base): pass")
    assert notebook.launch("def f(rank): return len(Base.__subclasses__())") == 1
    assert notebook.launch("class A(Base): pass\ndef f(rank): return Base.__subclasses__() == [A]")
    notebook.run("import threading\nclass Base: pass\nclass A(Base): lock = threading.Lock()")
    program = notebook.build("def f(rank): return Base.__subclasses__()")
    assert notebook.rank(program) == []
    assert "`A` cannot be sent: its base classes lack it on ranks" in program.notes
