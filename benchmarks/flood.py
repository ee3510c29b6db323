"""A flood of lines shown in a panel: in a kernel, `watch` draws it and measures the cost."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.client import ROOT
from xla_nb.messages import events
from xla_nb.record.files import Record
from xla_nb.run.recorded import RecordedRun

#: A process that writes `rate` lines a second to `streams` files, each starting with the time, and
#: prints the number of lines.
WRITER = """
import os, sys, time
folder, streams, rate, seconds = sys.argv[1], *map(int, sys.argv[2:])
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
files = [os.open(f"{folder}/rank-{rank}.out", flags) for rank in range(streams)]
beat, began, written = 0.05, time.monotonic(), 0
each = max(1, int(rate * beat / streams))
while time.monotonic() - began < seconds:
    for file in files:
        at = time.time()
        os.write(file, b"".join(b"%.3f %-94d\\n" % (at, written + n) for n in range(each)))
    written += each
    time.sleep(max(0, began + written / each * beat - time.monotonic()))
print(written * streams)
"""


class ShownRun(RecordedRun):
    """A run without processes; only its files exist."""

    done = False

    def __init__(self, folder: Path) -> None:
        super().__init__("flood", "Cell In[1]", Record(folder))
        self.changed = threading.Condition()

    def advance(self) -> None:
        """Apply the events that are due by now."""


class FloodedRun(ShownRun):
    """A run whose ranks all run and print."""

    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__(folder)
        self.state.apply(events.JobStarted(host="here", ranks=ranks, simulated=True))
        for rank in range(ranks):
            self.state.apply(events.RankStarted(rank=rank, pid=rank, device="xla:0"))


def watch(streams: int, rate: int, seconds: int) -> dict[str, float]:
    """Show a flood in a panel; returns the measurements of `shown`."""
    writer = [sys.executable, "-c", WRITER]
    numbers = [str(streams), str(rate), str(seconds)]
    return shown(lambda folder: FloodedRun(folder, streams), writer, numbers)


def shown(
    make: Callable[[Path], ShownRun], writer: Sequence[str], numbers: Sequence[str]
) -> dict[str, float]:
    """Show a run in a panel while the writer fills its files.

    Returns the share of a core that the kernel's process used, messages and lines per second, and
    the number of lines missing from the files.
    """
    # Not at the top: the writer process of `crowd` imports this module too.
    from xla_nb.views.panel.view import PanelView

    with tempfile.TemporaryDirectory() as folder:
        run = make(Path(folder))
        view: Any = PanelView(run)  # type: ignore[arg-type]
        messages, send = 0, view._page.send

        def counted(content: object, buffers: object = None) -> None:
            nonlocal messages
            messages += 1
            send(content, buffers)

        view._page.send = counted
        process = subprocess.Popen(
            [*writer, folder, *numbers], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        began, busy = time.monotonic(), time.process_time()
        while process.poll() is None:
            run.advance()
            time.sleep(view.draw())
        took, used = time.monotonic() - began, time.process_time() - busy
        assert process.stdout is not None
        written = int(process.stdout.read())
        view.finish()
        lines = sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("rank-*.out"))
    return {
        "share": used / took,
        "messages": messages / took,
        "lines": written / took,
        "lost": written - lines,
    }
