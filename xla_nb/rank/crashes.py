"""The stack of a rank that crashes in native code: the rank leaves it in memory of its job, which
tells it with the death.

Python's faulthandler writes it, a signal handler that knows files only. In the rank's stderr its
lines, most of them of frames of ours, would bury the cell's own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from xla_nb.messages.events import ProcessDied

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_OURS = str(Path(__file__).parents[1])
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_FRAMES = 20
_LONGEST = 64 << 10  # bytes, of a stack as faulthandler writes it: 100 frames


class Crashes:
    """Made in the job, for so many processes that it forks."""

    def __init__(self, processes: int) -> None:
        self._files = [os.memfd_create("xla_nb-crash") for _ in range(processes)]

    def watch(self, local_rank: int) -> None:
        """In a rank: have its stack written if it crashes."""
        mine = self._files.pop(local_rank)
        self.close()
        os.write(mine, b"%d\n" % os.getpid())
        faulthandler.enable(mine, all_threads=False)

    def tell(self, death: ProcessDied) -> ProcessDied:
        """In the job: the death with what the process has left, if it has crashed."""
        if -death.status not in _CRASHES:
            return death
        for file in self._files:
            with contextlib.suppress(OSError):
                pid, _, text = os.pread(file, _LONGEST, 0).decode(errors="replace").partition("\n")
                if pid == str(death.pid):
                    return _told(death, text)
        return death

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _told(death: ProcessDied, text: str) -> ProcessDied:
    """faulthandler writes the innermost frame first; processes that the rank forked may have
    written theirs before."""
    frames = _FRAME.findall(text.rpartition("Fatal Python error")[2])
    files = [file for file, _, _ in frames]
    ours = next((at for at, file in enumerate(files) if file.startswith(_OURS)), len(frames))
    own = frames[:ours][:_FRAMES]
    # A cell's label is no path.
    place = next((f"{file}, line {line}" for file, line, _ in own if file[:1] not in "/<"), "")
    shown = [f'  File "{file}", line {line}, in {name}' for file, line, name in reversed(own)]
    stack = "\n".join(["Stack (most recent call last):", *shown]) if shown else ""
    return replace(death, place=place, stack=stack)
