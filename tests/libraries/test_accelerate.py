"""Training started by accelerate's notebook_launcher."""

import pytest

PROGRAM = """
import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(1)
x = torch.randn(64, 8, generator=generator)
y = x.sum(1, keepdim=True)

def made():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

def train(steps=2):
    accelerator = Accelerator()
    net, optimizer = made()
    loader = DataLoader(TensorDataset(x, y), 4)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for epoch in range(steps):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(inputs), outputs)
            accelerator.backward(loss)
            optimizer.step()
    accelerator.print("trained on", accelerator.num_processes)
    mean = accelerator.reduce(loss.detach(), reduction="mean").item()
    each = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    weights = [each.detach().float().cpu() for each in accelerator.unwrap_model(net).parameters()]
    return weights, mean, each.tolist(), accelerator.local_process_index

net, optimizer = made()
for epoch in range(2):
    # accelerate gives rank r batch r of every four
    for at in range(0, 64, 16):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[at:at + 16]), y[at:at + 16])
        loss.backward()
        optimizer.step()
expected = list(net.parameters())
"""


@pytest.mark.slow
def test_four_ranks_train_like_one_process(notebook):
    notebook.ok(PROGRAM)
    shown = notebook.ok("run = notebook_launcher(train, num_processes=4)")
    assert [line for line in shown.lines if "trained" in line] == ["[0] trained on 4"]
    near = "max((a - b).abs().max().item() for a, b in zip(run[3][0], expected))"
    assert float(notebook.value(near)) < 1e-5
    assert notebook.value("abs(run[1][1] - loss.item()) < 1e-5") == "True"
    assert notebook.value("[run[rank][2:] for rank in range(4)]") == str(
        [([0, 1, 2, 3], rank) for rank in range(4)]
    )


@pytest.mark.slow
def test_mixed_precision_training_differs_only_by_rounding(notebook):
    notebook.ok("run = notebook_launcher(train, num_processes=4, mixed_precision='bf16')")
    near = "max((a - b).abs().max().item() for a, b in zip(run[0][0], expected))"
    assert 1e-5 < float(notebook.value(near)) < 0.05


@pytest.mark.slow
def test_calls_accelerate_lacks_on_xla_raise_its_own_error(notebook):
    notebook.ok(
        "def objects():\n    from accelerate.utils import gather_object\n    Accelerator()\n"
        "    return gather_object([1])"
    )
    shown = notebook.run("notebook_launcher(objects, num_processes=2)")
    assert "gather objects in TPU is not supported" in shown.error
