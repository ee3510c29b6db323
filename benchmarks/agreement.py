"""The time that simulated ranks need to agree on a collective, and for a chain of small ones.

A bare meeting precedes every collective: each rank announces its call to all others. Hundreds of
meetings are measured at a time, within a rank, so that waking the ranks once does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks import Row
from benchmarks.client import Notebook
from benchmarks.collectives import figures

ROUNDS = 5
MEASURED = """
def measure(rank):
    import json, time
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla.experimental import plugins
    programs, everyone = plugins.default().programs, range(xr.world_size())
    value = torch.ones(16, device=torch_xla.device())
    chain = [value]

    def meet():
        with programs.lock:
            programs.agreement.meet("a benchmark's", everyone)

    def reduce():
        chain[0] = xm.all_reduce("sum", chain[0], scale=1 / len(everyone))

    def milliseconds(step, times):
        for _ in range(20):
            step()
        begun = time.perf_counter(), time.process_time()
        for _ in range(times):
            step()
        ended = time.perf_counter(), time.process_time()
        return [1000 * (end - begin) / times for begin, end in zip(begun, ended)]

    found = {"meet": milliseconds(meet, TIMES)}
    if len(everyone) == 4:
        found["reduce"] = milliseconds(reduce, TIMES)
    if rank == 0:
        print("figures " + json.dumps(found), flush=True)
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    with Notebook() as notebook:
        notebook.run("%load_ext xla_nb")
        few = [_played(notebook, 4, 1000) for _ in range(rounds)]
        many = [_played(notebook, 64, 200) for _ in range(-(-rounds // 2))]
    yield Row("agreement of 4 ranks / 0.1 ms", _median(few, "meet", 0), 0.1, "ms", aim=1)
    yield Row("all_reduce of 64 B in a chain / 0.5 ms", _median(few, "reduce", 0), 0.5, "ms", aim=1)
    yield Row("agreement of 64 ranks, CPU time a rank / 1 ms", _median(many, "meet", 1), 1, "ms", 1)
    yield Row("agreement of 64 ranks on these cores / 1 ms", _median(many, "meet", 0), 1, "ms")


def _played(notebook: Notebook, ranks: int, times: int) -> dict[str, list[float]]:
    measured = MEASURED.replace("TIMES", str(times))
    found: dict[str, list[float]] = figures(notebook, f"%%xla_spawn -n {ranks}\n{measured}")
    return found


def _median(found: list[dict[str, list[float]]], name: str, clock: int) -> float:
    return statistics.median(each[name][clock] for each in found)
