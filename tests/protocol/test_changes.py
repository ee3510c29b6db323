"""Which objects of a notebook somebody has changed since they came in a parcel."""

import logging
import os
import types

import pytest

from tests.support.notebook_double import opened
from xla_nb.protocol.changes import Snapshot, changed, names_of
from xla_nb.protocol.parcel import Parcel

notebook = pytest.fixture(opened)

NUMPY = "import numpy as np\n"
PANDAS = "import pandas as pd\n"
TORCH = "import torch\n"
#: Changes what a mapping proxy shows.
SHOWN = "import gc\ngc.get_referents(x)[0]['a'] = 2"


@pytest.fixture
def told(notebook):
    """The names that a text changes of what the cells before have bound."""

    def told(before, text):
        notebook.run(before)
        fresh, now = sent(notebook.build(f"{text}\ndef f(rank): pass"))
        namespace = {n: v for n, v in notebook.values.items() if isinstance(v, types.ModuleType)}
        now.open(namespace)
        namespace.update({"__name__": "__main__"} | now.values)
        exec(text, namespace)
        fresh.open({}, apart=True)
        found = changed(fresh.objects, now.objects, namespace)
        names = names_of(found, now.values, now.objects)
        return {name for name in names if not name.startswith("__")}

    return told


def sent(program):
    """The program's values for two to open."""
    fd = program.parcel.to_memfd()
    try:
        both = Parcel(fd), Parcel(fd)
    finally:
        os.close(fd)
    for parcel in both:
        parcel.remember = True
    return both


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("p = torch.nn.Parameter(torch.ones(2))", "p.requires_grad = False"),
        ("p = torch.nn.Linear(2, 1)", "p.requires_grad_(False)"),
        ("p = torch.nn.Linear(2, 1)", "p(torch.ones(2)).sum().backward()"),
        ("p = torch.ones(2)", "p.grad = torch.ones(2)"),
        ("p = torch.nn.Parameter(torch.ones(2))\np.grad = torch.ones(2)", "p.grad.zero_()"),
        ("p = torch.nn.Parameter(torch.ones(2))\np.grad = torch.ones(2)", "p.grad = None"),
        ("p = torch.ones(2, requires_grad=True)", "p.register_hook(print)"),
        ("p = torch.ones(2)", "p.mark = 1"),
        ("p = torch.Generator()", "torch.rand(1, generator=p)"),
        ("p = torch.nn.Linear(1, 1)", "p.register_forward_hook(print)"),
        ("p = torch.optim.SGD([torch.ones(1)], lr=1)", "p.param_groups[0]['lr'] = 2"),
        ("p = torch.optim.SGD([torch.ones(1)], lr=1)", "p.register_step_pre_hook(print)"),
        ("p = [torch.ones(1)]", "torch.nn.init.zeros_(p[0])"),
    ],
)
def test_what_is_changed_of_tensors_is_told(told, before, text):
    assert told(TORCH + before, text) == {"p"}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("df = pd.DataFrame({'x': [1, 2]})", "df['y'] = df.x"),
        ("df = pd.DataFrame({'x': [1, 2]})", "df.loc[0, 'x'] = 7"),
        ("df = pd.DataFrame({'x': [1, 2]})", "df.attrs['a'] = 1"),
        ("df = pd.DataFrame({'x': [1, 2]})", "df.rename(columns={'x': 'z'}, inplace=True)"),
        ("df = pd.DataFrame({'x': ['a', 'b']})", "df.loc[0, 'x'] = 'c'"),
        ("df = {'inner': [pd.DataFrame({'x': [1, 2]})]}", "df['inner'][0]['y'] = 1"),
        ("df = pd.Series([1, 2])", "df.iloc[0] = 5"),
        ("df = pd.Series([1, 2])", "df.name = 'n'"),
        ("df = pd.Series([[1], [2]])", "df[0].append(2)"),
        ("class Frame(pd.DataFrame): pass\ndf = Frame({'x': [1, 2]})", "df['y'] = 1"),
    ],
)
def test_what_is_changed_of_tables_is_told(told, before, text):
    pytest.importorskip("pandas")
    assert told(PANDAS + before, text) == {"df"}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("a = np.array([[1], 'x'], dtype=object)", "a[0].append(2)"),
        ("a = np.array([[1], 'x'], dtype=object)", "a[0] = 3"),
        ("a = np.array([[1], 'x'], dtype=object)", "a.shape = (2, 1)"),
        ("a = np.ma.array([1, 2])", "a[0] = np.ma.masked"),
        ("a = np.ma.array([1, 2], mask=[0, 1])", "a.mask[0] = True"),
        ("a = np.ma.array([1, 2])", "a[0] = 7"),
        ("a = np.random.default_rng(1)", "a.random()"),
        ("a = np.random.RandomState(1)", "a.rand()"),
        ("a = np.zeros(2, dtype=[('x', int)])", "a['x'][0] = 1"),
        ("a = np.rec.array([(1, 2.0)], dtype=[('x', int), ('y', float)])", "a.x[0] = 3"),
    ],
)
def test_what_is_changed_of_arrays_is_told(told, before, text):
    assert told(NUMPY + before, text) == {"a"}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("import functools\nx = functools.partial(print, sep='')", "x.keywords['end'] = ''"),
        ("import functools\nx = functools.partial(print, [])", "x.args[0].append(1)"),
        (
            "import collections\nx = collections.OrderedDict(a=1, b=2)",
            "x.move_to_end('a')",
        ),
        (
            "import collections\nclass Mine(collections.OrderedDict): pass\nx = Mine(a=1, b=2)",
            "x.move_to_end('a')",
        ),
        ("import collections\nx = collections.deque([1])", "x.append(2)"),
        ("import collections\nx = collections.deque([[1]])", "x[0].append(2)"),
        ("import collections\nx = collections.Counter('ab')", "x.update('a')"),
        ("import collections\nx = collections.defaultdict(list)", "x['a']"),
        ("import array\nx = array.array('i', [1])", "x.append(2)"),
        ("x = bytearray(b'ab')", "x[0] = 0"),
        ("x = iter([1, 2])", "next(x)"),
        ("x = zip([1, 2], 'ab')", "next(x)"),
        ("import random\nx = random.Random(1)", "x.random()"),
        ("import io\nx = io.StringIO('ab')", "x.read()"),
        ("x = ValueError('a')", "x.args = ('b',)"),
        ("x = ValueError('a')", "x.add_note('b') if hasattr(x, 'add_note') else x.__init__('c')"),
    ],
)
def test_what_is_changed_of_objects_of_c_is_told(told, before, text):
    assert told(before, text) == {"x"}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("class A: pass", "A.__call__ = lambda self: 1"),
        ("class A:\n    def __len__(self): return 1", "A.__len__ = lambda self: 2"),
        ("class A:\n    def __len__(self): return 1", "del A.__len__"),
        ("class A: pass", "A.__getattr__ = property(print)"),
        ("class A: pass", "A.__init_subclass__ = classmethod(print)"),
        ("class A: pass", "A.items = []"),
        ("class A: items = []", "A.items.append(1)"),
        ("def A(n=[]): pass", "A.__defaults__[0].append(1)"),
        ("def A(): pass\ndef other(): return 2", "A.__code__ = other.__code__"),
        ("import enum\nclass A(enum.Enum): RED = []", "A.RED.value.append(1)"),
        ("import functools\n@functools.cache\ndef A(n): return [n]\nA(1)", "A(1).append(2)"),
        ("import functools\n@functools.lru_cache\ndef A(n): return [n]\nA(1)", "A(1).append(2)"),
        (
            "import functools\n@functools.cache\ndef A(n): return [n]\nA(1)",
            "A.cache_clear(); A(1)",
        ),
    ],
)
def test_what_is_changed_of_definitions_is_told(told, before, text):
    assert told(before, text) == {"A"}


LOGGER = """
import logging
class NoFoo(logging.Filter): pass
def heard(record): return True
x = logging.getLogger("xla_nb_test_changed")
x.addFilter(heard)
"""


@pytest.mark.parametrize(
    "text",
    [
        "x.setLevel(15)",
        "x.custom = 3",
        "x.addFilter(NoFoo())",
        "x.removeFilter(heard)",
        "x.propagate = False",
        "x.disabled = True",
    ],
)
def test_what_is_changed_of_loggers_is_told(told, text):
    try:
        assert told(LOGGER, text) == {"x"}
    finally:
        logging.root.manager.loggerDict.pop("xla_nb_test_changed")


def test_a_logger_that_is_only_used_is_unchanged(told):
    made = "first = x\nfirst.b, first.a = [1], [2]"
    try:
        assert told(LOGGER + made, "x.info('a'); x.isEnabledFor(10); x.a") == set()
    finally:
        logging.root.manager.loggerDict.pop("xla_nb_test_changed")


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("class A(abc.ABC): pass\nclass B: pass", "A.register(B)"),
        ("class A(abc.ABC): pass", "class B: pass\nA.register(B)"),
        ("class A(abc.ABC): pass\nA.register(str)", "A.register(int)"),
    ],
)
def test_what_is_registered_with_a_class_is_told(told, before, text):
    assert told("import abc\n" + before, text) == {"A"}


def test_what_a_class_is_registered_with_is_told(told):
    before = "import numbers\nclass A: pass\nclass B: pass\nnumbers.Number.register(B)"
    assert told(before, "numbers.Number.register(A); numbers.Number.register(B)") == {"A"}


def test_a_class_with_which_many_are_registered_is_unchanged(told):
    before = """
        import abc
        class A(abc.ABC): pass
        class Other: pass
        many = [Other, int, str, *(type("Same", (), {}) for _ in range(20))]
        for kind in many: A.register(kind)
    """
    assert told(before, "isinstance(3, A), issubclass(Other, A)") == set()


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("p = torch.eye(2).to_sparse()", "p._values().zero_()"),
        ("p = torch.eye(2).to_sparse_csr()", "p.values().zero_()"),
        (
            "p = torch.nn.Embedding(3, 1, sparse=True)\np(torch.tensor([1])).sum().backward()",
            "p.weight.grad._values().zero_()",
        ),
    ],
)
def test_what_is_changed_of_sparse_tensors_is_told(told, before, text):
    assert told(TORCH + before, text) == {"p"}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("class A: pass\nclass B: pass\nx = A()", "x.__class__ = B"),
        ("class A: pass\nx = A()", "class C: pass\nx.__class__ = C"),
        ("class A: pass\nx = A()", "class C: y = 3\nx.y = 2\nx.__class__ = C"),
        ("class x:\n    @staticmethod\n    def f(n=1): pass", "x.f.__defaults__ = (2,)"),
        (
            "class x:\n    @classmethod\n    def f(cls, n=1): pass",
            "x.f.__func__.__defaults__ = (2,)",
        ),
        ("class x:\n    @property\n    def f(self, n=1): pass", "x.f.fget.__defaults__ = (2,)"),
        ("x = ValueError('a')\nx.__cause__ = KeyError()", "x.__cause__ = None"),
        ("x = ValueError('a')", "x.__context__ = KeyError()"),
        ("import types\ninner = {'a': 1}\nx = types.MappingProxyType(inner)\ndel inner", SHOWN),
        ("x = [].append", "x(1)"),
        ("import ctypes\nx = ctypes.c_int(3)", "x.value = 4"),
        ("def x(): pass", "x.__name__ = 'y'"),
        ("class x: pass", "x.__name__ = 'y'"),
        ("class x: 'a'", "x.__doc__ = 'b'"),
    ],
)
def test_what_is_changed_beside_elements_and_attributes_is_told(told, before, text):
    assert told(before, text) == {"x"}


def test_what_a_setstate_has_made_is_looked_into(told):
    before = """
        class Log:
            def __init__(self): self.rows = [1]
            def __getstate__(self): return {}
            def __setstate__(self, state): self.rows, self.inner = [], Inner()
        class Inner:
            def __init__(self): self.depth = 1
        log, other, same = Log(), Log(), Log()
    """
    text = "log.rows.append(1); other.inner.depth = 2; same.rows, same.inner"
    assert told(before, text) == {"log", "other"}


def test_what_is_changed_of_proxies_is_told(told):
    cell = """
    class Proxy:
        def __init__(self, held): self.held = held
        @property
        def __class__(self): return type(self.held)
    one, other, kept = Proxy({}), Proxy([1]), Proxy({})
    """
    assert told(cell, "one.held['a'] = 1; other.held = 2") == {"one", "other"}


def test_what_is_kept_to_be_computed_once_is_no_change(told):
    before = """
        import functools
        class A:
            @functools.cached_property
            def size(self): return []
        @functools.cache
        def made(n): return [n]
        @functools.lru_cache(maxsize=1)
        def bounded(n): return [n]
        a, b, c = A(), A(), A()
        b.size, c.size, made(1), bounded(1)
    """
    assert told(before, "a.size; made(2); bounded(2); c.size.append(1)") == {"c"}


BIG = """
import collections, dataclasses, datetime, decimal, enum, fractions, functools, itertools
import pathlib, random, re, uuid, weakref
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Color(enum.Enum):
    RED, BLUE = 1, "b"
class Flag(enum.Flag):
    A = 1
    B = 2
@dataclasses.dataclass
class Config:
    rate: float = 0.1
    tags: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple = ()
Pair = collections.namedtuple("Pair", "a b")
class Squares(Dataset):
    def __len__(self): return 5
    def __getitem__(self, n): return torch.tensor([float(n * n)])
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(1, 4), torch.nn.Linear(4, 1)])
        self.norm = torch.nn.LayerNorm(4)
        self.rnn = torch.nn.LSTM(1, 2)
        self.register_buffer("scale", torch.ones(1))
    def forward(self, x):
        return self.layers[1](self.norm(self.layers[0](x * self.scale)).relu())
class Hashed:
    def __init__(self, n): self.n = n
    def __hash__(self): return hash(self.n)
    def __eq__(self, other): return isinstance(other, Hashed) and self.n == other.n
    @functools.cached_property
    def double(self): return self.n * 2
@functools.cache
def slow(n): return [n]
def outer():
    seen = []
    return lambda: seen
net = Net()
net.layers[0].register_forward_hook(lambda *_: None)
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(2, 1)).sum().backward(); optimizer.step()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
data = Squares()
loader = DataLoader(data, batch_size=2, shuffle=True)
pairs = DataLoader(TensorDataset(torch.ones(4, 1), torch.zeros(4)), sampler=[0, 1, 2])
config, point, pair = Config(tags=["a"]), Point(1, (2, [3])), Pair(1, [2])
objects = {Hashed(n) for n in range(20)} | {Color.RED, "x", Flag.A}
plain = {object(), object(), Hashed(3)}
nested = {"a": [{"b": (1, [2.0, float("nan")], {3})}], ("k", 1): frozenset({Hashed(1), "y"})}
rng, old, py, gen = np.random.default_rng(1), np.random.RandomState(1), random.Random(1), \
    torch.Generator()
several = [collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), slow, outer(),
           collections.Counter("aab"), collections.deque([1, [2]], 4), collections.ChainMap({}),
           functools.partial(print, sep=""), itertools.count(3), iter([1, 2]), zip("ab", [1, 2]),
           re.compile("a+"), datetime.datetime.now(datetime.timezone.utc), decimal.Decimal("1.5"),
           fractions.Fraction(1, 2), uuid.uuid4(), pathlib.Path("/tmp"), range(3), slice(1, 2),
           bytearray(b"ab"), ValueError("a"), torch.float32, torch.Size([1]), np.dtype("f4"),
           np.float32(1.5), len, [].append, Hashed(2).__hash__, Color.BLUE, {}.keys(), net.rnn]
arrays = [np.ones((2, 3)), np.array([[1], {2}], dtype=object), np.ma.array([1, 2], mask=[0, 1]),
          np.ma.array([1.0]), np.zeros(2, dtype=[("x", int)]), np.array("ab"), np.arange(9)[::2],
          np.rec.array([(1, 2.0)], dtype=[("x", int), ("y", float)]), np.matrix([[1]])]
tensors = [torch.ones(2).to(torch.bfloat16), torch.ones(2)[:1],
           torch.complex(torch.ones(1), torch.ones(1)).conj(), torch.tensor(1), torch.empty(0)]
weak = weakref.WeakValueDictionary(c=config)
me = {}
me["me"] = me
slow(1)
"""

READS = """
for _ in range(2):
    [list(loader), list(pairs), len(loader), data[1]]
net.eval if False else net(torch.ones(2, 1))
with torch.no_grad(): net.rnn(torch.ones(2, 1, 1))
for value in [net, optimizer, scheduler, data, loader, pairs, config, point, pair, objects, plain,
              nested, rng, old, py, gen, arrays, tensors, me, weak.get("c")]:
    repr(value), str(value)
list(map(repr, several)), [hash(one) for one in objects], [one.double for one in plain if
    isinstance(one, Hashed)]
net.state_dict(), optimizer.state_dict(), dict(net.named_parameters()), list(net.modules())
[tensor.sum() for tensor in tensors], [array.T for array in arrays], arrays[2].mean()
arrays[3].sum(), rng.bit_generator.state, torch.get_rng_state(), net.layers[0].weight.T
Config(), Point(3), Pair(1, 2), Color("b"), Color["RED"], Flag.A | Flag.B, list(Color), Flag(3)
slow(5), slow(1), several[3](), several[0]["a"], dataclasses.asdict(config), hash(pair.a)
dataclasses.replace(point, x=4), dataclasses.fields(Config), Config.__annotations__
isinstance(net, torch.nn.Module), sorted(Color, key=str)
sum(p.numel() for p in net.parameters()), next(net.parameters()).dtype
"""


def test_what_is_only_read_is_unchanged(told):
    assert told(BIG, READS) == set()


def test_tables_and_estimators_that_are_only_read_are_unchanged(told):
    pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    before = """
        import numpy as np, pandas as pd
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import LinearRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        x = np.arange(20.0).reshape(10, 2)
        model = make_pipeline(StandardScaler(), LinearRegression()).fit(x, x[:, 0])
        forest = RandomForestClassifier(3).fit(x, x[:, 0] > 5)
        df = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None], "c": pd.Categorical(list("aab"))})
        df["d"] = df.a * 2.5
        df["e"] = pd.date_range("2020-01-01", periods=3)
        df["f"] = [1, 2, 3]
        df.attrs["k"] = [1]
        indexed = df.set_index(["a", "b"]).sort_index()
        series, index, times = df.d, df.index, pd.DatetimeIndex(df.e)
        frames = {"g": df.groupby("c", observed=True), "r": df.rolling(2, on="e")}
    """
    text = """
model.predict(x), model.score(x, x[:, 0]), repr(model), model.get_params(), model._repr_html_()
forest.predict(x), forest.predict_proba(x), repr(forest), forest.feature_importances_
repr(df), df.describe(), df.values, df.sum(numeric_only=True), df.d.mean(), df[df.a > 1], df.loc[1]
df.to_numpy(), df.copy(), df.iloc[0], df.quantile(numeric_only=True), df.info(), df.dtypes, df.T
df.groupby("f").d.mean(), df.sort_values("d"), df.merge(df), df.query("a > 1"), df.eval("a + f")
df.duplicated(), df.fillna({"b": "z"}), df.memory_usage(deep=True), df.to_dict(), hash(df.d.iloc[0])
[row for row in df.itertuples()], df.a is df.a, df.index.is_unique, 1 in df.index
df.columns.get_loc("a"), times.is_monotonic_increasing, len(frames["g"]), frames["r"].d.sum()
indexed.loc[(1, "x")], indexed.index.levels, repr(indexed), indexed.reset_index()
series.rolling(2).mean(), series.value_counts(), index.get_loc(1), times.year
times.get_indexer(times), repr(times), df.c.cat.codes, df.b.str.upper(), df.e.dt.year, df.plot
frames["g"].d.mean(), frames["g"].indices, frames["g"].groups
"""
    assert told(before, text) == set()


def test_a_figure_that_is_only_read_is_unchanged(told):
    pytest.importorskip("matplotlib")
    before = """
        from matplotlib.figure import Figure
        figure = Figure()
        axes = figure.add_subplot()
        lines = axes.plot([1, 2], [3, 4])
        axes.set_title("t")
    """
    assert told(before, "repr(figure), axes.lines, lines[0].get_xdata(), axes.get_title()") == set()
    assert told(before, "axes.plot([1, 2], [5, 6])") >= {"axes"}


# ---------------------------------------------------------------- snapshots


def names_after(names, change):
    """Which names of a snapshot lead to what `change` changes."""
    before = Snapshot(names.values(), {})
    assert before.changed() == []
    change()
    return names_of(before.changed(), names, {})


def test_a_snapshot_finds_changed_elements_attributes_and_memory():
    space = {"__name__": "__main__"}
    exec("class Net: items, count = [], 0\ndef step(seen=[]): seen.append(1)", space)
    Net, step = space["Net"], space["step"]
    rows, memory = {"a": [(1, [])]}, bytearray(b"ab")
    names = {"Net": Net, "step": step, "rows": rows, "memory": memory, "other": [3]}
    assert names_after(names, lambda: Net.items.append(1)) == {"Net"}
    assert names_after(names, lambda: setattr(Net, "count", 1)) == {"Net"}
    assert names_after(names, step) == {"step"}
    assert names_after(names, lambda: setattr(Net, "__call__", lambda self: 1)) == {"Net"}
    assert names_after(names, lambda: setattr(step, "calls", 5)) == {"step"}
    assert names_after(names, lambda: rows["a"][0][1].append(1)) == {"rows"}
    assert names_after(names, lambda: memory.append(1)) == {"memory"}
    assert names_after(names, lambda: None) == set()


def test_a_snapshot_leaves_out_what_is_known():
    known, held = [1], [2]
    before = Snapshot([{"known": known, "held": held}], {7: known})
    known.append(1)
    assert before.changed() == []
    held.append(1)
    assert before.changed() == [held]
