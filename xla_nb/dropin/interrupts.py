"""An interrupt of the cell also ends the runs that threads of the program wait for: Python raises
it in the main thread alone, which may be waiting for these threads."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from xla_nb.run.run import Run
from xla_nb.views.loop import INTERRUPTED

_LOOK = 0.1  # seconds


class Interrupts:
    """Those of one shell's cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._count = 0
        self._next: Callable[[int, FrameType | None], Any] = signal.default_int_handler

    def turn_on(self) -> None:
        if self.before_cell not in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.register("pre_run_cell", self.before_cell)

    def turn_off(self) -> None:
        if self.before_cell in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.unregister("pre_run_cell", self.before_cell)
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.signal(signal.SIGINT, self._next)

    def before_cell(self, _info: object = None) -> None:
        """Stand before the handler that ipykernel sets for each cell."""
        there = signal.getsignal(signal.SIGINT)
        if callable(there) and there != self._interrupted:
            with contextlib.suppress(ValueError):  # a kernel may execute cells in other threads
                signal.signal(signal.SIGINT, self._interrupted)
                self._next = there

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._count += 1  # and no more: the main thread may hold any lock
        self._next(number, frame)

    def watching(self) -> Callable[[Run], None]:
        """What is called with a run that this thread waits for; interrupts count from now on."""
        seen = self._count

        def watch(run: Run) -> None:
            if threading.current_thread() is not threading.main_thread():
                name = f"xla_nb-interrupts-{run.name}"
                threading.Thread(
                    target=self._watch, args=(run, seen), name=name, daemon=True
                ).start()

        return watch

    def _watch(self, run: Run, seen: int) -> None:
        while not run.done:
            if self._count != seen:
                seen = self._count
                run.stop(INTERRUPTED)
            with run.changed:
                run.changed.wait(_LOOK)


@functools.cache
def of(shell: Any) -> Interrupts:
    """Those of a shell."""
    return Interrupts(shell)
