"""The cost of printing: ranks that print, and the same processes with output to plain files.

Both write each line immediately, like a notebook's `print`. Python's own buffer of a plain file
takes many lines at a time; that is the second row.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row
from benchmarks.client import CellFailed, Notebook

RANKS, LINES, ROUNDS = 8, 1_000_000, 3

PRINT = f"""
    for number in range({LINES}):
        print("line", number, "of rank", rank)
"""
CELL = f"%%xla_spawn -n {RANKS} -o run\ndef talk(rank):{PRINT}"
#: Forked processes that print to their own files, with a buffer of this size (1: a line).
PLAIN = f"""
import multiprocessing, sys
def talk(rank):
    sys.stdout = open(f"{{sys.argv[1]}}/plain-{{rank}}", "w", buffering=int(sys.argv[2])){PRINT}
    sys.stdout.flush()
fork = multiprocessing.get_context("fork")
ranks = [fork.Process(target=talk, args=(rank,)) for rank in range({RANKS})]
for rank in ranks: rank.start()
for rank in ranks: rank.join()
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    ours, lines, blocks = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            lines.append(plain(folder, 1))
            ours.append(printed(folder))
            blocks.append(plain(folder, -1))
    what = f"{RANKS} ranks print {LINES:,} lines each, none missing"
    figure, by_line, by_block = map(statistics.median, (ours, lines, blocks))
    yield Row(f"{what} / to plain files", figure, by_line, "s", aim=1.3)
    yield Row("- / with Python's buffer", figure, by_block, "s")


def plain(folder: str, buffering: int) -> float:
    """Seconds from starting the forked processes until they have ended."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", PLAIN, folder, str(buffering)], check=True)
    return time.perf_counter() - began


def printed(folder: str) -> float:
    """Seconds from sending the cell to its end, in a warm kernel."""
    with Notebook() as notebook:
        notebook.run(f"import os; os.environ['XLA_NB_HOME'] = {folder!r}\n%load_ext xla_nb")
        notebook.run("%%xla_spawn -n 1\ndef warm(rank): pass")
        seconds = notebook.send(CELL).end()
        count = sum(path.read_bytes().count(b"\n") for path in Path(folder).rglob("rank-*.out"))
    if count != RANKS * LINES:
        raise CellFailed(f"{RANKS * LINES - count:,} lines are missing")
    return seconds
