"""A 1 GiB array of the notebook used by 4 ranks: the additional time and memory.

Both are differences between two launches of one cell, with this array and with a tiny one. Memory
is the PSS of the ranks and their job; a page that k processes share counts as 1/k in each.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row
from benchmarks.client import Notebook

RANKS = 4
ROUNDS = 9
GIB = 2**30

COPY = """
import time
import numpy as np
begun = time.perf_counter(); big.copy(); print("copied", time.perf_counter() - begun)
"""
USE = """%%xla_spawn -n {ranks}
def use(rank):
    import os, pathlib, time
    first = {array}[0]
    print(f"has {{rank}}")
    while not pathlib.Path({all_have!r}).exists():  # reading it would slow the other ranks down
        time.sleep(0.01)
    total = {array}.sum()  # every page of it
    print(f"read {{os.getpid()}} {{os.getppid()}}")
    while not pathlib.Path({released!r}).exists():
        time.sleep(0.05)
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    with Notebook() as notebook, tempfile.TemporaryDirectory() as folder:
        notebook.run("%load_ext xla_nb")
        notebook.run("import numpy as np; big, small = np.ones(2**27), np.ones(8)")
        use(notebook, "small", Path(folder) / "warm")
        copies, seconds, memory = [], [], []
        for number in range(rounds):
            shown = notebook.run(COPY).shown
            copies.append(float(shown.split()[-1]))
            little = use(notebook, "small", Path(folder) / f"small{number}")
            much = use(notebook, "big", Path(folder) / f"big{number}")
            seconds.append(much[0] - little[0])
            memory.append(much[1] - little[1])
    yield Row(
        "1 GiB array shipped / copied once",
        statistics.median(seconds),
        statistics.median(copies),
        "s",
        aim=2,
    )
    yield Row("memory of 4 ranks with it", statistics.median(memory) / GIB, 1, "GiB", aim=1.1)


def use(notebook: Notebook, array: str, released: Path) -> tuple[float, int]:
    """Seconds until every rank has the array, and bytes in use after all have read it."""
    all_have = released.with_suffix(".all_have")
    files = {"all_have": str(all_have), "released": str(released)}
    cell = notebook.send(USE.format(ranks=RANKS, array=array, **files))
    seconds = cell.until(r"has (\d+)", RANKS)
    all_have.touch()
    cell.until(r"read (\d+)", RANKS)
    pids = {pid for pair in re.findall(r"read (\d+) (\d+)", cell.shown) for pid in pair}
    held = sum(map(pss, pids))
    released.touch()
    cell.end()
    return seconds, held


def pss(pid: str) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Pss:")[1].split()[0]) * 1024
