"""A flood of lines that a panel shows: in a kernel, `watch` draws it and says what that took."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from xla_nb import events
from xla_nb.record import Record
from xla_nb.recorded import RecordedRun

#: A process that writes so many lines a second into so many files, each with the time in front,
#: and says how many it wrote.
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


class FloodedRun(RecordedRun):
    """A run of which only the files are real."""

    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__("flood", "Cell In[1]", Record(folder), dict[str, object]().__getitem__)
        self.state.apply(events.JobStarted(pid=1, host="here", ranks=ranks, simulated=True))
        for rank in range(ranks):
            self.state.apply(
                events.RankStarted(rank=rank, local_rank=rank, pid=rank, device="xla:0")
            )
        self.changed = threading.Condition()

    done = False


def watch(streams: int, rate: int, seconds: int) -> dict[str, float]:
    """Show a flood in a panel; what the kernel's process used of a core, messages and lines a
    second, and the lines that the files have in the end beside those that were written."""
    from xla_nb.panel import PanelView

    with tempfile.TemporaryDirectory() as folder:
        view: Any = PanelView(FloodedRun(Path(folder), streams))  # type: ignore[arg-type]
        messages, send = 0, view._page.send

        def counted(content: object, buffers: object = None) -> None:
            nonlocal messages
            messages += 1
            send(content, buffers)

        view._page.send = counted
        arguments = [folder, str(streams), str(rate), str(seconds)]
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
        )
        began, busy = time.monotonic(), time.process_time()
        while writer.poll() is None:
            time.sleep(view.draw())
        took, used = time.monotonic() - began, time.process_time() - busy
        assert writer.stdout is not None
        written = int(writer.stdout.read())
        view.finish()
        found = sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("rank-*.out"))
    return {
        "share": used / took,
        "messages": messages / took,
        "lines": written / took,
        "lost": written - found,
    }
