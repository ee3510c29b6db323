"""An optimizer step on ranks calls each hook once, as in the notebook."""

import ast

import pytest

from tests.support.fresh import in_a_new_process

pytestmark = pytest.mark.usefixtures("fresh_processes")

#: Fills `stepped` with a name, model, optimizer and scheduler per case; `f` steps each optimizer.
CASES = """
import torch
from torch.optim import SGD, Adam, AdamW, lr_scheduler
seen = []
def hooked(name, cls, wrap=None, wrap_first=False, **given):
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0)
    optimizer = cls(model.parameters(), lr=1.0, **given)
    scheduler = wrap and wrap(optimizer)
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append(name))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append(name))
    return name, model, optimizer, scheduler
class Mine(SGD): pass
class Stepping(SGD):
    def step(self, closure=None): return super().step(closure)
class Inside(torch.optim.Optimizer):
    "As ZeroRedundancyOptimizer: steps the optimizer that it has."
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = SGD(self.param_groups[0]["params"], lr=lr)
        lr_scheduler.StepLR(self.inner, 5)
        self.inner.register_step_pre_hook(lambda o, a, k: seen.append("inner"))
    def step(self, closure=None): return self.inner.step(closure)
def cosine(o): return lr_scheduler.CosineAnnealingLR(o, 10)
def sequential(o):
    return lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), cosine(o)], [2])
stepped = [
    hooked("mine first", Mine, cosine),
    hooked("w before", AdamW, cosine),
    hooked("plain", SGD), hooked("scheduled", SGD, cosine), hooked("adam", Adam, sequential),
    hooked("w after", AdamW, cosine), hooked("mine", Mine, cosine),
    hooked("stepping", Stepping, cosine), hooked("inside", Inside, cosine),
]
lbfgs = hooked("lbfgs", torch.optim.LBFGS, cosine)
def without_optimizer():
    return lr_scheduler.StepLR(SGD([torch.zeros(1, requires_grad=True)], lr=1.0), 3)
alone = without_optimizer()
scaler = torch.amp.GradScaler("cpu", enabled=False)
def f(rank):
    found = {}
    for name, model, optimizer, scheduler in stepped:
        seen.clear()
        loss = model(torch.ones(1, 1) * 10).sum()
        loss.backward()
        with torch.profiler.profile() as profile:
            scaler.step(optimizer)
        events = profile.key_averages()
        profiled = sum(e.count for e in events if e.key.startswith("Optimizer.step"))
        step = optimizer.__dict__.get("step")
        same = step is None or step.__wrapped__ is type(optimizer).step
        patched = hasattr(type(optimizer).step, "hooked")
        found[name] = seen[:], profiled, same, patched, round(model.weight.item(), 5)
        if scheduler: scheduler.step()
        found[name] += (optimizer.param_groups[0]["lr"],)
    name, model, optimizer, scheduler = lbfgs
    seen.clear()
    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) ** 2).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
    alone.step()
    return found, seen, alone.get_last_lr()
"""


def test_hooks_of_scheduled_optimizers_are_called_once(notebook):
    notebook.run(CASES)
    program = notebook.build("def launched(rank): return f(rank)")
    found = ast.literal_eval(in_a_new_process(program))
    assert found == notebook.values["f"](0)
    steps, _, _ = found
    once = steps.keys() - {"inside", "stepping"}  # their steps call another step
    assert all(steps[name][0] == [name] * 2 for name in once)
    assert steps["inside"][0] == ["inside", "inner", "inside"]


STEPS = """
import torch
from torch.optim import Adagrad
def step(self, closure=None): return "mine"
Adagrad.step = step
"""


def test_notebook_function_set_as_optimizer_step_is_sent_with_a_note(notebook):
    notebook.run(STEPS)
    assert notebook.launch("def f(rank): return step(None)") == "mine"
    notebook.run("optimizer = Adagrad([torch.zeros(1)], lr=1)")  # torch wraps it
    program = notebook.build("def f(rank): return step(None), type(optimizer).__name__")
    assert in_a_new_process(program) == "('mine', 'Adagrad')"
    assert "`torch.optim.adagrad.Adagrad.step` was set in the notebook" in program.notes[0]
