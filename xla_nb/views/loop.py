"""The loop in which the notebook's main thread waits for a run and draws its view.

An interrupt stops the run without losing output. While a question waits for its answer, another
thread draws the view, except in Colab, whose kernel delivers nothing from other threads.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from xla_nb import ansi
from xla_nb.errors import Interrupted
from xla_nb.messages import input_requests
from xla_nb.messages.events import Asked
from xla_nb.run.run import Run

#: Reason for a stop: the user interrupted the run.
INTERRUPTED = "Stopped by an interrupt"
#: Reason for a stop by the panel's Stop; the page interrupts the kernel if it is slow to react.
STOP_BUTTON = "Stopped by the Stop button"
#: Reason if the interrupt came from a shutdown of the kernel, which is known a moment later.
KERNEL_ENDED = "Stopped because the kernel was shut down or restarted"

#: Maximum seconds in which only urgent news is drawn: drawing takes CPU time from the ranks.
_URGENT_ONLY = 0.02
#: Seconds until a failed drawing is retried.
_RETRY = 2.0
_FAILED = "The view of run {} failed and will be retried ({}). The run continues."
_NO_RESULT = "Could not show the result of run {0} ({1}). `xla_nb.open_run({0!r})` shows it."
_TOO_LATE = "All ranks had returned; `import xla_nb; xla_nb.open_run({!r})` has their results."

log = logging.getLogger(__name__)


class View:
    """Shows a run; this one shows nothing (`--view none`)."""

    def draw(self) -> float:
        """Show what is new. Returns the seconds until the next call."""
        return 1.0

    def finish(self) -> None:
        """Show how the run ended, and leave the output that the notebook keeps."""

    def withdraw(self) -> None:
        """Make the front end stop waiting for the answer to a question."""


class Guarded(View):
    """Logs the first failure of a view and retries it: a failed view is no reason to end a run."""

    def __init__(self, run: Run, view: View) -> None:
        self._run, self._view = run, view
        self._has_failed = False

    def draw(self) -> float:
        try:
            return self._view.draw()
        except Exception as error:
            if not self._has_failed:
                log.warning(_FAILED.format(self._run.name, f"{type(error).__name__}: {error}"))
            self._has_failed = True
            return _RETRY

    def finish(self) -> None:
        try:
            self._view.finish()
        except Exception as error:
            log.warning(_NO_RESULT.format(self._run.name, f"{type(error).__name__}: {error}"))

    def withdraw(self) -> None:
        self._view.withdraw()


def follow(run: Run, view: View) -> None:
    """Show a run until it ends; an interrupt stops it.

    Raises Interrupted if an interrupt arrived after the ranks had returned: it is meant for the
    program that launched them, which would otherwise continue with its next launch.
    """
    view = Guarded(run, view)
    with launching() as interrupts:
        interrupts.is_followed = True
        try:
            handled = 0
            questions = _Questions(run, view, interrupts)
            pause = _URGENT_ONLY
            run.is_followed = True
            while not run.done:
                _wait(run, pause)
                if len(interrupts) > handled:
                    handled += 1
                    run.stop(INTERRUPTED, same=STOP_BUTTON)  # a repeat leaves less time to stop
                if run.state.stopping == INTERRUPTED and _is_kernel_ending():
                    run.stops_because(KERNEL_ENDED)
                run.urgent.clear()
                pause = view.draw()
                run.drawn.set()
                questions.serve(handled)
        except BaseException:
            run.stop("Stopped because it is no longer followed")
            raise
        finally:
            view.finish()
            with contextlib.suppress(OSError):  # a full disk, or the record was removed
                run.arrivals.save(run.record)
    if interrupts and run.ok:
        raise Interrupted(_TOO_LATE.format(run.name))


def _wait(run: Run, pause: float) -> None:
    """Wait for news, at most `pause` seconds."""
    urgent_only = min(pause, _URGENT_ONLY)
    if run.urgent.wait(urgent_only):
        return
    with run.changed:
        if not run.done:
            run.changed.wait(pause - urgent_only)


def follow_behind(run: Run, view: View) -> None:
    """Follow a run in a background thread."""

    def follow_and_signal() -> None:
        try:
            follow(run, view)
        finally:
            run.shown.set()

    run.shown.clear()
    threading.Thread(target=follow_and_signal, name=f"{run.name}-view", daemon=True).start()


def shell() -> Any:
    """The IPython shell of this process; None if there is none."""
    ipython: Any = sys.modules.get("IPython")
    return ipython and ipython.get_ipython()


def slot() -> Any:
    """Return a display handle for updatable output in the cell being executed."""
    from IPython.display import DisplayHandle

    return DisplayHandle()  # type: ignore[no-untyped-call]


def _is_kernel_ending() -> bool:
    """Return whether the kernel was asked to shut down; another thread handles that request."""
    return bool(getattr(shell(), "exit_now", False))


class Interrupts(list[int]):
    """The SIGINTs since a launch began. Until its run is followed, a second one raises
    KeyboardInterrupt."""

    is_followed = False

    def __call__(self, number: int, _frame: object) -> None:
        self.end_a_wait()
        self.append(number)

    def end_a_wait(self) -> None:
        """Raise KeyboardInterrupt after an interrupt of a launch that has started nothing yet."""
        if self and not self.is_followed:
            raise KeyboardInterrupt


@contextlib.contextmanager
def launching() -> Iterator[Interrupts]:
    """Collect SIGINTs, so that an interrupt stops the run that is launched and followed in this
    context, no matter how early it arrives: a KeyboardInterrupt could leave a run without a
    follower, or hit between reading a line and writing it. If no followed run has received an
    interrupt, the exit raises KeyboardInterrupt.

    Only the main thread is ever interrupted. In another `launching`, yields the SIGINTs of that.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous = signal.getsignal(signal.SIGINT)
    if isinstance(previous, Interrupts):
        yield previous
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
    interrupts.end_a_wait()


# ---------------------------------------------------------------- questions of ranks


#: Seconds for the view to show output that was printed before a question.
_QUESTION_DELAY = 0.2
_TICK = 0.1  # seconds between checks that the rank still waits
_REPEAT = 1.0  # seconds until the wait for an answer is interrupted again, if that was missed
_FIX = "Call input() before launching and pass the answer as an argument."
_UNSUPPORTED = f"This front end does not support input(). {_FIX}"
_IN_A_THREAD = f"input() is unavailable: the run was launched in a thread, not by the cell. {_FIX}"


class _Questions:
    """Asks the questions of one run. An interrupt of a question is added to `interrupts`."""

    def __init__(self, run: Run, view: View, interrupts: list[int]) -> None:
        self._run, self._view, self._interrupts = run, view, interrupts
        self._asked: list[Asked] = []

    def serve(self, handled: int) -> None:
        """Ask the next open question of a rank, if any, and send the answer. `handled`: number
        of interrupts already handled."""
        new = (event for event in self._run.state.questions if event not in self._asked)
        event = next(filter(input_requests.is_open, new), None)
        if event is None or self._run.state.stopping or time.time() - event.at < _QUESTION_DELAY:
            return
        self._asked.append(event)
        if threading.current_thread() is not threading.main_thread():
            input_requests.answer(event, refusal=_IN_A_THREAD)
            return
        dialog = _Question(self._run, event, self._view)
        previous = signal.signal(signal.SIGINT, dialog.strike)
        try:
            if len(self._interrupts) == handled:
                dialog.put()
        finally:
            signal.signal(signal.SIGINT, previous)
        if dialog.is_interrupted:
            self._interrupts.append(signal.SIGINT)
        if dialog.was_broken_off:
            self._view.withdraw()


def _ask(event: Asked) -> str:
    prompt = f"rank {event.rank} asks: {ansi.plain(event.prompt)}"
    return getpass.getpass(prompt) if event.secret else input(prompt)


class _Question:
    """A question being asked. An interrupt cancels it, and so does the end of the rank that asked.
    In a notebook, the view is drawn in the meantime."""

    def __init__(self, run: Run, event: Asked, view: View) -> None:
        self._run, self._event = run, event
        can_draw = hasattr(shell(), "kernel") and "google.colab" not in sys.modules
        self._view = view if can_draw else View()
        self._finished = threading.Event()
        self._is_waiting = False
        self._cancelled_at = float("-inf")  # time of the last cancellation
        self._interrupts_seen = self._interrupts_sent = 0  # all, and those sent here
        self.was_broken_off = False

    @property
    def is_interrupted(self) -> bool:
        """Whether the user interrupted the question."""
        return self._interrupts_seen > self._interrupts_sent

    def strike(self, _number: int, _frame: object) -> None:
        """Handle SIGINT in the main thread: raise KeyboardInterrupt only while waiting for an
        answer, and again after a while, because Python may have dropped the first."""
        self._interrupts_seen += 1
        now = time.monotonic()
        if self._is_waiting and now - self._cancelled_at >= _REPEAT / 2:
            self._cancelled_at = now
            raise KeyboardInterrupt

    def put(self) -> None:
        """Wait for the answer and send it."""
        watcher = threading.Thread(target=self._watch, name=f"{self._run.name}-asks", daemon=True)
        watcher.start()
        try:
            answer, refusal = self._answer()
        finally:
            self._finished.set()
            watcher.join()
        if answer is not None:
            input_requests.answer(self._event, answer, refusal=refusal)

    def _answer(self) -> tuple[str | None, str]:
        """Return the answer, None if none should be sent, and the reason if it is empty."""
        try:
            try:
                self._is_waiting = True
                return (None, "") if self._interrupts_seen else (_ask(self._event), "")
            finally:
                self._is_waiting = False
        except KeyboardInterrupt:
            self._is_waiting, self.was_broken_off = False, True
        except (EOFError, NotImplementedError, OSError):  # IPython has another NotImplementedError
            return "", _UNSUPPORTED
        return None, ""

    def _watch(self) -> None:
        """Draw the view, and cancel the question when its rank or the run no longer waits."""
        interrupted_at, drawn_at, pause = float("-inf"), time.monotonic(), _TICK
        while not self._finished.wait(_TICK):
            if time.monotonic() - drawn_at >= pause:
                drawn_at, pause = time.monotonic(), self._view.draw()
            is_closed = self._run.done or not input_requests.is_open(self._event)
            is_over = is_closed or bool(self._run.state.stopping)
            if is_over and time.monotonic() - interrupted_at >= _REPEAT:
                interrupted_at = time.monotonic()
                self._interrupts_sent += 1
                # Not interrupt_main, which would not end a read from a terminal.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
