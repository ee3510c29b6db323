"""A live rank is sent what changed in the notebook, and nothing else."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy
import pytest
import torch

from tests.support.live_ranks import opened_live
from tests.support.notebook_double import importable_folder
from xla_nb.pickling.parcel import Unopened

notebook = pytest.fixture(opened_live)
local = pytest.fixture(importable_folder)


@pytest.mark.parametrize(
    ("made", "written", "seen"),
    [
        ("x = {'a': {1}}", "x['a'].add(2)", "x == {'a': {1, 2}}"),
        ("x = numpy.zeros(4)", "x[1:3][1] = 5", "x.tolist() == [0, 0, 5, 0]"),
        ("x = [numpy.zeros(8)[::2]]", "x[0][1] = 5", "x[0].tolist() == [0, 5, 0, 0]"),
        ("x = numpy.array([[1], 'a'], object)", "x[0].append(2)", "x[0] == [1, 2]"),
        ("x = torch.zeros(3)", "x.untyped_storage()[0] = 1", "x.view(torch.uint8)[0] == 1"),
        ("x = {'w': torch.zeros(3)}", "x['w'].add_(2)", "x['w'].tolist() == [2, 2, 2]"),
        ("x = torch.nn.Linear(2, 2)", "x.bias.data.fill_(3)", "x.bias.tolist() == [3, 3]"),
        ("x = bytearray(b'ab')", "x[0] = 99", "x == b'cb'"),
    ],
)
def test_in_place_changes_are_sent(notebook, made, written, seen):
    notebook.run(f"import numpy, torch\n{made}")
    notebook.cell("x, numpy, torch")
    notebook.run(written)
    assert notebook.cell(f"bool({seen})")
    assert notebook.sent == {"x"}
    notebook.cell("x")
    assert notebook.sent == set()


def test_naming_values_in_another_order_sends_nothing(notebook):
    notebook.run(
        "import numpy, torch\nmodel = torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.Adam(model.parameters())\nb = numpy.zeros(4)\na = b[:]\nc = [b, a]"
    )
    notebook.cell("model, opt, b, a, c")
    for names in ("opt", "model", "opt, model", "c", "a, b", "b", "c, opt, a"):
        notebook.cell(names)
        assert notebook.sent == set(), names


def test_recreated_values_are_sent_again_even_if_equal(notebook):
    made = (
        "import numpy, torch\nlosses, stats, y = [], {'steps': 0}, numpy.zeros(3)\n"
        "model = torch.nn.Linear(1, 1)\nmodel.weight.data.fill_(1)\nmodel.bias.data.fill_(1)"
    )
    changes = (
        "losses.append(1); stats['steps'] += 1; y += 1; model.weight.data.add_(1)\n"
        "len(losses), stats['steps'], y[0], model.weight.item()"
    )
    for _ in range(3):
        notebook.run(made)
        notebook.run(made)  # new objects may reuse old addresses
        assert notebook.cell(changes) == (1, 1, 1.0, 2.0)
        assert notebook.sent == {"losses", "stats", "y", "model"}
    assert notebook.cell(changes) == (2, 2, 2.0, 3.0)
    assert notebook.sent == set()


@pytest.mark.parametrize(
    ("made", "done", "told"),
    [
        (
            "a, b = {'it': part}, [[part]]",
            "a['it'] = [1]; b",
            r"`a\['it'\]` and `b\[0\]\[0\]` are no longer the same object on ranks",
        ),
        ("a = {'it': part}", "del a['it']", r"ranks no longer have `a\['it'\]`"),
    ],
)
def test_new_value_with_a_part_that_ranks_lost_is_refused(notebook, made, done, told):
    notebook.run(f"part = [1]; {made}")
    notebook.cell(done)
    notebook.run("c = [part]")
    with pytest.raises(Unopened, match=told):
        notebook.cell("c")
    notebook.rank0.start_again()  # everything is sent again
    assert notebook.cell("c[0] is a['it']")
    assert notebook.sent == {"a", "c"}


FORMER = """
from types import SimpleNamespace
def made(): return SimpleNamespace(n=0)
model, wrapped, one, other, log, kept = made(), made(), made(), made(), [], [made()]
"""


@pytest.mark.parametrize(
    ("done", "asked", "wanted"),
    [
        ("renamed = model; del model", "renamed.n", 1),
        ("wrapped = SimpleNamespace(of=wrapped)", "wrapped.of.n", 1),
        ("wrapped = [[wrapped]]; wrapped = [wrapped]", "wrapped[0][0][0].n", 1),
        ("one, other = other, one", "(one.n, other.n)", (2, 1)),
        ("before, log = log, []", "(before, log)", ([1], [])),
        ("kept = [*kept, made()]", "[each.n for each in kept]", [1, 0]),
        ("of_kept = kept.pop(); del kept; of_kept.n = 7", "of_kept.n", 7),
        ("model.n = 7; renamed = model; del model", "renamed.n", 7),
    ],
)
def test_renaming_a_value_keeps_the_ranks_changes(notebook, done, asked, wanted):
    notebook.run(FORMER)
    notebook.cell("model.n = wrapped.n = one.n = kept[0].n = 1; other.n = 2; log.append(1)")
    notebook.run(done)
    assert (notebook.cell(asked), notebook.notes) == (wanted, ())
    notebook.cell(asked)
    assert notebook.sent == set()


def test_ranks_keep_renamed_values_while_no_cell_names_them(notebook):
    notebook.run(FORMER)
    notebook.cell("model.n = 1; log.append(1)")
    notebook.run("best, runs = model, {'first': log}; model, log = made(), []")
    assert notebook.cell("model.n, log") == (0, [])
    assert notebook.cell("best.n, runs") == (1, {"first": [1]})
    assert notebook.notes == ()
    notebook.run("del best, runs")
    for _ in range(3):
        notebook.cell("model")
    assert not [name for name in notebook.rank0.values if "former" in name]


def test_note_reports_resending_a_class_with_a_new_name_for_its_part(notebook):
    notebook.run("class Registry: items = {}\ndef look(): look.seen.append(1)\nlook.seen = []")
    notebook.cell("Registry.items.update(a=1), look()")
    notebook.run("items, seen = Registry.items, look.seen")
    assert notebook.cell("len(items), len(seen), Registry.items is items") == (0, 0, True)
    assert {*notebook.notes} == {
        f"replaced the ranks' `{whose}` with the notebook's: shared with the new `{name}`"
        for name, whose in (("items", "Registry"), ("seen", "look"))
    }


def test_sentinel_created_later_in_an_own_module_reaches_ranks(notebook, local):
    (local / "marked.py").write_text(
        "_mark = None\ndef mark():\n    global _mark\n"
        "    _mark = _mark or object()\n    return _mark\n"
    )
    notebook.run("import marked")
    notebook.cell("marked")
    notebook.run("held = marked.mark()")
    assert notebook.cell("held is marked._mark is marked.mark() is not None")


#: Scripts for `LiveNotebook.act`.
STORIES = {
    "rebinding equal constants and definitions sends nothing": """
        lr, name, sizes = 0.5, "a", (1, 2)
        def f(): return lr
        >>> lr, name, sizes, f()
        lr, name, sizes = 0.5, "a", (1, 2)
        >>> lr, name, sizes, f()
        sent:
    """,
    "memory created by pickling is sent again only after a change": """
        import pandas, pickle, torch
        class AsArrows:
            def __init__(self, held): self.held = held
            def __reduce_ex__(self, _):
                return AsArrows, (pickle.PickleBuffer(bytearray(self.held)),)
        frame, arrows = pandas.DataFrame({"a": [1.0], "b": [3]}), AsArrows(b"a")
        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader([1, 2], shuffle=True, generator=torch.Generator())
        >>> frame, arrows, generator, loader
        >>> frame, arrows, generator, loader
        sent:
    """,
    "a new value reuses parts that ranks have": """
        import torch
        body, head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        model = torch.nn.Sequential(body, head)
        optimizer = torch.optim.Adam(model.parameters())
        def ids(of): return [*map(id, of)]
        >>> [one.data.fill_(7) for one in model.parameters()]; optimizer.step()
        >>> body is model[0] and body.weight.item() == 7
        sent: body
        told:
        optimizer = torch.optim.SGD(model.parameters(), 0.5); kept = [head.bias]
        >>> kept and ids(optimizer.param_groups[0]["params"]) == ids(model.parameters())
        sent: ids kept optimizer
        told:
        >>> kept[0] is model[1].bias and kept[0].item() == 7
        >>> optimizer, kept, body, model
        sent:
    """,
    "a resent value does not mix the ranks' parts with the notebook's": """
        import torch
        net = torch.nn.BatchNorm1d(1)
        optimizer = torch.optim.SGD(net.parameters(), 0.5)
        >>> net.weight.data.fill_(7); net.running_mean.fill_(7); optimizer
        net.eval()
        >>> (net.weight.item(), net.running_mean.item()) == (1, 0)
        sent: net optimizer
    """,
    "a new holder of the ranks' values gets their versions": """
        import torch
        net, seen = torch.nn.Linear(1, 1), []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        class Trainer:
            def __init__(self, **parts): vars(self).update(parts)
        def state(of): return of.net.weight.item(), of.optimizer.param_groups[0]["lr"], seen
        >>> net.weight.data.fill_(7); optimizer.param_groups[0]["lr"] = 0.5; seen.append(1)
        trainer, models = Trainer(net=net, optimizer=optimizer), {"a": net}
        >>> models["a"] is trainer.net is net and state(trainer) == (7, 0.5, [1])
        sent: Trainer models state trainer
        told:
        trainer.seen = seen
        >>> trainer.seen is seen and state(trainer) == (7, 0.5, [1])
        sent: trainer
        net.weight.data.fill_(9)
        >>> models["a"] is trainer.net is net and state(trainer) == (9, 0.1, [1])
        sent: models net optimizer trainer
    """,
    "an optimizer changed in the notebook keeps the model trained on ranks": """
        import torch
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        def its(): return optimizer.param_groups[0]["params"][0]
        >>> net.weight.data.fill_(7); its()
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        >>> its() is net.weight and rates.optimizer is optimizer and net.weight.item() == 7
        optimizer.param_groups[0]["lr"] = 0.2
        >>> its() is net.weight and rates.optimizer is optimizer and net.weight.item() == 7
        sent: optimizer rates
        told: replaced the ranks' `optimizer` and `rates` with the notebook's: `optimizer` and `r…
        >>> optimizer.param_groups[0]["lr"] == 0.2
    """,
    "partials, methods and built-in methods share the objects they hold": """
        import functools
        class Counter:
            n = 0
            def add(self): self.n += 1
        def look(box): box.append(1)
        counter, box, row = Counter(), [], [1]
        add, looks, put = counter.add, functools.partial(look, box), row.append
        >>> add(); looks(); put(5)
        >>> counter.n == 1 and counter is add.__self__ and box is looks.args[0] and box == [1]
        row.append(0)
        >>> (put(6), row) == (None, [1, 0, 6])
        held = [looks, add]
        >>> held
        also = [looks]
        >>> also, held
        sent: also
    """,
    "a renamed closure keeps its state, or a note reports the loss": """
        def counts():
            n = [0]
            def add(): n[0] += 1; return n[0]
            return add, lambda: n[0]
        add, _ = counts()
        >>> add()
        held = {"add": add}; del add, _
        >>> held["add"]() == 2
        held = None; add, _ = counts()
        >>> add()
        add, read = counts()  # as in a notebook: another one
        >>> add() == 1
        held = add, read; del add, read
        >>> held[1]() == 0
        told: replaced the ranks' former `add`, whose data the notebook still uses…
    """,
    "arrays and tensors share memory": """
        import numpy, torch
        t, a, b = torch.zeros(4), numpy.zeros(4), numpy.zeros(8)
        u, v, w = t[1:], torch.from_numpy(a)[1:], b[1::2]
        >>> [t, a, b, u, v, w]
        u[0] = v[0] = w[0] = 5
        >>> u[0] = v[0] = w[0] = 6; t[1] == a[1] == b[1] == 6
        sent: t a b u v w
    """,
    "instances of a notebook class share nothing through super()": """
        import torch
        class Own(torch.optim.SGD):
            def step(self, closure=None): return super().step(closure)
        def made():
            net = torch.nn.Linear(1, 1)
            optimizer = Own(net.parameters(), 0.1)
            return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        net, optimizer, rates = made()
        >>> net.weight.data.fill_(7); rates
        _, later, later_rates = made()
        >>> later_rates and net.weight.item() == 7
    """,
    "a name rebound on ranks no longer holds the notebook's value": """
        from types import SimpleNamespace
        model = SimpleNamespace(n=0)
        >>> model.n = 1
        >>> model = SimpleNamespace(n=9)
        held = [model]
        >>> (held[0].n, model.n) == (0, 9)
    """,
    "only values that share something are sent again": """
        import numpy
        from types import SimpleNamespace as Box
        apart, net, x = Box(n=0), Box(n=0), numpy.zeros(4)
        >>> apart.n = net.n = 5; x.fill(5)
        trainer, part = Box(of=net, log=[]), x[2:]
        >>> trainer.of is net and (net.n, apart.n, float(x[0]), part.fill(1)) == (5, 5, 0, None)
        told: replaced the ranks' `x` with the notebook's: shared with the new `part`
        >>> float(x.sum()) == 2
    """,
    "values derived from a frame do not resend it": """
        import pandas
        frame = pandas.DataFrame({"a": [3, 1], "b": ["x", "y"]})
        >>> frame["c"] = 1; frame.shape == (2, 3)
        a, rest, by_b = frame["a"], frame[["a", "b"]], frame.set_index("b")
        >>> frame.shape == (2, 3)
        sent:
        told:
        more, index, held = frame[frame["a"] > 1], frame.index, {"frame": frame}
        >>> (a, rest, by_b, more, len(index), frame.shape)[-1] == (2, 3)
        told:
        >>> held["frame"] is frame and held["frame"].shape == (2, 3)
        >>> a.iloc[0] = 9; (int(frame["a"][0]), int(rest["a"][0])) == (3, 3)
    """,
    "an index or copy of a frame does not resend the frame's holder": """
        import pandas
        frame = pandas.DataFrame({"a": [3, 1], "b": ["x", "y"]}, index=[5, 6])
        class Trainer:
            def __init__(self, frame): self.frame, self.step = frame, 0
        trainer = Trainer(frame)
        >>> trainer.step = 9; trainer.frame is frame
        index, kinds, copied = frame.index, frame["b"].unique(), frame.copy()
        other, zeros = Trainer(copied), pandas.Series(0.0, index=frame.index)
        >>> (len(index), list(kinds), other.step, len(zeros)) == (2, ["x", "y"], 0, 2)
        told:
        >>> trainer.step == 9
    """,
    "an array view of a frame is resent with the frame after a write": """
        import pandas
        frame = pandas.DataFrame({"a": [3.0, 1.0, 2.0]})
        first = frame["a"].to_numpy()[:2]
        >>> frame.iloc[0, 0] = 7.0; first.tolist() == [7.0, 1.0]
        frame.iloc[1, 0] = 9.0
        >>> (frame["a"].tolist(), first.tolist()) == ([3.0, 9.0, 2.0], [3.0, 9.0])
        told: replaced the ranks' `first` and `frame` with the notebook's: `first` and `frame` ch…
        >>> frame.iloc[0, 0] = 5.0; first.tolist() == [5.0, 9.0]
    """,
    "a sentinel keeps its identity on ranks": """
        NONE = object()
        def is_given(of): return of is not NONE
        held = {"a": NONE}
        >>> is_given(held["a"]) is False
        held["b"] = NONE; keys = {NONE: 1}
        >>> (is_given(held["a"]), is_given(held["b"]), keys[NONE]) == (False, False, 1)
        sent: held keys
    """,
    "a function changed in place stays the same function": """
        def f(a=1): return a
        f.x = f.y = 1
        t = [f]
        >>> mine = f; t
        def g(a): return -a
        f.__code__, f.__defaults__, f.x = g.__code__, (3,), 2
        del f.y
        >>> mine is f and t[0] is f and (f(), vars(f)) == (-3, {"x": 2})
    """,
    "a deleted closure variable is unset on ranks": """
        def make():
            part = 1
            def f(): return part
            def forget():
                nonlocal part
                del part
            return f, forget
        f, forget = make()
        def found():
            try: return f()
            except NameError as gone: return str(gone)
        >>> found() == 1
        forget()
        >>> "'part'" in found()
    """,
    "enum members keep their identity on ranks": """
        import enum
        class Color(enum.Enum):
            RED = 1
            BLUE = 2
        class Flag(enum.Flag):
            A = 1
            B = 2
        both = Flag.A | Flag.B
        >>> mine = Color.RED, Flag.A | Flag.B; both
        c = [Color.RED, both]
        Color.note = lambda self: 3
        >>> c[0] is Color.RED is mine[0] and c[1] is mine[1] and c[0].note() == 3
    """,
    "an instance's __setstate__ finds the globals it uses": """
        import math
        SCALE = [2]
        def scaled(x): return math.floor(x) * SCALE[0]
        class A:
            def __init__(self, x): self.x = x
            def __getstate__(self): return self.x
            def __setstate__(self, x): self.x = scaled(x)
        a = A(1.5)
        >>> a.x == 2
    """,
    "functions created by exec share their namespace": """
        space = {}
        exec("n = 1\\ndef f(): return n\\ndef g(v): global n; n = v", space)
        f, g = space["f"], space["g"]
        del space
        >>> g(5); f() == 5
        g.note = 1
        >>> g(6)
        >>> f() == 6
    """,
    "subclasses are sent too, and a returning old class is the one ranks know": """
        class A:
            def m(self): return 1
        old = [A()]
        >>> mine = A()
        class B(A): pass
        >>> [each.__name__ for each in A.__subclasses__()] == ["B"]
        class A:
            def m(self): return 2
        >>> A
        >>> type(old[0]) is type(mine) and old[0].m() == 1
    """,
    "rebinding a name does not resend holders of the old value": """
        def logged(f):
            def inner(*args): return f(*args)
            return inner
        class Model: pass
        @logged
        def evaluate(x): return x
        log = []
        m = Model(); m.n, m.log, m.act = 0, log, evaluate
        >>> m.n += 1; log.append(1); (m.act(2), evaluate(3), m.log) == (2, 3, [1])
        @logged
        def evaluate(x): return x
        log = []
        >>> m.n += 1; (m.n, m.log, log) == (2, [1], [])
        sent: evaluate log
    """,
    "a changed constant does not resend the holder of a closure that reads it": """
        RATE = 1
        class Trainer: n = 0
        def make():
            seen = []
            def step(): seen.append(RATE); return RATE
            return step
        t = Trainer(); t.step = make()
        >>> t.n += 1; (t.step(), t.n) == (1, 1)
        RATE = 2
        >>> t.n += 1; (t.step(), t.n) == (2, 2)
        sent: RATE
    """,
    "values that share only functions and constants are sent separately": """
        import configparser, functools, numpy, pandas, pathlib, sys, torch
        from torch.optim import swa_utils
        class Options(dict): pass
        class Own(torch.optim.SGD): pass
        def made():
            @functools.singledispatch
            def made(x: list[int]) -> int: return 1
            return made
        NONE, norm = object(), functools.partial(torch.nn.LayerNorm, eps=1e-6)
        shared = [pathlib.Path("x"), pandas.Timestamp(0), NONE, norm, ("a" * 99, 7)]
        class Trainer:
            def __init__(self):
                self.options, self.draw = Options(), numpy.random.default_rng(0)
                self.frame, self.settings = pandas.DataFrame(), configparser.ConfigParser()
                self.model = torch.nn.Linear(1, 1)
                # Not Adam beside it: their `step` is one or two, by which was made first.
                optimizers = torch.optim.AdamW, Own
                self.optimizers = [each(self.model.parameters()) for each in optimizers]
                rates = torch.optim.lr_scheduler.ExponentialLR
                self.rates = [rates(each, 0.9) for each in self.optimizers]
                many = {"num_workers": 1, "multiprocessing_context": "fork"}
                self.loader = torch.utils.data.DataLoader([1], **many)
                averaged = swa_utils.get_ema_multi_avg_fn(0.9)
                self.mean = swa_utils.AveragedModel(self.model, multi_avg_fn=averaged)
                self.stream, self.calls = sys.stdout, [numpy.random.rand, made()]
                self.held, self.n = [*shared, torch.float32, torch.device("cpu")], 0
        one, two = Trainer(), Trainer()
        >>> one.n += 1; one.n == 1
        >>> two.n += 1; (one.n, two.n) == (1, 1)
        two.n = 5
        >>> (one.n, two.n) == (1, 5)
        sent: two
        told: replaced the ranks' `two` with the notebook's: `two` changed there
    """,
    "a note names the parts of a changed value that stay the ranks'": """
        inner = [1]
        nested = {"a": inner}
        >>> inner.append(2); nested == {"a": [1, 2]}
        nested["c"] = 5
        >>> (nested, inner) == ({"a": [1, 2], "c": 5}, [1, 2])
        told: replaced the ranks' `nested` with the notebook's, except `inner`: `nested` changed…
    """,
    "notes about rebound values show no internal names": """
        import torch
        w = torch.zeros(3)
        d = {"w": w}; li = [w, d]
        >>> (len(w), len(d), len(li)) == (3, 1, 2)
        w = torch.ones(3)
        >>> (len(w), len(d), len(li)) == (3, 1, 2)
        d["w"] = w
        >>> (len(w), len(d), len(li)) == (3, 1, 2)
        told: replaced the ranks' `d` and `li` with the notebook's, except `w`: `d` and `li` chan…
    """,
    "a note names a definition that shares memory only once": """
        import functools, numpy
        box = numpy.zeros(2)
        @functools.cache
        def other(): pass
        other.kept = box[1:]
        >>> len(box)
        >>> other
        told: replaced the ranks' `box` with the notebook's: shared with the new `other`
    """,
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_ranks_get_notebook_changes_and_keep_their_own(notebook, story):
    notebook.act(story)


def test_ranks_drop_definitions_that_the_notebook_no_longer_refers_to(notebook):
    notebook.run("class A:\n    def m(self): return 1\ndef f(): return A")
    notebook.cell("f()")
    sizes = []
    for n in range(8):
        notebook.run(f"class A:\n    def m(self): return super().__init__(), {n}")
        gc.collect()
        notebook.cell("f()().m()")
        sizes.append(len(notebook.rank0.table))
    assert sizes[-1] == sizes[4]


_LARGE = 16 << 20


@pytest.fixture
def large(notebook):
    """A large array that ranks have as `x`."""
    notebook.values["x"] = x = numpy.zeros(_LARGE, numpy.uint8)
    notebook.cell("x")
    return x


def test_one_byte_change_in_large_memory_is_detected_even_if_shared(notebook, large):
    for place in (0, 1, _LARGE // 2, _LARGE - 1):
        notebook.cell("x")
        assert notebook.sent == set()
        large[place] = 7
        assert notebook.cell(f"x[{place}]") == 7
        large[place] = 7
        notebook.cell("x")
        assert notebook.sent == set()
    notebook.values["y"] = large[1:]
    notebook.cell("x, y")
    notebook.cell("x, y")
    large[5 << 20] = 3
    assert notebook.cell("x[5 << 20] == y[(5 << 20) - 1] == 3")


@pytest.mark.parametrize("fails", ["a launch", "another value"])
def test_change_in_large_memory_is_detected_after_a_failure(notebook, large, fails):
    large[5 << 20] = 3
    if fails == "a launch":
        notebook.program("x")
    else:
        notebook.values["y"] = [], (n for n in ())
        with pytest.raises(Exception, match="y"):
            notebook.cell("x, y")
        del notebook.values["y"]
    assert notebook.cell("x[5 << 20]") == 3


@pytest.mark.parametrize("shared", [False, True], ids=["private memory", "shared mapping"])
def test_change_in_large_tensor_is_detected(notebook, shared):
    x = torch.zeros(_LARGE // 4)
    notebook.values["x"] = x.share_memory_() if shared else x
    notebook.cell("x")
    notebook.cell("x")
    x[7] += 1
    assert notebook.cell("float(x[7])") == 1


def test_resending_memory_leaks_no_file_descriptors(notebook, large):
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(10):
        large += 1
        notebook.cell("x")
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1
