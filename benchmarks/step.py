"""A training step under xla_nb against the same function under bare `xmp.spawn`.

There are no more ranks than cores, so ranks do not queue up and the difference is the work of
xla_nb in a rank. Other load on the machine only makes steps longer, so each launch gives the 5th
percentile of each rank's 400 steps; launches alternate, and the median launch of each way counts.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator

from benchmarks import Row
from benchmarks.client import Notebook

RANKS = min(4, os.cpu_count() or 1)
ROUNDS = 15

TRAIN = """
def train(rank):
    import time
    import torch, torch_xla

    torch.manual_seed(rank)
    device = torch_xla.device()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 10)
    ).to(device)
    images = torch.randn(64, 1, 16, 16).to(device)
    labels = torch.randint(10, (64,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []
    for step in range(420):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        steps.append(time.perf_counter() - begun)
    print(f"rank {rank} stepped {sorted(steps[20:])[20]:.9f}", flush=True)
"""
OURS = f"%%xla_spawn -n {RANKS}\n{TRAIN}"
BARE = f"{TRAIN}\nbare.spawn(train, n={RANKS})"


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    ours: list[float] = []
    bare: list[float] = []
    with Notebook() as mine, Notebook() as theirs:
        mine.run("%load_ext xla_nb")
        theirs.run("import os\nos.environ['PJRT_DEVICE'] = 'CPU'\nfrom benchmarks import bare")
        for _ in range(rounds):
            ours.append(step(mine, OURS))
            bare.append(step(theirs, BARE))
    own, other = (statistics.median(taken) * 1000 for taken in (ours, bare))
    yield Row(f"training step, {RANKS} ranks, / xmp.spawn, fork", own, other, "ms", aim=1.02)


def step(notebook: Notebook, code: str) -> float:
    """The mean of the ranks' 5th percentiles, in seconds."""
    cell = notebook.send(code)
    cell.until(r"rank (\d+) stepped", RANKS)
    cell.end()
    return statistics.mean(
        float(seconds) for seconds in re.findall(r"stepped ([\d.]+)", cell.shown)
    )
