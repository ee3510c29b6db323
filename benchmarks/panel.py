"""The delay until a cell's last line and its ranks' displays are shown, without a page."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator

from benchmarks import Row
from benchmarks.client import Notebook

RANKS, LINES, ROUNDS = 4, 5000, 6

TALK = f"""%%xla_spawn -n {RANKS}
def talk(rank):
    for number in range({LINES}):
        print(f"line {{number}} of rank {{rank}}")
    print(f"spoken {{rank}}")
"""
FIGURE = 100_000  # bytes of an image
SHOW = f"""%%xla_spawn -n {RANKS}
import os, time
def show(rank):
    image = os.urandom({FIGURE})
    time.sleep(1 - time.time() % 1)  # all at once
    at = time.time()
    display({{"image/png": image, "text/plain": f"shown by {{rank}} at {{at}}"}}, raw=True)
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    last = statistics.median(talking(rounds)) * 1000
    what = f"{RANKS} ranks, {LINES:,} lines each: last one seen / 200 ms"
    yield Row(what, last, 200, "ms", aim=1)
    figures = statistics.median(showing(rounds)) * 1000
    what = f"{RANKS} ranks, a figure of 100 kB each: all seen / 300 ms"
    yield Row(what, figures, 300, "ms", aim=1)


def talking(rounds: int) -> list[float]:
    """Seconds from sending the cell until each rank's last line has been shown."""
    with Notebook() as notebook:
        notebook.run("%load_ext xla_nb")
        taken = []
        for _ in range(rounds + 1):
            cell = notebook.send(TALK)
            taken.append(cell.until(r"spoken \d", RANKS))
            cell.end()
        return taken[1:]


def showing(rounds: int) -> list[float]:
    """Seconds from the first rank's `display` until the figures of all ranks are shown."""
    with Notebook() as notebook:
        notebook.run("%load_ext xla_nb")
        taken = []
        for _ in range(rounds + 1):
            cell = notebook.send(SHOW)
            cell.until(r"shown by \d at", RANKS)
            began = min(map(float, re.findall(r"shown by \d at (\d+\.\d+)", cell.shown)))
            taken.append(time.time() - began)
            cell.end()
        return taken[1:]
