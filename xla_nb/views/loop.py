"""Following a run: the loop in which the notebook's own thread waits for it, drawing its view.

The rule: views draw from this loop and from no other thread, so that they show something where
a kernel delivers nothing from its other threads; an interrupt stops the run and loses no output.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Protocol

from xla_nb.run.run import Run


class View(Protocol):
    """Something that shows a run."""

    def draw(self) -> float:
        """Show what is new; gives the seconds until it wants to be called again."""

    def finish(self) -> None:
        """Show the run's end, and what is to stay of it."""


class NoView:
    """Shows nothing (`--view none`)."""

    def draw(self) -> float:
        return 1.0

    def finish(self) -> None:
        return


def follow(run: Run, view: View) -> None:
    """Show a run until it has ended; an interrupt stops it."""
    with _interrupts() as interrupts:
        try:
            while not run.done:
                if interrupts:
                    run.stop("Stopped by an interrupt.")
                pause = view.draw()
                with run.changed:
                    if not run.done:
                        run.changed.wait(pause)
        except BaseException:
            run.stop("Stopped because its view failed.")
            raise
        finally:
            view.finish()


def follow_behind(run: Run, view: View) -> None:
    """The same in a thread, for a run in the background."""
    name = f"{run.name}-view"
    threading.Thread(target=follow, args=(run, view), name=name, daemon=True).start()


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collects SIGINTs instead of raising KeyboardInterrupt, which could fall between reading a
    line and writing it. Other threads than the main one are never interrupted."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
