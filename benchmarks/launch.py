"""The time from sending a cell until the last of 4 ranks prints: medians, measured in turn."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import Row
from benchmarks.client import Notebook

RANKS = 4
ROUNDS = 21


@dataclass(frozen=True)
class Way:
    """A way to start ranks from a notebook: a setup cell, and the cell that is timed."""

    name: str
    setup: str
    cell: str


OURS = Way(
    "%%xla_spawn",
    "%load_ext xla_nb",
    f'%%xla_spawn -n {RANKS}\ndef speak(rank):\n    print(f"spoken {{rank}}")\n',
)
#: The definitions of a long notebook: functions that use each other, and classes.
DEFINITIONS = "\n".join(
    f"def f{n}(x, y={n}):\n    return g{n}(x) + y\n"
    f"def g{n}(x):\n    return [f{n}, C{n}][x % 2]\n"
    f"class C{n}:\n    limit = {n}\n    def go(self, x):\n        return f{n}(x)"
    for n in range(67)
)
FULL = Way("with 200 definitions in the notebook", f"{OURS.setup}\n{DEFINITIONS}", OURS.cell)
ALL = Way(
    "with 200 definitions that it uses",
    FULL.setup,
    OURS.cell + "    return " + ", ".join(f"C{n}().limit" for n in range(67)) + "\n",
)
BARE = Way(
    "xmp.spawn, fork",
    "import os\nos.environ['PJRT_DEVICE'] = 'CPU'\nfrom benchmarks import bare",
    f'def speak(rank):\n    print(f"spoken {{rank}}", flush=True)\nbare.spawn(speak, n={RANKS})',
)
ACCELERATE = Way(
    "accelerate's debug_launcher (no XLA)",
    "import torch\nfrom accelerate import debug_launcher",
    'def speak():\n    print(f"spoken {torch.distributed.get_rank()}", flush=True)\n'
    f"debug_launcher(speak, num_processes={RANKS})",
)


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """xla_nb against bare `xmp.spawn` and accelerate, and those two against each other."""
    seconds = measure([OURS, BARE, ACCELERATE, FULL, ALL], rounds)
    ours, bare, accelerate, full, used = (statistics.median(taken) * 1000 for taken in seconds)
    yield Row(f"{OURS.name} / {BARE.name}", ours, bare, "ms", aim=1.2)
    yield Row(f"{OURS.name} / {ACCELERATE.name}", ours, accelerate, "ms")
    yield Row(f"{BARE.name} / {ACCELERATE.name}", bare, accelerate, "ms")
    yield Row(f"a launch {FULL.name} / with none", full, ours, "ms", aim=1.1)
    yield Row(f"a launch {ALL.name} / with none", used, ours, "ms")
    yield Row("%load_ext xla_nb / 300 ms", loading(-(-rounds // 7)) * 1000, 300, "ms", aim=1)


def loading(kernels: int) -> float:
    """Seconds to load the extension, median over fresh kernels."""
    seconds = []
    for _ in range(kernels):
        with Notebook() as notebook:
            notebook.run("pass")
            begun = time.perf_counter()
            notebook.run(OURS.setup)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def measure(ways: list[Way], rounds: int) -> list[list[float]]:
    """The seconds of every round for each way, after one warm-up round."""
    taken: list[list[float]] = [[] for _ in ways]
    with contextlib.ExitStack() as stack:
        notebooks = [stack.enter_context(Notebook()) for _ in ways]
        for notebook, way in zip(notebooks, ways, strict=True):
            notebook.run(way.setup)
            once(notebook, way)
        for _ in range(rounds):
            for notebook, way, seconds in zip(notebooks, ways, taken, strict=True):
                seconds.append(once(notebook, way))
    return taken


def once(notebook: Notebook, way: Way) -> float:
    cell = notebook.send(way.cell)
    seconds = cell.until(r"spoken (\d+)", RANKS)
    cell.end()
    return seconds
