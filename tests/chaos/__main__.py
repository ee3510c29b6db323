"""`make chaos`: the full rounds, as a table."""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.chaos.clusters import rounds as of_clusters
from tests.chaos.kills import rounds
from tests.chaos.launches import standings


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--launches", type=int, default=500)
    parser.add_argument("--clusters", type=int, default=20, help="kills on a Ray cluster")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for standing in standings(options.launches, max(1, options.launches // 10)):
        print(standing, flush=True)
    kills = _kill(options.rounds, options.seed) if options.rounds else 0
    clusters = _kill_on_a_cluster(options.clusters, options.seed) if options.clusters else 0
    return kills or clusters


def _kill(count: int, seed: int) -> int:
    began = time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    for number, result in enumerate(rounds(count, seed)):
        done[result.victim] += 1
        faults.update(result.faults.keys())
        if result.faults:
            print(number, result.victim, result.number.name, result.faults, result.said, flush=True)
    kinds = "hung", "orphans", "lost", "temporary", "unnamed", "next_failed"
    print(f"{count} kills, seed {seed}, {time.monotonic() - began:.0f} s")
    print("by victim:", ", ".join(f"{count} {victim}" for victim, count in sorted(done.items())))
    print(", ".join(f"{kind} {faults[kind]}" for kind in kinds))
    return bool(faults)


def _kill_on_a_cluster(count: int, seed: int) -> int:
    faults = 0
    for number, result in enumerate(of_clusters(count, seed)):
        faults += bool(result.faults)
        print(number, result.victim, f"said after {result.after:.1f} s", result.faults, flush=True)
        if result.faults:
            print("    ", result.said, flush=True)
    print(f"{count} kills on a Ray cluster, seed {seed}: {faults} with faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
