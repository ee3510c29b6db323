"""Training with collectives: quickstart's model compared with DDP; the cost of `xm.optimizer_step`.

Each runs in 4 processes of this machine, in turn. A step is timed from its beginning until its
values are on the device, as in `benchmarks/step.py`; DDP computes eagerly, as usual without a TPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks import Row
from benchmarks.client import Notebook
from benchmarks.collectives import TIMED, figures

RANKS = 4
ROUNDS = 3

MODEL = f"""{TIMED}
import torch

def digit_net():
    from torch import nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )

def batch():
    return torch.randn(32, 1, 8, 8), torch.randint(10, (32,))
"""
OURS = """
def measure(rank):
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    device = torch_xla.device()
    torch.manual_seed(0)

    def training(model, inputs, labels, finish):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            finish(optimizer)
            torch_xla.sync(wait=True)

        return step

    inputs, labels = (each.to(device) for each in batch())
    small = training(digit_net().to(device), inputs, labels, xm.optimizer_step)
    figures = {"cnn": timed(small, 60, first=5)}

    def in_two_graphs(optimizer):
        torch_xla.sync()
        optimizer.step()

    alone = training(digit_net().to(device), inputs, labels, in_two_graphs)
    figures["cut"] = timed(alone, 60, first=5)
    rows, columns = torch.randn(8, 2048, device=device), torch.randint(4096, (8,), device=device)
    for name, finish in (("alone", lambda each: each.step()), ("all", xm.optimizer_step)):
        large = torch.nn.Linear(2048, 4096).to(device)  # 8.4 million parameters
        figures[name] = timed(training(large, rows, columns, finish), 15, first=5)
    if rank == 0:
        print("figures " + json.dumps(figures), flush=True)
"""
DDP = f"""
def measure():
    import torch, torch.distributed as dist
    torch.set_num_threads(1)  # as ours: threads that spin for the same few cores slow all down
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(digit_net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs, labels = batch()

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    taken = timed(step, 60, first=5)
    if dist.get_rank() == 0:
        print("figures " + json.dumps({{"cnn": taken}}), flush=True)

debug_launcher(measure, num_processes={RANKS})
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    ours: list[dict[str, float]] = []
    ddp: list[dict[str, float]] = []
    with Notebook() as mine, Notebook() as theirs:
        mine.run(f"%load_ext xla_nb\n{MODEL}")
        theirs.run(f"from accelerate import debug_launcher\n{MODEL}")
        for _ in range(rounds):
            ours.append(figures(mine, f"%%xla_spawn -n {RANKS}\n{OURS}"))
            ddp.append(figures(theirs, DDP))
    cnn, raw = (statistics.median(each["cnn"] for each in taken) for taken in (ours, ddp))
    yield Row(f"step of a CNN, {RANKS} ranks, / DDP on gloo", cnn * 1000, raw * 1000, "ms", aim=1)
    cut = statistics.median(each["cut"] for each in ours)
    yield Row("that step / in two graphs, without collectives", cnn * 1000, cut * 1000, "ms")
    added = statistics.median(each["all"] - each["alone"] for each in ours)
    yield Row("optimizer_step of 8.4 M parameters adds, / 70 ms", added * 1000, 70, "ms", aim=1)
