"""A run on many hosts shown in a panel: in a kernel, `watch` draws it and measures the cost.

Ranks are simulated by files and events. Every rank rewrites its sample four times a second,
prints and reports; some compile or wait, some fail, some finish, and one host is lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.flood import ShownRun, shown
from xla_nb.messages import events
from xla_nb.record.sample import Activity

BEAT = 0.05  # seconds between two rounds of writes
SAMPLE, PRINT, REPORT = 5, 10, 20  # rounds between two samples, lines or reports of a rank
GONE, WHEN = 7, 8.0  # the lost host, and the seconds until its loss
ACTIVITIES: tuple[Activity, ...] = ("running", "running", "running", "compiling", "waiting")


def watch(hosts: int, each: int, seconds: int) -> dict[str, float]:
    """Show the crowd in a panel; returns the measurements of `flood.shown`."""
    writer = [sys.executable, "-m", "benchmarks.crowd"]
    numbers = [str(hosts), str(each), str(seconds)]
    return shown(lambda folder: CrowdedRun(folder, hosts, each), writer, numbers)


class CrowdedRun(ShownRun):
    """A run whose events are applied when they are due."""

    def __init__(self, folder: Path, hosts: int, each: int) -> None:
        super().__init__(folder)
        self._story = story(hosts, each)
        self._next = next(self._story)
        self.began = time.monotonic()

    def advance(self) -> None:
        while self._next[0] <= time.monotonic() - self.began:
            self.state.apply(self._next[1])
            self._next = next(self._story)


def host(number: int) -> str:
    return f"worker-{number:03}"


def story(hosts: int, each: int) -> Iterator[tuple[float, events.Event]]:
    """The events, each with its time in seconds."""
    yield 0, events.HostsPlaced(names=tuple(map(host, range(hosts))))
    for number in range(hosts):
        yield (
            0,
            events.JobStarted(host=host(number), ranks=each, simulated=False, first=number * each),
        )
    for rank in range(hosts * each):
        name = host(rank // each)
        yield (
            rank / 1000,
            events.RankStarted(host=name, rank=rank, pid=rank, device=f"TPU:{rank}"),
        )
    for rank in (3 * each, 5 * each + 1):
        yield (
            WHEN - 1,
            events.RankFailed(
                rank=rank,
                kind="ValueError",
                message="boom",
                text="",
                place=line(rank),
                where="here",
            ),
        )
    yield WHEN, events.HostLost(host=host(GONE), why="its node is gone")
    for second in range(1000):
        rank = (8 + second) * each
        yield WHEN + 1 + second, events.RankFinished(rank=rank, preview="0.5", nbytes=8)


def line(rank: int) -> str:
    return f"Cell In[3], line {7 + rank % 9}"


# ---------------------------------------------------------------- the ranks' files


def write(folder: Path, hosts: int, each: int, seconds: int) -> int:
    """Write the ranks' files for `seconds` seconds; returns the number of lines printed."""
    flags = os.O_WRONLY | os.O_CREAT
    names = ("out", "now", "history")
    files = [
        [os.open(folder / f"rank-{rank}.{name}", flags) for name in names]
        for rank in range(hosts * each)
    ]
    beats, printed, began = 0, 0, time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        for rank, (out, sample, history) in enumerate(files):
            if rank // each == GONE and now > WHEN:
                continue
            if (beats + rank) % SAMPLE == 0:
                os.pwrite(sample, vitals(rank, beats).ljust(600), 0)
            if (beats + rank) % PRINT == 0:
                os.write(out, b"%.3f step %d of rank %d\n" % (time.time(), beats, rank))
                printed += 1
            if (beats + rank) % REPORT == 0:
                loss = (1 + rank / 1024) / (2 + beats)
                row = [beats // REPORT, time.time(), None, {"loss": loss}]
                os.write(history, json.dumps(row).encode() + b"\n")
        beats += 1
        time.sleep(max(0.0, began + beats * BEAT - time.monotonic()))
    return printed


def vitals(rank: int, beats: int) -> bytes:
    """One sample. Every three seconds a rank changes its activity."""
    activity = ACTIVITIES[(beats // 60 + rank) % len(ACTIVITIES)]
    waiting = activity == "waiting"
    sample: dict[str, object] = {
        "at": time.time(),
        "activity": activity,
        "since": time.time() - beats % 60 * BEAT,
        "place": line(rank + beats // 20),
        "operation": "all_reduce" if waiting else "",
        "missing": [rank + 1] if waiting else [],
        "memory": (1 << 30) + 4096 * beats,
        "cpu": beats * BEAT * 0.9,
        "device_used": (8 << 30) + beats,
        "device_limit": 32 << 30,
        "compiles": 3 + beats // 200,
        "compile_seconds": 4.5,
        "steps": beats,
        "fallbacks": {},
        "loops": [{"label": "epoch 1", "done": beats, "total": 2000, "rate": 20.0}],
    }
    return json.dumps(sample).encode()


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    print(write(Path(folder), *map(int, numbers)))
