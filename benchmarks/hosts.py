"""Launches on a Ray cluster of three nodes on this machine, collectives, and a flood of lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks import Row, collectives
from benchmarks.client import CellFailed, Notebook
from benchmarks.nodes import cluster

HOSTS = 3
RANKS = 2  # on each host
ROUNDS = 15
RATE = 100_000  # lines a second, over all ranks
SECONDS = 10

LAUNCH = '%%xla_spawn {where}\ndef speak(rank):\n    print(f"spoken {{rank}}")\n'
FLOOD = f"""%%xla_spawn --on ray --hosts {HOSTS} -n {RANKS} --view none -o flood
import sys, time
def shout(rank):
    each = {RATE} // {HOSTS * RANKS} // 50
    began = time.monotonic()
    for block in range({SECONDS} * 50):
        lines = range(block * each, (block + 1) * each)
        sys.stdout.write("".join(f"rank {{rank}} line {{n}} and some more words\\n" for n in lines))
        time.sleep(max(0, began + (block + 1) / 50 - time.monotonic()))
    return (block + 1) * each, time.monotonic() - began
"""
COUNT = """
wrote = sum(flood[rank][0] for rank in range(6))
here = sum(open(flood.record.log(rank)).read().count("\\n") for rank in range(6))
there = sum(flood.output(rank).count("\\n") for rank in range(6))
took = max(flood[rank][1] for rank in range(6))
print("counted", wrote, here, there, wrote / took, flood.elapsed)
"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """Three warm hosts compared with one; the arrival of three hosts' lines with their writing."""
    with cluster(HOSTS) as address, Notebook() as three, Notebook() as one:
        for notebook in (three, one):
            notebook.run(f"%load_ext xla_nb\nimport os\nos.environ['RAY_ADDRESS'] = {address!r}")
        ways = {
            "three": (three, f"--on ray --hosts {HOSTS} -n {RANKS}", HOSTS * RANKS),
            "one": (one, f"--on ray --hosts 1 -n {HOSTS * RANKS}", HOSTS * RANKS),
            "less": (one, f"--on ray --hosts 1 -n {RANKS}", RANKS),
            "here": (one, f"-n {HOSTS * RANKS}", HOSTS * RANKS),
        }
        for way in ways.values():
            once(*way)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                taken[name].append(once(*way))
        medians = {name: statistics.median(seconds) * 1000 for name, seconds in taken.items()}
        what = f"{HOSTS} warm hosts x {RANKS} ranks / one host"
        yield Row(f"{what} x {HOSTS * RANKS}", medians["three"], medians["one"], "ms", aim=1.5)
        yield Row(f"{what} x {RANKS}", medians["three"], medians["less"], "ms")
        yield Row(
            f"one host of a cluster / this machine, {HOSTS * RANKS} ranks",
            medians["one"],
            medians["here"],
            "ms",
        )
        yield from flood(three)
        two = "--on ray --hosts 2 -n 2"
        yield from collectives.compared(
            one, two, "2 hosts x 2 ranks", 1.5, min(rounds, collectives.ROUNDS)
        )


def once(notebook: Notebook, where: str, ranks: int) -> float:
    """Seconds until the last rank's first line is shown."""
    cell = notebook.send(LAUNCH.format(where=where))
    seconds = cell.until(r"spoken (\d+)", ranks)
    cell.end()
    return seconds


def flood(notebook: Notebook) -> Iterator[Row]:
    notebook.run(FLOOD)
    words = notebook.run(COUNT).shown.split()
    at = words.index("counted")
    wrote, here, there = map(int, words[at + 1 : at + 4])
    rate, elapsed = map(float, words[at + 4 : at + 6])
    if not wrote == here == there:
        raise CellFailed(f"of {wrote} lines {here} arrived and {there} were fetched")
    what = f"{HOSTS} hosts, {wrote:,} lines at {rate:,.0f}/s, none missing: all here"
    yield Row(f"{what} / written", elapsed, wrote / rate, "s", aim=1.1)
