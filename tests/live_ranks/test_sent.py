"""A live rank gets what changed in the notebook since it was sent, and nothing else."""

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


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "written", "seen"),
    [
        ("x = [1]", "x.append(2)", "x == [1, 2]"),
        ("x = {'a': {1}}", "x['a'].add(2)", "x == {'a': {1, 2}}"),
        ("x = numpy.zeros(4)", "x[2] = 5", "x.tolist() == [0, 0, 5, 0]"),
        ("x = numpy.zeros(4)", "x[1:3][1] = 5", "x.tolist() == [0, 0, 5, 0]"),
        ("x = [numpy.zeros(8)[::2]]", "x[0][1] = 5", "x[0].tolist() == [0, 5, 0, 0]"),
        ("x = numpy.array([[1], 'a'], object)", "x[0].append(2)", "x[0] == [1, 2]"),
        ("x = torch.zeros(3)", "x.untyped_storage()[0] = 1", "x.view(torch.uint8)[0] == 1"),
        ("x = {'w': torch.zeros(3)}", "x['w'].add_(2)", "x['w'].tolist() == [2, 2, 2]"),
        ("x = torch.nn.Linear(2, 2)", "x.bias.data.fill_(3)", "x.bias.tolist() == [3, 3]"),
        ("x = bytearray(b'ab')", "x[0] = 99", "x == b'cb'"),
        ("x = 1.5", "x = 2.5", "x == 2.5"),
        ("x = A()", "x.a = 2", "x.a == 2"),
    ],
)
def test_what_is_written_in_place_is_sent(notebook, made, written, seen):
    notebook.run(f"import numpy, torch\nclass A: pass\n{made}")
    notebook.cell("x, numpy, torch")
    notebook.run(written)
    assert notebook.cell(f"bool({seen})")
    assert notebook.sent == {"x"}
    notebook.cell("x")
    assert notebook.sent == set()


@pytest.mark.parametrize(
    "value",
    [
        "pandas.DataFrame({'a': [1.0], 'b': [3]})",
        "AsArrows(b'a')",
        "torch.Generator().manual_seed(1)",
        "torch.utils.data.DataLoader([1, 2, 3], shuffle=True, generator=torch.Generator())",
    ],
)
def test_memory_that_is_made_to_be_pickled_is_sent_again_only_when_it_has_changed(notebook, value):
    notebook.run(
        "import pandas, pickle, torch\nclass AsArrows:\n"
        "    def __init__(self, held): self.held = held\n"
        "    def __reduce_ex__(self, _):\n"
        "        return AsArrows, (pickle.PickleBuffer(bytearray(self.held)),)\n"
        f"x = {value}"
    )
    notebook.cell("x")
    notebook.cell("x")
    assert notebook.sent == set()


def test_nothing_is_sent_again_because_a_cell_names_it_in_another_order(notebook):
    notebook.run(
        "import numpy, torch\nmodel = torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.Adam(model.parameters())\nb = numpy.zeros(4)\na = b[:]\nc = [b, a]"
    )
    notebook.cell("model, opt, b, a, c")
    for names in ("opt", "model", "opt, model", "c", "a, b", "b", "c, opt, a"):
        notebook.cell(names)
        assert notebook.sent == set(), names


def test_a_value_that_was_made_anew_is_sent_anew_though_it_is_equal(notebook):
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
        notebook.run(made)  # objects may lie where former ones did
        assert notebook.cell(changes) == (1, 1, 1.0, 2.0)
        assert notebook.sent == {"losses", "stats", "y", "model"}
    assert notebook.cell(changes) == (2, 2, 2.0, 3.0)
    assert notebook.sent == set()


def test_constants_and_definitions_that_are_bound_again_need_no_sending(notebook):
    made = "lr, name, sizes = 0.5, 'a', (1, 2)\ndef f(): return lr"
    notebook.run(made)
    notebook.cell("lr, name, sizes, f()")
    notebook.run("lr, name, sizes = 0.5, 'a', (1, 2)")
    notebook.cell("lr, name, sizes, f()")
    assert notebook.sent == set()


def test_ranks_that_were_started_anew_get_everything(notebook):
    notebook.run("x = [1]\nclass A: pass\ndef f(): return x, A")
    notebook.cell("f()")
    notebook.rank0.start_again()
    assert notebook.cell("f()[0]") == [1]
    assert notebook.sent == {"A", "f", "x"}


# --- what values share ------------------------------------------------------------------------


def test_values_that_share_an_object_share_it_on_ranks(notebook):
    notebook.run("x = [[1]]\ny = {'x': x[0]}")
    assert notebook.cell("y['x'] is x[0]")
    notebook.run("y['z'] = 2")
    assert notebook.cell("y['x'] is x[0]")
    assert notebook.sent == {"x", "y"}
    assert notebook.notes == ("ranks have `x` and `y` as in the notebook: `y` changed there",)


def test_a_method_of_a_builtin_shares_what_it_is_of(notebook):
    notebook.run("held = [1]; add = held.append")
    notebook.cell("add(5), held")
    notebook.run("held.append(0)")
    assert notebook.cell("add(6), held") == (None, [1, 0, 6])


def test_a_new_value_that_shares_memory_with_an_old_one_is_told(notebook):
    notebook.run("import numpy\nx = numpy.zeros(4)")
    notebook.cell("x")
    notebook.run("y = x[2:]")
    assert notebook.cell("y.fill(1), float(x.sum())")[1] == 2
    assert notebook.notes == ("ranks have `x` as in the notebook: sent with the new `y`",)


def test_a_new_value_gets_the_parts_that_ranks_have(notebook):
    notebook.run(
        """
        import torch
        body, head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        model = torch.nn.Sequential(body, head)
        optimizer = torch.optim.Adam(model.parameters())
        """
    )
    notebook.cell("[one.data.fill_(7) for one in model.parameters()]; optimizer.step()")
    assert notebook.cell("body is model[0], body.weight.item()") == (True, 7)
    assert (notebook.sent, notebook.notes) == ({"body"}, ())
    notebook.run("optimizer = torch.optim.SGD(model.parameters(), 0.5); kept = [head.bias]")
    is_theirs = "all(a is b for a, b in zip(optimizer.param_groups[0]['params'], params))"
    params = "params = [*model.parameters()]; kept[0] is model[1].bias"
    assert notebook.cell(f"{params} and {is_theirs} and params[3].item()") == 7
    assert (notebook.sent, notebook.notes) == ({"optimizer", "kept"}, ())
    assert notebook.cell("optimizer, kept, body, model") is not None
    assert notebook.sent == set()


def test_a_new_value_gets_no_part_that_is_no_longer_one_on_ranks(notebook):
    notebook.run("part = [1]; a, b = {'it': part}, [[part]]")
    notebook.cell("a['it'] = [1]; b")
    notebook.run("c = [part]")
    with pytest.raises(Unopened, match=r"`a\['it'\]` and `b\[0\]\[0\]` are no longer one on ranks"):
        notebook.cell("c")
    notebook.rank0.start_again()
    assert notebook.cell("c[0] is a['it'] is b[0][0]")


def test_a_new_value_gets_no_part_that_ranks_have_taken_out(notebook):
    notebook.run("part = [1]; a = {'it': part}")
    notebook.cell("del a['it']")
    notebook.run("c = [part]")
    with pytest.raises(Unopened, match=r"ranks no longer have `a\['it'\]`"):
        notebook.cell("c")


def test_a_value_that_ranks_had_is_not_mixed_of_their_parts_and_its_own(notebook):
    notebook.run("import torch\nnet = torch.nn.BatchNorm1d(1)")
    notebook.run("optimizer = torch.optim.SGD(net.parameters(), 0.5)")
    notebook.cell("net.weight.data.fill_(7); net.running_mean.fill_(7); optimizer")
    notebook.run("net.eval()")
    assert notebook.cell("net.weight.item(), net.running_mean.item()") == (1, 0)
    assert notebook.sent == {"net", "optimizer"}


def test_what_holds_a_whole_value_that_ranks_have_gets_theirs(notebook):
    notebook.run(
        """
        import torch
        net, seen = torch.nn.Linear(1, 1), []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        class Trainer:
            def __init__(self, **parts): vars(self).update(parts)
        """
    )
    notebook.cell("net.weight.data.fill_(7); optimizer.param_groups[0]['lr'] = 0.5; seen.append(1)")
    notebook.run("trainer, models = Trainer(net=net, optimizer=optimizer), {'a': net}")
    state = "trainer.net.weight.item(), trainer.optimizer.param_groups[0]['lr'], seen"
    assert notebook.cell(f"models['a'] is trainer.net is net and ({state})") == (7, 0.5, [1])
    assert (notebook.sent, notebook.notes) == ({"Trainer", "trainer", "models"}, ())
    notebook.run("trainer.seen = seen")
    assert notebook.cell(f"trainer.seen is seen and ({state})") == (7, 0.5, [1])
    assert notebook.sent == {"trainer"}
    notebook.run("net.weight.data.fill_(9)")
    assert notebook.cell(f"models['a'] is trainer.net is net and ({state})") == (9, 0.1, [1])
    assert notebook.sent == {"net", "optimizer", "trainer", "models"}


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
def test_what_ranks_have_stays_under_another_name(notebook, done, asked, wanted):
    notebook.run(FORMER)
    notebook.cell("model.n = wrapped.n = one.n = kept[0].n = 1; other.n = 2; log.append(1)")
    notebook.run(done)
    assert (notebook.cell(asked), notebook.notes) == (wanted, ())
    notebook.cell(asked)
    assert notebook.sent == set()


def test_an_optimizer_that_the_notebook_changes_keeps_the_model_that_ranks_have_trained(notebook):
    notebook.run(
        """
        import torch
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        """
    )
    notebook.cell("net.weight.data.fill_(7); optimizer")
    notebook.run("rates = torch.optim.lr_scheduler.StepLR(optimizer, 1)")
    is_its = "optimizer.param_groups[0]['params'][0] is net.weight, rates.optimizer is optimizer"
    assert notebook.cell(f"{is_its}, net.weight.item()") == (True, True, 7)
    notebook.run("optimizer.param_groups[0]['lr'] = 0.2")
    assert notebook.cell(f"{is_its}, net.weight.item()") == (True, True, 7)
    told = "ranks have `optimizer` and `rates` as in the notebook: `optimizer` and `rates` changed"
    assert notebook.notes == (f"{told} there",)
    assert notebook.cell("optimizer.param_groups[0]['lr']") == 0.2


def test_what_a_partial_or_a_method_holds_is_a_part_of_it(notebook):
    notebook.run(
        """
        import functools
        class Counter:
            n = 0
            def add(self): self.n += 1
        counter = Counter()
        def look(box): box.append(1)
        box = []
        add, looks = counter.add, functools.partial(look, box)
        """
    )
    notebook.cell("add(); looks()")
    assert notebook.cell("counter.n, counter is add.__self__, box is looks.args[0], box") == (
        *(1, True, True),
        [1],
    )
    notebook.run("held = [looks, add]")
    notebook.cell("held")
    notebook.run("also = [looks]")
    notebook.cell("also, held")
    assert notebook.sent == {"also"}


def test_a_function_with_a_closure_is_the_same_under_another_name(notebook):
    notebook.run(
        "def counts():\n    n = [0]\n    def add(): n[0] += 1; return n[0]\n    return add"
    )
    notebook.run("add = counts()")
    notebook.cell("add()")
    notebook.run("held = {'add': add}; del add")
    assert notebook.cell("held['add']()") == 2
    notebook.run("held = None; add = counts()")
    notebook.cell("add()")
    notebook.run("add = counts()")  # as in a notebook: another one
    assert notebook.cell("add()") == 1


def test_what_ranks_lose_under_another_name_is_told(notebook):
    notebook.run(
        """
        def counts():
            n = [0]
            def add(): n[0] += 1; return n[0]
            return add, lambda: n[0]
        add, read = counts()
        """
    )
    notebook.cell("add()")
    notebook.run("held = add, read; del add, read")
    assert notebook.cell("held[1]()") == 0
    (told,) = notebook.notes
    assert told.startswith("what ranks had as `add` before it got another name")


def test_instances_of_one_class_of_the_notebooks_share_nothing_by_its_super(notebook):
    notebook.run(
        """
        import torch
        class Own(torch.optim.SGD):
            def step(self, closure=None): return super().step(closure)
        def made():
            net = torch.nn.Linear(1, 1)
            optimizer = Own(net.parameters(), 0.1)
            return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        net, optimizer, rates = made()
        """
    )
    notebook.cell("net.weight.data.fill_(7); rates")
    notebook.run("_, later, later_rates = made()")
    assert notebook.cell("later_rates, net.weight.item()")[1] == 7


def test_what_the_notebook_keeps_is_kept_on_ranks_also_while_no_cell_names_it(notebook):
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


def test_a_name_that_ranks_have_bound_is_no_place_of_the_notebooks_value(notebook):
    notebook.run(FORMER)
    notebook.cell("model.n = 1")
    notebook.cell("model = SimpleNamespace(n=9)")
    notebook.run("held = [model]")
    assert notebook.cell("held[0].n, model.n") == (0, 9)


def test_only_what_shares_something_else_is_sent_again(notebook):
    notebook.run("import numpy\nfrom types import SimpleNamespace as Box")
    notebook.run("apart, net, x = Box(n=0), Box(n=0), numpy.zeros(4)")
    notebook.cell("apart.n = net.n = 5; x.fill(5)")
    notebook.run("trainer, part = Box(of=net, log=[]), x[2:]")
    assert notebook.cell("trainer.of is net, net.n, apart.n, float(x[0]), part is not x") == (
        *(True, 5, 5, 0),
        True,
    )
    assert notebook.notes == ("ranks have `x` as in the notebook: sent with the new `part`",)


def test_a_frame_is_not_changed_by_what_is_made_of_it(notebook):
    notebook.run("import pandas\nframe = pandas.DataFrame({'a': [3, 1], 'b': ['x', 'y']})")
    assert notebook.cell("frame['c'] = 1; frame.shape") == (2, 3)
    notebook.run("a, rest, by_b = frame['a'], frame[['a', 'b']], frame.set_index('b')")
    assert notebook.cell("frame.shape") == (2, 3)
    assert (notebook.sent, notebook.notes) == (set(), ())
    notebook.run("more, index, held = frame[frame['a'] > 1], frame.index, {'frame': frame}")
    assert notebook.cell("a, rest, by_b, more, len(index), frame.shape")[-1] == (2, 3)
    assert notebook.notes == ()
    assert notebook.cell("held['frame'] is frame and held['frame'].shape") == (2, 3)
    assert notebook.cell("a.iloc[0] = 9; int(frame['a'][0]), int(rest['a'][0])") == (3, 3)


def test_what_has_a_frames_index_or_is_its_copy_shares_nothing_with_who_holds_the_frame(notebook):
    notebook.run(
        "import pandas\nframe = pandas.DataFrame({'a': [3, 1], 'b': ['x', 'y']}, index=[5, 6])\n"
        "class Trainer:\n    def __init__(self, frame): self.frame, self.step = frame, 0\n"
        "trainer = Trainer(frame)"
    )
    assert notebook.cell("trainer.step = 9; trainer.frame is frame") is True
    notebook.run("index, kinds, copied = frame.index, frame['b'].unique(), frame.copy()")
    notebook.run("other, zeros = Trainer(copied), pandas.Series(0.0, index=frame.index)")
    assert notebook.cell("len(index), list(kinds), other.step, len(zeros)") == (2, ["x", "y"], 0, 2)
    assert (notebook.notes, notebook.cell("trainer.step")) == ((), 9)


def test_an_array_of_a_frame_is_sent_with_it_where_the_notebook_has_written_to_the_frame(notebook):
    notebook.run(
        "import pandas\nframe = pandas.DataFrame({'a': [3.0, 1.0, 2.0]})\n"
        "first = frame['a'].to_numpy()[:2]"
    )
    assert notebook.cell("frame.iloc[0, 0] = 7.0; first.tolist()") == [7.0, 1.0]
    notebook.run("frame.iloc[1, 0] = 9.0")
    assert notebook.cell("frame['a'].tolist(), first.tolist()") == ([3.0, 9.0, 2.0], [3.0, 9.0])
    assert notebook.notes == (
        "ranks have `first` and `frame` as in the notebook: `first` and `frame` changed there",
    )
    assert notebook.cell("frame.iloc[0, 0] = 5.0; first.tolist()") == [5.0, 9.0]


def test_a_sentinel_stays_the_ranks_own(notebook):
    notebook.run("NONE = object()\ndef is_given(of): return of is not NONE\nheld = {'a': NONE}")
    assert notebook.cell("is_given(held['a'])") is False
    notebook.run("held['b'] = NONE; keys = {NONE: 1}")
    assert notebook.cell("is_given(held['a']), is_given(held['b']), keys[NONE]") == (
        False,
        False,
        1,
    )
    assert notebook.sent == {"held", "keys"}


def test_a_name_for_a_part_of_a_class_is_told_with_the_class(notebook):
    notebook.run("class Registry: items = {}\ndef look(): look.seen.append(1)\nlook.seen = []")
    notebook.cell("Registry.items.update(a=1), look()")
    notebook.run("items, seen = Registry.items, look.seen")
    assert notebook.cell("len(items), len(seen), Registry.items is items") == (0, 0, True)
    assert {*notebook.notes} == {
        f"ranks have `{whose}` as in the notebook: sent with the new `{name}`"
        for name, whose in (("items", "Registry"), ("seen", "look"))
    }


def test_constants_are_not_shared(notebook):
    notebook.run(
        "import numpy, torch\nk = ('a' * 99, 7)\nx = [k, numpy.ones(2)]\ny = [k, x[1] + 1]"
    )
    notebook.run("v, w = [torch.float32, torch.device('cpu')], [torch.float32, torch.ones(1)]")
    notebook.cell("x, y, v, w")
    notebook.run("x.append(1)\nv.append(1)")
    notebook.cell("x, y, v, w")
    assert notebook.sent == {"v", "x"}


def test_a_model_and_its_optimizer_stay_one(notebook):
    notebook.run("import torch\nmodel = torch.nn.Linear(2, 2)")
    notebook.run("opt = torch.optim.SGD(model.parameters(), 0.1)")
    notebook.cell("model, opt")
    notebook.run("opt.param_groups[0]['lr'] = 0.5")
    assert notebook.cell("opt.param_groups[0]['params'][0] is model.weight")
    assert notebook.sent == {"opt"}


@pytest.mark.parametrize(
    "made",
    [
        "x = torch.zeros(4)\ny = x[1:]",
        "x = numpy.zeros(4)\ny = x[1:]",
        "x = numpy.zeros(8)\ny = x[1::2]",
        "x = numpy.zeros(4)\ny = torch.from_numpy(x)[1:]",
    ],
)
def test_values_that_share_memory_share_it_on_ranks(notebook, made):
    notebook.run(f"import numpy, torch\n{made}")
    notebook.cell("x, y, numpy, torch")
    notebook.run("y[0] = 5")
    assert notebook.cell("y[0] = 6; x[1] == 6")
    assert notebook.sent == {"x", "y"}


# --- definitions ------------------------------------------------------------------------------


def test_a_function_that_a_value_holds_is_the_one_under_its_name(notebook):
    notebook.run("def f(): return 1\ntable = {'f': f, 'l': lambda: 2}")
    assert notebook.cell("table['f'] is f and table['l']()") == 2
    notebook.run("table['g'] = f")
    assert notebook.cell("table['g'] is f and table['f'] is f")
    assert notebook.sent == {"table"}


def test_a_function_changed_in_place_stays_the_same_function(notebook):
    notebook.run("def f(a=1): return a\nf.x = f.y = 1\nt = [f]")
    notebook.cell("mine = f; t")
    notebook.run(
        "def g(a): return -a\nf.__code__, f.__defaults__, f.x = g.__code__, (3,), 2\ndel f.y"
    )
    assert notebook.cell("mine is f and t[0] is f and f(), vars(f)") == (-3, {"x": 2})


def test_functions_share_the_variables_that_they_close_over(notebook):
    notebook.run(
        """
        def counter(n):
            def up():
                nonlocal n
                n += 1
                return n
            def now(): return n
            return up, now
        up, now = counter(0)
        """
    )
    assert notebook.cell("up(); up(); now()") == 2
    assert notebook.cell("now()") == 2  # the notebook's is still 0
    notebook.run("for _ in range(7): up()")
    assert notebook.cell("now()") == 7
    assert notebook.cell("up(); now()") == 8
    notebook.run("now.note = 1")
    assert notebook.cell("up(); now()") == 8  # both are sent again, as what shares is
    assert notebook.notes == ("ranks have `now` and `up` as in the notebook: `now` changed there",)


def test_a_variable_without_a_value_has_none_on_ranks(notebook):
    notebook.run(
        """
        def make():
            part = 1
            def f(): return part
            def forget():
                nonlocal part
                del part
            return f, forget
        f, forget = make()
        """
    )
    assert notebook.cell("f()") == 1
    notebook.run("forget()")
    with pytest.raises(NameError, match="part"):
        notebook.cell("f()")


def test_subclasses_go_along(notebook):
    notebook.run("class A: pass")
    notebook.cell("A")
    notebook.run("class B(A): pass")
    assert notebook.cell("[each.__name__ for each in A.__subclasses__()]") == ["B"]


def test_members_of_an_enum_are_the_ones_that_ranks_have(notebook):
    notebook.run(
        """
        import enum
        class Color(enum.Enum):
            RED = 1
            BLUE = 2
        class Flag(enum.Flag):
            A = 1
            B = 2
        """
    )
    notebook.run("both = Flag.A | Flag.B")
    notebook.cell("mine = Color.RED, Flag.A | Flag.B; both")
    notebook.run("c = [Color.RED, both]\nColor.note = lambda self: 3")
    assert notebook.cell("c[0] is Color.RED is mine[0] and c[1] is mine[1] and c[0].note()") == 3


def test_an_instance_whose_class_uses_names_while_it_is_made_finds_them(notebook):
    notebook.run(
        """
        import math
        SCALE = [2]
        def scaled(x): return math.floor(x) * SCALE[0]
        class A:
            def __init__(self, x): self.x = x
            def __getstate__(self): return self.x
            def __setstate__(self, x): self.x = scaled(x)
        a = A(1.5)
        """
    )
    assert notebook.cell("a.x") == 2


def test_functions_of_another_namespace_share_their_globals(notebook):
    notebook.run("space = {}\nexec('n = 1\\ndef f(): return n\\ndef g(v): global n; n = v', space)")
    notebook.run("f, g = space['f'], space['g']\ndel space")
    assert notebook.cell("g(5); f()") == 5
    notebook.run("g.note = 1")
    notebook.cell("g(6)")
    assert notebook.cell("f()") == 6


def test_what_nothing_in_the_notebook_refers_to_is_not_kept(notebook):
    notebook.run("class A:\n    def m(self): return 1\ndef f(): return A")
    notebook.cell("f()")
    sizes = []
    for n in range(8):
        notebook.run(f"class A:\n    def m(self): return super().__init__(), {n}")
        gc.collect()
        notebook.cell("f()().m()")
        sizes.append(len(notebook.rank0.table))
    assert sizes[-1] == sizes[4]


def test_a_former_class_that_comes_back_is_the_one_that_ranks_knew(notebook):
    notebook.run("class A:\n    def m(self): return 1\nold = [A()]")
    notebook.cell("mine = A()")
    notebook.run("class A:\n    def m(self): return 2")
    notebook.cell("A")
    assert notebook.cell("type(old[0]) is type(mine) and old[0].m()") == 1


# --- large memory -----------------------------------------------------------------------------

_LARGE = 16 << 20


def test_one_byte_of_large_memory_is_noticed(notebook):
    notebook.values["x"] = x = numpy.zeros(_LARGE, numpy.uint8)
    notebook.cell("x")
    for place in (0, 1, _LARGE // 2, _LARGE - 1):
        notebook.cell("x")
        assert notebook.sent == set()
        x[place] = 7
        assert notebook.cell(f"x[{place}]") == 7
        x[place] = 7
        notebook.cell("x")
        assert notebook.sent == set()


def test_large_memory_that_two_names_share_is_noticed_for_both(notebook):
    notebook.values["x"] = x = numpy.zeros(_LARGE, numpy.uint8)
    notebook.values["y"] = x[1:]
    notebook.cell("x, y")
    notebook.cell("x, y")
    x[5 << 20] = 3
    assert notebook.cell("x[5 << 20] == y[(5 << 20) - 1] == 3")


@pytest.mark.parametrize("fails", ["a launch", "another value"])
def test_large_memory_is_noticed_after_something_failed(notebook, fails):
    notebook.values["x"] = x = numpy.zeros(_LARGE, numpy.uint8)
    notebook.cell("x")
    x[5 << 20] = 3
    if fails == "a launch":
        notebook.program("x")
    else:
        notebook.values["y"] = [], (n for n in ())
        with pytest.raises(Exception, match="y"):
            notebook.cell("x, y")
        del notebook.values["y"]
    assert notebook.cell("x[5 << 20]") == 3


@pytest.mark.parametrize("shared", [False, True], ids=["own memory", "a shared mapping"])
def test_large_memory_of_a_tensor_is_noticed(notebook, shared):
    x = torch.zeros(_LARGE // 4)
    notebook.values["x"] = x.share_memory_() if shared else x
    notebook.cell("x")
    notebook.cell("x")
    x[7] += 1
    assert notebook.cell("float(x[7])") == 1


def test_files_are_closed_where_memory_is_sent_again_and_again(notebook):
    notebook.values["x"] = x = numpy.zeros(_LARGE, numpy.uint8)
    notebook.cell("x")
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(10):
        x += 1
        notebook.cell("x")
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1


def test_what_held_a_value_that_was_bound_anew_is_not_sent_again(notebook):
    notebook.run(
        """
        def logged(f):
            def inner(*args): return f(*args)
            return inner
        class Model: pass
        """
    )
    definition = "@logged\ndef evaluate(x): return x"
    notebook.run(f"{definition}\nlog = []\nm = Model(); m.n, m.log, m.act = 0, log, evaluate")
    assert notebook.cell("m.n += 1; log.append(1); m.act(2), evaluate(3), m.log") == (2, 3, [1])
    notebook.run(f"{definition}\nlog = []")
    assert notebook.cell("m.n += 1; m.n, m.log, log") == (2, [1], [])
    assert notebook.sent == {"evaluate", "log"}


def test_a_constant_that_a_closure_reads_is_sent_without_what_holds_the_closure(notebook):
    notebook.run(
        """
        RATE = 1
        class Trainer: n = 0
        def make():
            seen = []
            def step(): seen.append(RATE); return RATE
            return step
        t = Trainer(); t.step = make()
        """
    )
    assert notebook.cell("t.n += 1; t.step(), t.n") == (1, 1)
    notebook.run("RATE = 2")
    assert notebook.cell("t.n += 1; t.step(), t.n") == (2, 2)
    assert notebook.sent == {"RATE"}


def test_values_that_have_only_functions_and_constants_in_common_are_sent_apart(notebook):
    notebook.run(
        """
        import configparser, functools, numpy, pandas, pathlib, sys, torch
        from torch.optim import swa_utils
        class Options(dict): pass
        class Own(torch.optim.SGD): pass
        def made():
            @functools.singledispatch
            def made(x: list[int]) -> int: return 1
            return made
        NONE, norm = object(), functools.partial(torch.nn.LayerNorm, eps=1e-6)
        shared = [pathlib.Path("x"), pandas.Timestamp(0), NONE, norm]
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
                self.loader = torch.utils.data.DataLoader(
                    [1], num_workers=1, multiprocessing_context="fork"
                )
                self.mean = swa_utils.AveragedModel(
                    self.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
                )
                self.stream, self.calls = sys.stdout, [numpy.random.rand, made()]
                self.held, self.n = [*shared], 0
        one, two = Trainer(), Trainer()
        """
    )
    assert notebook.cell("one.n += 1; one.n") == 1
    assert notebook.cell("two.n += 1; one.n, two.n") == (1, 1)
    notebook.run("two.n = 5")
    assert notebook.cell("one.n, two.n") == (1, 5)
    told = "ranks have `two` as in the notebook: `two` changed there"
    assert (notebook.sent, notebook.notes) == ({"two"}, (told,))


def test_what_stays_the_ranks_inside_a_value_that_was_changed_is_told(notebook):
    notebook.run("inner = [1]\nnested = {'a': inner}")
    assert notebook.cell("inner.append(2)\nnested") == {"a": [1, 2]}
    notebook.run("nested['c'] = 5")
    assert notebook.cell("nested, inner") == ({"a": [1, 2], "c": 5}, [1, 2])
    start = "ranks have `nested` as in the notebook, but for `inner`"
    assert notebook.notes == (f"{start}: `nested` changed there",)


def test_a_sentinel_that_the_notebook_has_made_in_its_module_is_there_on_ranks(notebook, local):
    (local / "marked.py").write_text(
        "_mark = None\ndef mark():\n    global _mark\n"
        "    _mark = _mark or object()\n    return _mark\n"
    )
    notebook.run("import marked")
    notebook.cell("marked")
    notebook.run("held = marked.mark()")
    assert notebook.cell("held is marked._mark is marked.mark() is not None")


def test_a_definition_that_shares_something_is_told_by_its_one_name(notebook):
    made = "import functools, numpy\nbox = numpy.zeros(2)\n@functools.cache\ndef other(): pass"
    notebook.run(f"{made}\nother.kept = box[1:]")
    notebook.cell("box")
    notebook.cell("other")
    assert notebook.notes == ("ranks have `box` as in the notebook: sent with the new `other`",)
