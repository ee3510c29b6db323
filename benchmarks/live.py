"""Live ranks compared with ipyparallel and jupyter-distributed: cells, values, floods, 500 cells.

The peers run in `.venv-peers` (`make .venv-peers/.installed`); without it, their rows are omitted.
ipyparallel and jupyter-distributed have a Python kernel per rank, and no XLA. Times are measured by
a client of the notebook's kernel.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from benchmarks import Row
from benchmarks.client import ROOT, CellFailed, Notebook

RANKS = 4
MANY = 16
ROUNDS = 41
LINES = 5_000
#: A notebook's cells before the ranks are started, of 1.2 kB each, like typical ones.
WRITTEN = [
    f"def function{number}(x):\n    # What it does, in a few words.\n"
    + "".join(f"    x = x * {number} + {line}  # with a comment\n" for line in range(30))
    + "    return x\n"
    for number in range(40)
]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
SPEAK = 'print(f"spoken {rank}")'
_KERNEL = [str(PEERS), "-m", "ipykernel_launcher"]
_ENGINES = """
import ipyparallel, logging, sys
cluster = ipyparallel.Cluster(n={ranks}, log_level=logging.CRITICAL)
client = cluster.start_and_connect_sync(activate=True)
client[:].scatter("rank", range({ranks}), flatten=True, block=True)
"""


@dataclass(frozen=True)
class Way:
    """A way to run cells on live ranks; `line` is the first line of each cell."""

    name: str
    setup: tuple[str, ...]
    line: str = ""
    close: str = "pass"
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def notebook(self) -> Notebook:
        return Notebook(self.command, self.environment)


def ours(ranks: int) -> Way:
    setup = ("%load_ext xla_nb", f"%xla_start -n {ranks}")
    return Way("%%xla", setup, "%%xla\n", "%xla_shutdown")


def among_others(ranks: int) -> Way:
    """The same in a notebook that already has cells."""
    way = ours(ranks)
    return replace(way, setup=(way.setup[0], *WRITTEN, way.setup[1]))


def bare(ranks: int) -> Way:
    setup = f"from benchmarks import bare_live\nbare_live.start({ranks})"
    return Way("a magic that only hands it to processes", (setup,), "%%bare\n")


def peers() -> list[Way]:
    """The installed peers."""
    if not PEERS.exists():
        return []
    world = {"JUPYTER_DISTRIBUTED_WORLD_SIZE": str(RANKS), "PATH": f"{PEERS.parent}:/usr/bin:/bin"}
    kernel = [str(PEERS), "-m", "jupyter_distributed.kernel"]
    return [
        Way(
            "ipyparallel's %%px",
            (_ENGINES.format(ranks=RANKS),),
            "%%px\n",
            "cluster.stop_cluster_sync()",
            _KERNEL,
        ),
        Way(
            "jupyter-distributed",
            ("import os; rank = int(os.environ['RANK'])",),
            command=kernel,
            environment=world,
        ),
    ]


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """Runs about 500 cells, and seven floods and values."""
    yield from cells(rounds)
    yield from compiled()
    yield from pushed(-(-rounds // 6))
    yield from many(12 * rounds)


# ---------------------------------------------------------------- cells


@contextlib.contextmanager
def opened(ways: list[Way]) -> Iterator[list[Notebook]]:
    """Open the notebooks of these ways, set up and warm."""
    with contextlib.ExitStack() as stack:
        notebooks = [stack.enter_context(way.notebook()) for way in ways]
        for notebook, way in zip(notebooks, ways, strict=True):
            for cell in way.setup:
                notebook.run(cell)
            stack.callback(notebook.run, way.close)
        yield notebooks


def cells(rounds: int) -> Iterator[Row]:
    """A cell until its last rank prints, and a flood of lines.

    Ratios are measured in turn with other ways. A user's notebook runs alone, so that is measured
    too: in turn, the processes of six other notebooks take the caches between two of its cells.
    """
    with opened([ours(RANKS)]) as notebooks:
        (alone,) = in_turn([ours(RANKS)], notebooks, speak, rounds)
    ways = [ours(RANKS), ours(MANY), among_others(RANKS), bare(RANKS), *peers()]
    with opened(ways) as notebooks:
        spoken = in_turn(ways, notebooks, speak, rounds)
        del ways[1:4], notebooks[1:4]
        flooded = in_turn(ways, notebooks, flood, -(-rounds // 8))
    four, sixteen, among, least, *others = (statistics.median(taken) * 1000 for taken in spoken)
    what = f"a %%xla cell until the last of {RANKS} ranks has spoken"
    yield Row(f"{what} / 10 ms", statistics.median(alone) * 1000, 10, "ms", aim=1)
    for way, other in zip(ways[1:], others, strict=True):
        yield Row(f"- / {way.name}", four, other, "ms", aim=0.7)
    yield Row(f"- of {MANY} ranks / of {RANKS}", sixteen, four, "ms", aim=2)
    yield Row(f"- in a notebook of {len(WRITTEN)} other cells / of none", among, four, "ms")
    yield Row(f"- / {bare(RANKS).name}", four, least, "ms")
    mine, *others = (statistics.median(taken) for taken in flooded)
    yield Row(f"{RANKS * LINES:,} lines of a %%xla cell, all seen / 0.25 s", mine, 0.25, "s", aim=1)
    for way, other in zip(ways[1:], others, strict=True):
        yield Row(f"- / {way.name}", mine, other, "s")


def in_turn(
    ways: list[Way],
    notebooks: list[Notebook],
    once: Callable[[Way, Notebook], float],
    rounds: int,
) -> list[list[float]]:
    """The seconds of every round for each way, after a warm-up round."""
    taken: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, notebook, seconds in zip(ways, notebooks, taken, strict=True):
            figure = once(way, notebook)
            if number:
                seconds.append(figure)
    return taken


def speak(way: Way, notebook: Notebook) -> float:
    cell = notebook.send(f"{way.line}{SPEAK}")
    ranks = MANY if f"-n {MANY}" in way.setup[-1] else RANKS
    seconds = cell.until(r"spoken (\d+)", ranks)
    cell.end()
    return seconds


def flood(way: Way, notebook: Notebook) -> float:
    """Seconds until the last line of all ranks is shown."""
    cell = notebook.send(f'{way.line}for n in range({LINES}): print(f"line {{n}} of {{rank}}")')
    seconds = cell.until(rf"line {LINES - 1} of (\d+)", RANKS)
    cell.end()
    return seconds


# ---------------------------------------------------------------- preserved state


TRAIN = """
for step in range(10):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    xm.optimizer_step(optimizer)
    torch_xla.sync()
"""
PREPARE = """%%xla
import time, torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(256, 64).to(device)
labels = torch.randint(10, (256,)).to(device)

def compiled():
    found = met.metric_data("CompileTime")
    return found[0] if found else 0
"""
COUNT = f"""%%xla
before, began = compiled(), time.perf_counter()
{TRAIN}
torch_xla.sync(wait=True)
if rank == 0:
    print("graphs", compiled() - before, "in", time.perf_counter() - began)
"""


def compiled() -> Iterator[Row]:
    """The graphs compiled when a training cell runs again, and its time."""
    with opened([ours(RANKS)]) as (notebook,):
        notebook.run(PREPARE)
        first, again = (counted(notebook) for _ in range(2))
    if again[0]:
        raise CellFailed(f"the second run of a training cell compiled {again[0]:.0f} graphs")
    yield Row(
        f"10 steps, run again: {again[0]:.0f} graphs compiled / run first: {first[0]:.0f}",
        again[1],
        first[1],
        "s",
    )


def counted(notebook: Notebook) -> tuple[float, float]:
    words = notebook.run(COUNT).shown.partition("graphs ")[2].split()
    return float(words[0]), float(words[2])


# ---------------------------------------------------------------- values


BIG = "import numpy as np, time; big, small = np.ones(2**27), np.ones(8)"
COPY = "began = time.perf_counter(); big.copy(); print('copied', time.perf_counter() - began)"
PUSH = (
    "began = time.perf_counter(); ranks.push({0}={0}); print('took', time.perf_counter() - began)"
)
READ = "%%xla\n{0}[0]"


def pushed(rounds: int) -> Iterator[Row]:
    """1 GiB sent to the ranks of a host, and used again unchanged."""
    with opened([ours(RANKS)]) as (notebook,):
        notebook.run(BIG)
        notebook.run("import xla_nb; ranks = xla_nb.ranks()")
        copies, pushes, unchanged = [], [], []
        for _ in range(rounds):
            copies.append(last_number(notebook.run(COPY).shown, "copied"))
            pushes.append(
                last_number(notebook.run(PUSH.format("big")).shown, "took")
                - last_number(notebook.run(PUSH.format("small")).shown, "took")
            )
        notebook.run("%xla_restart")
        for _ in range(2):  # sent, then recognized as unchanged
            notebook.run(READ.format("big")), notebook.run(READ.format("small"))
        for _ in range(rounds):
            unchanged.append(
                notebook.send(READ.format("big")).end() - notebook.send(READ.format("small")).end()
            )
    copied, took, again = map(statistics.median, (copies, pushes, unchanged))
    yield Row("1 GiB pushed to 4 ranks of a host / copied once", took, copied, "s", aim=1.3)
    yield Row("1 GiB of the notebook, unchanged / 0.35 s", again, 0.35, "s", aim=1)


def last_number(shown: str, word: str) -> float:
    return float(shown.rpartition(word)[2].split()[0])


# ---------------------------------------------------------------- many cells


UNITS = {"memory": "MiB", "threads": "threads", "fds": "descriptors", "files": "files"}
LOOK = """
import gc, json, os, pathlib
def held(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    words = dict(line.split(":", 1) for line in lines)
    return {
        "memory": int(words["VmRSS"].split()[0]) / 1024,
        "threads": int(words["Threads"]),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
    }
def report():
    get_ipython().run_line_magic("reset", "-f out")
    gc.collect()
    xla_nb.api.tidy()
    ranks = xla_nb.live.of().run.state.ranks.values()
    each = [held(pid) for pid in (os.getpid(), *(rank.pid for rank in ranks))]
    figures = {name: sum(one[name] for one in each) for name in each[0]}
    files = sum(1 for _ in pathlib.Path(os.environ["XLA_NB_HOME"]).rglob("*"))
    print("held", json.dumps(figures | {"files": files}))
"""


def many(cells: int) -> Iterator[Row]:
    """Resources of the kernel and its ranks after many cells, compared with after the first fifth,
    without `Out`, which keeps the files of runs that were a cell's last value."""
    with opened([ours(RANKS)]) as (notebook,):
        notebook.run(f"import xla_nb.live\n{LOOK}")
        early, late = dict[str, float](), dict[str, float]()
        for number in range(cells + 1):
            notebook.run(f"%%xla\nlast = {number}\nprint(last)\nlast * rank")
            if number in (cells // 5, cells):
                early, late = late, summed(notebook)
    for name, unit in UNITS.items():
        what = f"{name} of the kernel and {RANKS} ranks after {cells} cells / after {cells // 5}"
        yield Row(what, late[name], early[name], unit, aim=1.02)


def summed(notebook: Notebook) -> dict[str, float]:
    figures: dict[str, float] = json.loads(notebook.run("report()").shown.partition("held ")[2])
    return figures
