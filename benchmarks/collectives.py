"""Collectives of the simulated host compared with gloo's, which most people without a TPU use.

Both run in 4 processes of this machine, in turn. Ours goes from device to device: it executes the
pending graph, copies values out, reduces them, copies them in and waits for the result. gloo's is
the bare `all_reduce` of tensors that are already on the host; the time of copying out and in is
measured in the same ranks.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import Row
from benchmarks.client import Notebook

RANKS = 4
ROUNDS = 5
#: For each size: the elements of each tensor, and the repetitions in a launch.
SIZES = {"64 B": ([16], 200), "34 MB in two": ([4_250_000] * 2, 12), "132 MB": ([33_000_000], 5)}

TIMED = """
import json, statistics, time

def timed(step, times, first=2):
    taken = []
    for number in range(first + times):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[first:])
"""
OURS = f"""
def measure(rank):
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    device = torch_xla.device()
    figures = {{}}
    for name, (counts, times) in {SIZES}.items():
        values = [torch.ones(count, device=device) for count in counts]
        host = [torch.ones(count) for count in counts]
        torch_xla.sync(wait=True)

        def reduce():
            xm.all_reduce("sum", values, scale={1 / RANKS})
            torch_xla.sync(wait=True)

        def copies():
            for value in [value.cpu().to(device) for value in values]:
                pass
            torch_xla.sync(wait=True)

        figures[name] = timed(reduce, times), timed(copies, times)
    if rank == 0:
        print("figures " + json.dumps(figures), flush=True)
"""
GLOO = f"""
def measure():
    import torch, torch.distributed as dist
    figures = {{}}
    for name, (counts, times) in {SIZES}.items():
        values = [torch.ones(count) for count in counts]
        figures[name] = timed(lambda: [dist.all_reduce(value) for value in values], times), 0
    if dist.get_rank() == 0:
        print("figures " + json.dumps(figures), flush=True)

debug_launcher(measure, num_processes={RANKS})
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    with Notebook() as mine:
        mine.run("%load_ext xla_nb")
        yield from compared(mine, f"-n {RANKS}", f"{RANKS} ranks", 1.3, rounds)


def compared(mine: Notebook, options: str, where: str, aim: float, rounds: int) -> Iterator[Row]:
    """Compare launches with these options, in turn, with gloo; `aim` is a factor of gloo's time."""
    ours: list[dict[str, tuple[float, float]]] = []
    gloo: list[dict[str, tuple[float, float]]] = []
    mine.run(TIMED)
    with Notebook() as theirs:
        theirs.run(f"import torch\nfrom accelerate import debug_launcher\n{TIMED}")
        for _ in range(rounds):
            ours.append(figures(mine, f"%%xla_spawn {options}\n{OURS}"))
            gloo.append(figures(theirs, GLOO))
    for name in SIZES:
        taken = statistics.median(each[name][0] for each in ours) * 1000
        copies = statistics.median(each[name][1] for each in ours) * 1000
        raw = statistics.median(each[name][0] for each in gloo) * 1000
        what = f"all_reduce of {name}, {where}, "
        yield Row(f"{what}/ gloo's", taken, raw, "ms")
        if "MB" in name:
            yield Row(f"{what}/ {aim} of gloo's and a copy", taken, aim * raw + copies, "ms", aim=1)


def figures(notebook: Notebook, code: str) -> dict[str, Any]:
    """The seconds printed by a launch's rank 0."""
    cell = notebook.send(code)
    cell.until(r"figures {.*}")
    cell.end()
    found = re.search(r"figures ({.*})", cell.shown)
    assert found
    taken: dict[str, Any] = json.loads(found[1])
    return taken
