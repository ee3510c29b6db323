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
        names = {name for name in vars(main) if name[:2] != "__"}
        return returned(eval(value, vars(main)), names)

    return back


NET = """
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
net(torch.ones(2)).sum().backward()
"""


def test_gradients_come_back_and_the_optimizer_steps_with_them(back):
    net, optimizer = back(NET, "(net, optimizer)")
    assert net.weight.grad.tolist() == [[1, 1]]
    before = net.weight.detach().clone()
    optimizer.step()
    assert torch.equal(net.weight, before - 1)


def test_hooks_of_parameters_and_optimizers_come_back(back):
    cell = """
def double(grad): return grad * 2
calls = []
net.weight.register_hook(double)
optimizer.register_step_post_hook(lambda one, *_: one.calls.append(1))
optimizer.calls = []
"""
    net, optimizer = back(NET + cell, "(net, optimizer)")
    net.weight.grad = None
    net(torch.ones(2)).sum().backward()
    assert net.weight.grad.tolist() == [[2, 2]]
    optimizer.step()
    assert optimizer.calls == [1]


def test_what_an_optimizer_of_ones_own_has_set_comes_back(back):
    cell = """
class Opt(torch.optim.Optimizer):
    def __init__(self, ps): super().__init__(ps, {"lr": 1.0}); self.n = 0
    def step(self, closure=None): self.n += 1
o = Opt(torch.nn.Linear(1, 1).parameters())
o.step()
"""
    made = back(cell, "o")
    assert made.n == 1
    made.step()
    assert made.n == 2


def test_an_optimizer_comes_back_with_its_scheduler(back):
    cell = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)"
    _, optimizer, scheduler = back(NET + cell, "(net, optimizer, scheduler)")
    assert scheduler.optimizer is optimizer
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_optimizer_comes_back_without_its_scheduler(back):
    cell = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)"
    optimizer = back(NET + cell, "optimizer")
    optimizer.step()


def test_a_hook_that_cannot_be_sent_loses_no_result():
    net = torch.nn.Linear(2, 1)
    net.weight.register_hook(functools.partial(print, threading.Lock()))
    net(torch.ones(2)).sum().backward()
    told = []
    came = returned(net, tell=told.append)
    assert came.weight.grad.tolist() == [[1.0, 1.0]]
    assert came.weight._backward_hooks is None
    assert "comes without hooks" in told[0]


def test_a_parametrized_module_comes_back(back):
    cell = """
net = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
x = torch.ones(3)
"""
    net, x, y = back(cell, "(net, x, net(x).detach())")
    assert torch.equal(net(x), y)


INSTANCES = [
    ("class C(tuple):\n def __new__(cls, *dims): return super().__new__(cls, dims)",
     "C(2, 3)", "got == (2, 3)"),
    ("class C:\n def __init__(self, m): self.m = m\n"
     " def __getattr__(self, n): return getattr(self.m, n)", "C({})", "got.get(1) is None"),
    ("class C:\n def __new__(cls, x): return super().__new__(cls)\n"
     " def __init__(self, x): self.x = x", "C(3)", "got.x == 3"),
    ("class C(str):\n def __new__(cls, s, n):\n  made = super().__new__(cls, s)\n"
     "  made.n = n\n  return made", "C('a', 7)", "(got, got.n) == ('a', 7)"),
    ("class C(int):\n def __new__(cls, n, unit):\n  made = super().__new__(cls, n)\n"
     "  made.unit = unit\n  return made", "C(2, 'm')", "(got, got.unit) == (2, 'm')"),
    ("import collections\nclass C(collections.namedtuple('P', 'a b')):\n"
     " def __new__(cls, a): return super().__new__(cls, a, a + 1)", "C(1)", "got == (1, 2)"),
    ("class C:\n def __init__(self): object.__setattr__(self, '_d', {})\n"
     " def __setattr__(self, n, v): self._d[n] = v\n def __getattr__(self, n): return self._d[n]\n"
     "c = C()\nc.x = 1", "c", "got.x == 1"),
    ("class C(dict):\n def __setitem__(self, *_): raise TypeError('ro')",
     "C(a=1)", "got == {'a': 1}"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "value", "told"), INSTANCES)
def test_instances_come_back_past_what_their_class_does(back, cell, value, told):
    got = back(cell, value)
    assert type(got) is vars(sys.modules["__main__"])["C"]
    assert eval(told, {"got": got})


COUNTER = """
def counter():
    n = 0
    def add():
        nonlocal n
        n += 1
        return n
    def value(): return n
    return add, value
"""


def test_functions_share_the_variables_of_a_closure(back):
    add, value = back(COUNTER, "counter()")
    add()
    add()
    assert value() == 2


def test_functions_in_attributes_share_the_variables_of_a_closure(back):
    cell = COUNTER + "class Box: pass\nbox = Box()\nbox.add, box.value = counter()"
    box = back(cell, "box")
    box.add()
    assert box.value() == 1


def test_a_class_made_in_a_function_comes_back_under_its_name(back):
    cell = """
def make():
    class Base:
        def name(self): return "base"
    class Inner(Base):
        items = [Base()]
        def name(self): return "inner " + super().name()
    return Inner()
"""
    made = back(cell, "make()")
    assert type(made).__qualname__ == "make.<locals>.Inner"
    assert (made.name(), made.items[0].name()) == ("inner base", "base")


def test_a_function_of_a_result_leaves_the_names_of_the_notebook_alone(back):
    cell = "rate = [1]\ndef make():\n def inner(): rate.append(2); return rate\n return inner"
    inner = back(cell, "make()")
    main = vars(sys.modules["__main__"])
    assert inner() == [1, 2]
    assert main["rate"] == [1]


def test_functions_of_one_result_have_the_same_globals(back):
    cell = """
rate = 0
def make():
    def put(n):
        global rate
        rate = n
    return put, lambda: rate
"""
    put, get = back(cell, "make()")
    put(5)
    assert get() == 5


def test_a_method_of_a_class_comes_back_by_its_name(back):
    cell = """
POOL = {}
class Dev:
    def __init__(self, i): self.i = i
    def __reduce__(self): return Dev.get, (self.i,)
    @classmethod
    def get(cls, i): return POOL.setdefault(i, cls(i))
"""
    got = back(cell, "Dev.get(7)")
    assert got is vars(sys.modules["__main__"])["POOL"][7]


def test_a_cached_function_of_the_notebook_comes_back_as_the_notebooks(back):
    cell = "import functools\n@functools.cache\ndef square(x): return x * x"
    assert back(cell, "square") is vars(sys.modules["__main__"])["square"]


def test_a_cached_function_made_in_a_function_comes_back_with_what_it_holds(back):
    cell = """
import functools
def make():
    @functools.cache
    def square(x): return [x * x]
    square(3)
    return square
"""
    square = back(cell, "make()")
    assert square(3) == [9]
    assert square.cache_info().currsize == 1


def test_a_weak_reference_comes_back_with_what_it_refers_to(back):
    cell = "class C: pass\nc = C()"
    ref, got = back(cell, "(weakref.ref(c), c)")
    assert ref() is got
