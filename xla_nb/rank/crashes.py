"""Python stack of a rank that crashed in native code, written to a memfd of the job, which reports
it with the death.

Python's faulthandler writes it in a signal handler, which can only write to a file. In the rank's
stderr its lines, mostly our frames, would bury the cell's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from xla_nb.messages.events import ProcessDied

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_OURS = str(Path(__file__).parents[1])
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_MAX_FRAMES = 20
_LONGEST = 64 << 10  # most bytes of faulthandler's stack: it has 100 frames


class Crashes:
    """Crash files, created in the job for each process that it forks."""

    def __init__(self, processes: int) -> None:
        self._files = [os.memfd_create("xla_nb-crash") for _ in range(processes)]

    def watch(self, local_rank: int) -> None:
        """In a rank: have faulthandler write its stack if it crashes."""
        file = self._files.pop(local_rank)
        self.close()
        os.write(file, b"%d\n" % os.getpid())
        faulthandler.enable(file, all_threads=False)

    def tell(self, death: ProcessDied) -> ProcessDied:
        """In the job: the death, with the place and stack if the process crashed."""
        if -death.status not in _CRASHES:
            return death
        for file in self._files:
            with contextlib.suppress(OSError):
                pid, _, text = os.pread(file, _LONGEST, 0).decode(errors="replace").partition("\n")
                if pid == str(death.pid):
                    return _with_stack(death, text)
        return death

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _with_stack(death: ProcessDied, text: str) -> ProcessDied:
    """The death with the stack in `text`. faulthandler writes the innermost frame first; processes
    that the rank forked may have written theirs before."""
    frames = _FRAME.findall(text.rpartition("Fatal Python error")[2])[:_MAX_FRAMES]
    inner = [*itertools.takewhile(lambda frame: not frame[0].startswith(_OURS), frames)]
    # A cell's label is not a path.
    place = next((f"{file}, line {line}" for file, line, _ in inner if file[:1] not in "/<"), "")
    lines = [f'  File "{file}", line {line}, in {name}' for file, line, name in reversed(inner)]
    stack = "\n".join(["Stack (most recent call last):", *lines]) if lines else ""
    return replace(death, place=place, stack=stack)
