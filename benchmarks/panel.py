"""How late the last line of a cell is shown, measured without a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks import Row
from benchmarks.client import Notebook

RANKS, LINES, ROUNDS = 4, 5000, 7

TALK = f"""%%xla_spawn -n {RANKS}
def talk(rank):
    for number in range({LINES}):
        print(f"line {{number}} of rank {{rank}}")
    print(f"spoken {{rank}}")
"""


def rows() -> Iterator[Row]:
    last = statistics.median(talking()) * 1000
    what = f"{RANKS} ranks, {LINES:,} lines each: last one seen / 200 ms"
    yield Row(what, last, 200, "ms", aim=1)


def talking() -> list[float]:
    """Seconds from sending the cell until each rank's last line has been shown."""
    with Notebook() as notebook:
        notebook.run("%load_ext xla_nb")
        taken = []
        for _ in range(ROUNDS):
            cell = notebook.send(TALK)
            taken.append(cell.until(r"spoken \d", RANKS))
            cell.end()
        return taken[1:]
