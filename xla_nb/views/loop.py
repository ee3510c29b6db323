"""The loop in which the notebook's main thread waits for a run and draws its view.

Views draw only from this loop, but while it waits for an answer (asking.py): some kernels (Colab's)
deliver nothing from other threads. An interrupt stops the run and loses no output.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from xla_nb.errors import Interrupted
from xla_nb.run.run import Run
from xla_nb.views.asking import Asking

#: Why a run has stopped that the user interrupted.
INTERRUPTED = "Stopped by an interrupt"
#: The same where the kernel was interrupted since it is to end, which is known a moment later.
KERNEL_ENDED = "Stopped because the kernel was shut down or restarted"

#: Seconds for each rank, and at most, from one drawing to the next: it takes time that ranks lack.
_EACH, _REST = 0.0002, 0.02
_TOO_LATE = "All ranks have returned; `xla_nb.open_run({!r})` has their results."


class View(Protocol):
    """Something that shows a run."""

    def draw(self) -> float:
        """Show what is new. Returns the seconds until the next call."""

    def finish(self) -> None:
        """Show how the run ended, and leave what the notebook keeps of it."""

    def withdraw(self) -> None:
        """Have the front end wait no longer for the answer to a question."""


class NoView:
    """Shows nothing (`--view none`)."""

    def draw(self) -> float:
        return 1.0

    def finish(self) -> None:
        return

    def withdraw(self) -> None:
        return


def follow(run: Run, view: View) -> None:
    """Show a run until it ends; an interrupt stops it.

    One that came when the ranks had returned raises Interrupted: it is for the program that has
    launched, which else goes on with its next launch.
    """
    with _interrupts() as interrupts:
        try:
            answered = 0
            asking = Asking(run, view.draw, view.withdraw, interrupts)
            while not run.done:
                if len(interrupts) > answered:
                    answered += 1
                    run.stop(INTERRUPTED)  # a second time: less time to stop
                if run.state.stopping == INTERRUPTED and _ends_here():
                    run.stops_because(KERNEL_ENDED)
                run.urgent.clear()
                pause = view.draw()
                asking.serve(answered)
                _wait(run, pause)
        except BaseException:
            run.stop("Stopped because its view failed")
            raise
        finally:
            view.finish()
            with contextlib.suppress(OSError):  # a full disk, or the record was removed
                run.arrivals.save(run.record)
    if interrupts and run.ok:
        raise Interrupted(_TOO_LATE.format(run.name))


def _wait(run: Run, pause: float) -> None:
    """Wait for news, or so long."""
    rest = min(pause, _REST, _EACH * len(run.state.ranks))
    if run.urgent.wait(rest):
        return
    with run.changed:
        if not run.done:
            run.changed.wait(pause - rest)


def follow_behind(run: Run, view: View) -> None:
    """Follow a run in the background, in a thread."""

    def shown() -> None:
        try:
            follow(run, view)
        finally:
            run.shown.set()

    run.shown.clear()
    threading.Thread(target=shown, name=f"{run.name}-view", daemon=True).start()


def _ends_here() -> bool:
    """Whether the kernel has been told to end; the request is handled in another thread."""
    ipython: Any = sys.modules.get("IPython")
    return bool(ipython and getattr(ipython.get_ipython(), "exit_now", False))


@contextlib.contextmanager
def launching() -> Iterator[Callable[[], None]]:
    """An interrupt stops the run that is launched and followed here, however early it comes: no
    run is left without anybody who follows it. A second one before that is a KeyboardInterrupt, as
    is one of which no run that is followed has heard. A launch that waits, and has started nothing,
    calls what this gives: that raises KeyboardInterrupt if there was an interrupt."""
    with _interrupts(most=1) as interrupts:
        yield interrupts.end_a_wait
    if interrupts and not interrupts.heard:
        raise KeyboardInterrupt


class _Interrupts(list[int]):
    """The SIGINTs so far, of which at most so many are collected until a run is followed."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most
        self.heard = most is None

    def __call__(self, number: int, _frame: object) -> None:
        if not self.heard and self._most is not None and len(self) >= self._most:
            raise KeyboardInterrupt
        self.append(number)

    def end_a_wait(self) -> None:
        if self and not self.heard:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupts(most: int | None = None) -> Iterator[_Interrupts]:
    """Collects SIGINTs. A KeyboardInterrupt could be raised between reading a line and writing it.

    Only the main thread is ever interrupted. Within `launching`, those that came since it began.
    """
    interrupts = _Interrupts(most)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, _Interrupts):
        before.heard = True
        yield before
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
