"""Results of ranks, as the notebook reads them, lose nothing."""

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
    """Executes a cell, and returns an expression's value as a result."""
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


def test_returned_model_keeps_gradients_hooks_optimizer_and_scheduler(back):
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


def test_result_with_an_unsendable_hook_is_returned_without_it():
    net = torch.nn.Linear(2, 1)
    net.weight.register_hook(functools.partial(print, threading.Lock()))
    net(torch.ones(2)).sum().backward()
    told = []
    came = returned(net, tell=told.append)
    assert came.weight.grad.tolist() == [[1.0, 1.0]]
    assert came.weight._backward_hooks is None
    assert "without tensor hooks" in told[0]


#: Cell, returned expression, and an expression that must be true of the result `got`.
COME_BACK = {
    "a number with required arguments, an object, its __dict__ and a weak reference": (
        "class C(int):\n    def __new__(cls, n, unit):\n        made = super().__new__(cls, n)\n"
        "        made.unit = unit\n        return made\nclass P: pass\np = P(); p.x = 1",
        "[C(2, 'm'), p, vars(p), weakref.ref(p)]",
        "(got[0], got[0].unit, type(got[0]), got[2] is vars(got[1]), got[3]() is got[1]) "
        "== (2, 'm', C, True, True)",
    ),
    "instances with attributes in their own dict, and a read-only dict": (
        "class C:\n    def __init__(self): object.__setattr__(self, '_d', {})\n"
        "    def __setattr__(self, n, v): self._d[n] = v\n"
        "    def __getattr__(self, n): return self._d[n]\nc = C()\nc.x = 1\n"
        "class D(dict):\n    def __setitem__(self, *_): raise TypeError('ro')\nclass A(dict):\n"
        "    def __init__(self, **kw): super().__init__(**kw); self.__dict__ = self",
        "[c, D(a=1), A(x=1)]",
        "(got[0].x, got[1], type(got[1]), got[2].x, got[2].__dict__ is got[2]) "
        "== (1, {'a': 1}, D, 1, True)",
    ),
    "a notebook optimizer class": (
        "class Opt(torch.optim.Optimizer):\n"
        "    def __init__(self, ps): super().__init__(ps, {'lr': 1.0}); self.n = 0\n"
        "    def step(self, closure=None): self.n += 1\n"
        "o = Opt(torch.nn.Linear(1, 1).parameters())\no.step()",
        "o",
        "(got.step(), got.n)[1] == 2",
    ),
    "functions that share separate globals and closure variables": (
        "rate, seen = 0, [1]\ndef make():\n    n = 0\n    def put(m):\n        global rate\n"
        "        nonlocal n\n        rate, n = m, n + 1\n        seen.append(m)\n"
        "    return put, lambda: (rate, n, seen)",
        "make()",
        "((got[0](5), got[0](6), got[1]())[2], rate, seen) == ((6, 2, [1, 5, 6]), 0, [1])",
    ),
    "a local class with its qualified name": (
        "def make():\n    class Base:\n        def name(self): return 'base'\n"
        "    class Inner(Base):\n        items = [Base()]\n"
        "        def name(self): return 'inner ' + super().name()\n    return Inner()",
        "make()",
        "type(got).__qualname__ == 'make.<locals>.Inner' and "
        "(got.name(), got.items[0].name()) == ('inner base', 'base')",
    ),
    "an instance pickled as a class method call": (
        "POOL = {}\nclass Dev:\n    def __init__(self, i): self.i = i\n"
        "    def __reduce__(self): return Dev.get, (self.i,)\n"
        "    @classmethod\n    def get(cls, i): return POOL.setdefault(i, cls(i))",
        "Dev.get(7)",
        "got is POOL[7]",
    ),
    "a notebook's cached function, and a local one with its cache": (
        "import functools\n@functools.cache\ndef square(x): return x * x\n"
        "def make():\n    @functools.cache\n    def square(x): return [x * x]\n"
        "    square(3)\n    return square",
        "[square, make()]",
        "got[0] is square and got[1](3) == [9] and got[1].cache_info().currsize == 1",
    ),
}


@pytest.mark.parametrize(("cell", "value", "told"), COME_BACK.values(), ids=COME_BACK)
def test_results_keep_types_identity_and_state(back, cell, value, told):
    got = back(cell, value)
    assert eval(told, {**vars(sys.modules["__main__"]), "got": got})


def test_member_of_a_redefined_enum_returns_with_its_old_class(back):
    cell = "import enum\nclass Phase(enum.Enum):\n    TRAIN, EVAL = 1, 2\n"
    cell += "former = [Phase.TRAIN, Phase.TRAIN]\nclass Phase(enum.Enum):\n    TRAIN = TEST = 1"
    one, other = back(cell, "former")
    assert one is other is type(one).TRAIN
    assert [each.value for each in type(one)] == [1, 2]
