"""Results of ranks, as the notebook reads them: they lose nothing on their way."""

import functools
import math
import sys
import threading
import types
import weakref

import pytest
import torch

from tests.support.returned import returned


@pytest.fixture
def back(monkeypatch):
    """Execute a cell, and give what comes back of an expression's value."""
    main = types.ModuleType("__main__")
    vars(main).update(math=math, torch=torch, weakref=weakref)
    monkeypatch.setitem(sys.modules, "__main__", main)

    def back(cell, value):
        exec(compile(cell, "Cell", "exec"), vars(main))
        return returned(eval(value, vars(main)), vars(main))

    return back


NET = """
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
net(torch.ones(2)).sum().backward()
"""


def test_a_model_comes_back_with_gradients_hooks_optimizer_and_scheduler(back):
    cell = """
def double(grad): return grad * 2
net.weight.register_hook(double)
optimizer.register_step_post_hook(lambda one, *_: one.calls.append(1))
optimizer.calls = []
"""
    net, optimizer, scheduler = back(NET + cell, "(net, optimizer, scheduler)")
    assert net.weight.grad.tolist() == [[1, 1]]
    assert scheduler.optimizer is optimizer
    before = net.weight.detach().clone()
    optimizer.step()
    scheduler.step()
    assert torch.equal(net.weight, before - 1)
    assert (optimizer.calls, optimizer.param_groups[0]["lr"]) == ([1], 0.5)
    net.weight.grad = None
    net(torch.ones(2)).sum().backward()
    assert net.weight.grad.tolist() == [[2, 2]]
    alone = back(NET, "optimizer")
    alone.step()


def test_a_hook_that_cannot_be_sent_loses_no_result():
    net = torch.nn.Linear(2, 1)
    net.weight.register_hook(functools.partial(print, threading.Lock()))
    net(torch.ones(2)).sum().backward()
    told = []
    came = returned(net, tell=told.append)
    assert came.weight.grad.tolist() == [[1.0, 1.0]]
    assert came.weight._backward_hooks is None
    assert "without tensor hooks" in told[0]


#: A cell, what is returned, and what is True of what comes back, `got`.
COME_BACK = {
    "a number whose class wants arguments, and an object's attributes and weak reference": (
        "class C(int):\n    def __new__(cls, n, unit):\n        made = super().__new__(cls, n)\n"
        "        made.unit = unit\n        return made\nclass P: pass\np = P(); p.x = 1",
        "[C(2, 'm'), p, vars(p), weakref.ref(p)]",
        "(got[0], got[0].unit, type(got[0]), got[2] is vars(got[1]), got[3]() is got[1]) "
        "== (2, 'm', C, True, True)",
    ),
    "instances that keep attributes in a dict of theirs, or refuse to be changed": (
        "class C:\n    def __init__(self): object.__setattr__(self, '_d', {})\n"
        "    def __setattr__(self, n, v): self._d[n] = v\n"
        "    def __getattr__(self, n): return self._d[n]\nc = C()\nc.x = 1\n"
        "class D(dict):\n    def __setitem__(self, *_): raise TypeError('ro')\nclass A(dict):\n"
        "    def __init__(self, **kw): super().__init__(**kw); self.__dict__ = self",
        "[c, D(a=1), A(x=1)]",
        "(got[0].x, got[1], type(got[1]), got[2].x, got[2].__dict__ is got[2]) "
        "== (1, {'a': 1}, D, 1, True)",
    ),
    "an optimizer of the notebook's": (
        "class Opt(torch.optim.Optimizer):\n"
        "    def __init__(self, ps): super().__init__(ps, {'lr': 1.0}); self.n = 0\n"
        "    def step(self, closure=None): self.n += 1\n"
        "o = Opt(torch.nn.Linear(1, 1).parameters())\no.step()",
        "o",
        "(got.step(), got.n)[1] == 2",
    ),
    "functions that share globals, not the notebook's, and the variables of a closure": (
        "rate, seen = 0, [1]\ndef make():\n    n = 0\n    def put(m):\n        global rate\n"
        "        nonlocal n\n        rate, n = m, n + 1\n        seen.append(m)\n"
        "    return put, lambda: (rate, n, seen)",
        "make()",
        "((got[0](5), got[0](6), got[1]())[2], rate, seen) == ((6, 2, [1, 5, 6]), 0, [1])",
    ),
    "a class made in a function, under its name": (
        "def make():\n    class Base:\n        def name(self): return 'base'\n"
        "    class Inner(Base):\n        items = [Base()]\n"
        "        def name(self): return 'inner ' + super().name()\n    return Inner()",
        "make()",
        "type(got).__qualname__ == 'make.<locals>.Inner' and "
        "(got.name(), got.items[0].name()) == ('inner base', 'base')",
    ),
    "what a method of a class makes, by the method's name": (
        "POOL = {}\nclass Dev:\n    def __init__(self, i): self.i = i\n"
        "    def __reduce__(self): return Dev.get, (self.i,)\n"
        "    @classmethod\n    def get(cls, i): return POOL.setdefault(i, cls(i))",
        "Dev.get(7)",
        "got is POOL[7]",
    ),
    "a cached function of the notebook, as its own, and one of a function with what it holds": (
        "import functools\n@functools.cache\ndef square(x): return x * x\n"
        "def make():\n    @functools.cache\n    def square(x): return [x * x]\n"
        "    square(3)\n    return square",
        "[square, make()]",
        "got[0] is square and got[1](3) == [9] and got[1].cache_info().currsize == 1",
    ),
}


@pytest.mark.parametrize(("cell", "value", "told"), COME_BACK.values(), ids=COME_BACK)
def test_a_result_is_what_it_was_on_the_rank(back, cell, value, told):
    got = back(cell, value)
    assert eval(told, {**vars(sys.modules["__main__"]), "got": got})


def test_a_member_of_an_enum_that_the_notebook_has_no_more_comes_with_its_class(back):
    cell = "import enum\nclass Phase(enum.Enum):\n    TRAIN, EVAL = 1, 2\n"
    cell += "former = [Phase.TRAIN, Phase.TRAIN]\nclass Phase(enum.Enum):\n    TRAIN = TEST = 1"
    one, other = back(cell, "former")
    assert one is other is type(one).TRAIN
    assert [each.value for each in type(one)] == [1, 2]
