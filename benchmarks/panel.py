"""What watching costs: output shown late, the kernel's share of a core, the meter's of a step."""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import Row
from benchmarks.client import Notebook
from xla_nb import events
from xla_nb.record import Record
from xla_nb.recorded import RecordedRun

RANKS, LINES, ROUNDS = 4, 5000, 7
STREAMS, RATE, SECONDS = 256, 100_000, 10

TALK = f"""%%xla_spawn -n {RANKS}
def talk(rank):
    for number in range({LINES}):
        print(f"line {{number}} of rank {{rank}}")
    print(f"spoken {{rank}}")
"""

#: A process that writes so many lines a second into so many files, and says how many it wrote.
FLOOD = """
import os, sys, time
folder, streams, rate, seconds = sys.argv[1], *map(int, sys.argv[2:])
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
files = [os.open(f"{folder}/rank-{rank}.out", flags) for rank in range(streams)]
beat, began, written = 0.05, time.monotonic(), 0
each = int(rate * beat / streams)
while (now := time.monotonic() - began) < seconds:
    for file in files:
        os.write(file, b"".join(b"%-109d\\n" % (written + n) for n in range(each)))
    written += each
    time.sleep(max(0, began + written / each * beat - time.monotonic()))
print(written * streams)
"""


def rows() -> Iterator[Row]:
    """The last of 20,000 lines, and a flood into 256 files as the panel reads it."""
    last = statistics.median(talking()) * 1000
    what = f"{RANKS} ranks, {LINES:,} lines each: last one seen / 200 ms"
    yield Row(what, last, 200, "ms", aim=1)
    share, messages, rate = flooded()
    yield Row(f"kernel's share at {rate:,.0f} lines/s, {STREAMS} streams / 0.2", share, 0.2, "", 1)
    yield Row("messages a second / 20", messages, 20, "", aim=1)


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


class _Run(RecordedRun):
    """A run of which only the files are real."""

    def __init__(self, folder: Path) -> None:
        super().__init__("flood", "Cell In[1]", Record(folder), dict[str, object]().__getitem__)
        host = {"pid": 1, "host": "here", "simulated": True}
        self.state.apply(events.JobStarted(ranks=STREAMS, **host))
        for rank in range(STREAMS):
            self.state.apply(
                events.RankStarted(rank=rank, local_rank=rank, pid=rank, device="xla:0")
            )
        self.changed = threading.Condition()

    done = False


def flooded() -> tuple[float, float, float]:
    """Share of a core that the panel's drawing takes, its messages and the lines a second."""
    from xla_nb.panel import PanelView

    quiet = contextlib.redirect_stdout(io.StringIO())  # where displays go without a kernel
    with tempfile.TemporaryDirectory() as folder, quiet:
        view: Any = PanelView(_Run(Path(folder)))  # type: ignore[arg-type]
        sent: list[int] = []
        # Without a kernel there is no comm; what it would be given is made all the same.
        view._page.send = lambda content, buffers=None: sent.append(len(json.dumps(content)))
        arguments = [folder, str(STREAMS), str(RATE), str(SECONDS)]
        writer = subprocess.Popen(
            [sys.executable, "-c", FLOOD, *arguments], stdout=subprocess.PIPE, text=True
        )
        began, busy = time.monotonic(), time.process_time()
        while writer.poll() is None:
            time.sleep(view.draw())
        took, used = time.monotonic() - began, time.process_time() - busy
        assert writer.stdout is not None
        return used / took, len(sent) / took, int(writer.stdout.read()) / took
