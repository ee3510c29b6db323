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


class _Handler:
    """Counts the interrupts that another handler gets.

    That is called in its place, not by it: a traceback that ends here would be below each cell that
    the user interrupts. Counting takes no lock, as the main thread may hold any."""

    def __init__(self) -> None:
        self.count = 0
        self.other: Callable[[int, FrameType | None], Any] = signal.default_int_handler

    @property
    def __call__(self) -> Callable[[int, FrameType | None], Any]:
        self.count += 1
        return self.other


class Interrupts:
    """Those of one shell's cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._handler = _Handler()

    def turn_on(self) -> None:
        if self.before_cell not in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.register("pre_run_cell", self.before_cell)

    def turn_off(self) -> None:
        if self.before_cell in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.unregister("pre_run_cell", self.before_cell)
        if signal.getsignal(signal.SIGINT) is self._handler:
            signal.signal(signal.SIGINT, self._handler.other)

    def before_cell(self, _info: object = None) -> None:
        """Stand before the handler that ipykernel sets for each cell."""
        there = signal.getsignal(signal.SIGINT)
        if callable(there) and there is not self._handler:
            with contextlib.suppress(ValueError):  # a kernel may execute cells in other threads
                signal.signal(signal.SIGINT, self._handler)
                self._handler.other = there

    def watching(self) -> Callable[[Run], None]:
        """What is called with a run that this thread waits for; interrupts count from now on."""
        seen = self._handler.count

        def watch(run: Run) -> None:
            if threading.current_thread() is not threading.main_thread():
                name = f"xla_nb-interrupts-{run.name}"
                threading.Thread(
                    target=self._watch, args=(run, seen), name=name, daemon=True
                ).start()

        return watch

    def _watch(self, run: Run, seen: int) -> None:
        while not run.done:
            if self._handler.count != seen:
                seen = self._handler.count
                run.stop(INTERRUPTED)
            with run.changed:
                run.changed.wait(_LOOK)


@functools.cache
def of(shell: Any) -> Interrupts:
    """Those of a shell."""
    return Interrupts(shell)
