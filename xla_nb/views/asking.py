"""What ranks ask (`input()`, `getpass`) is asked in the notebook, one question at a time, in order.

The thread that draws asks, with the `input` of its own process: the front end's. Meanwhile another
one draws, where the front end shows what comes from that beside a question. A question ends with
its answer, with an interrupt, or when its rank waits no longer. It is put once: the rank may take a
while to take its answer.
"""

from __future__ import annotations

import getpass
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from xla_nb import ansi
from xla_nb.protocol import questions
from xla_nb.protocol.events import Asked
from xla_nb.run.run import Run

#: Seconds that a view has to show what was printed before a question.
_FIRST = 0.2
_TICK = 0.1  # seconds between two looks whether the rank still waits
_AGAIN = 1.0  # seconds until the wait for an answer is interrupted again: it may have missed that
_FIX = "Ask before the launch, and give the answer as an argument."
_NOWHERE = f"Nobody can be asked here: this front end takes no input. {_FIX}"
_IN_A_THREAD = f"Nobody can be asked: the run was launched in a thread, not by the cell. {_FIX}"


class Asking:
    """The questions of one run.

    draw        draws the view, and gives the seconds until the next call
    withdrawn   called when one has ended for which the front end goes on waiting
    interrupts  to which an interrupt of a question is added
    """

    def __init__(
        self,
        run: Run,
        draw: Callable[[], float],
        withdrawn: Callable[[], None],
        interrupts: list[int],
    ) -> None:
        self._run, self._draw = run, draw if _shows_both() else lambda: _TICK
        self._withdrawn, self._interrupts = withdrawn, interrupts
        self._put: list[Asked] = []

    def serve(self, heeded: int) -> None:
        """Ask what a rank has asked, if any has, and send it the answer. heeded: how many of the
        interrupts something was done about."""
        asking = self._run.state.questions
        self._put = [asked for asked in self._put if asked in asking]
        new = (asked for asked in asking if asked not in self._put)
        asked = next(filter(questions.is_open, new), None)
        if asked is None or self._run.state.stopping or time.time() - asked.at < _FIRST:
            return
        self._put.append(asked)
        if threading.current_thread() is not threading.main_thread():
            questions.answer(asked, refusal=_IN_A_THREAD)
            return
        question = _Question(self._run, asked, self._draw)
        before = signal.signal(signal.SIGINT, question.strike)
        try:
            if len(self._interrupts) == heeded:
                question.put()
        finally:
            signal.signal(signal.SIGINT, before)
        if question.is_interrupted:
            self._interrupts.append(signal.SIGINT)
        if question.was_broken_off:
            self._withdrawn()
        if question.problem is not None:
            raise question.problem


def _shows_both() -> bool:
    """Whether the front end shows output of other threads, and not in the line that is typed: not
    Colab, nor a terminal."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return hasattr(shell, "kernel") and "google.colab" not in sys.modules


def _ask(asked: Asked) -> str:
    prompt = f"rank {asked.rank} asks: {ansi.plain(asked.prompt)}"
    return getpass.getpass(prompt) if asked.secret else input(prompt)


class _Question:
    """One that is put. An interrupt breaks it off, and so does the end of whoever has asked."""

    def __init__(self, run: Run, asked: Asked, draw: Callable[[], float]) -> None:
        self._run, self._asked, self._draw = run, asked, draw
        self._over = threading.Event()
        self._is_waiting = False
        self._broken = float("-inf")  # when it was broken off last
        self._strikes = self._own = 0  # interrupts, and those of them that are not the user's
        self.was_broken_off = False
        self.problem: Exception | None = None  # of the view

    @property
    def is_interrupted(self) -> bool:
        """By the user."""
        return self._strikes > self._own

    def strike(self, _number: int, _frame: object) -> None:
        """An interrupt, in the main thread: raises KeyboardInterrupt where an answer is waited for,
        and nowhere else; again after a while, as Python may have dropped the first."""
        self._strikes += 1
        now = time.monotonic()
        if self._is_waiting and now - self._broken >= _AGAIN / 2:
            self._broken = now
            raise KeyboardInterrupt

    def put(self) -> None:
        """Wait for the answer, and send it."""
        watch = threading.Thread(target=self._look, name=f"{self._run.name}-asks", daemon=True)
        watch.start()
        try:
            answer, refusal = self._answer()
        finally:
            self._over.set()
            watch.join()
        if answer is not None:
            questions.answer(self._asked, answer, refusal=refusal)

    def _answer(self) -> tuple[str | None, str]:
        """The answer, None where nobody is to get one, and why there is an empty one."""
        try:
            try:
                self._is_waiting = True
                return (None, "") if self._strikes else (_ask(self._asked), "")
            finally:
                self._is_waiting = False
        except KeyboardInterrupt:
            self._is_waiting, self.was_broken_off = False, True
        except (EOFError, NotImplementedError, OSError):  # IPython has another NotImplementedError
            return "", _NOWHERE
        return None, ""

    def _look(self) -> None:
        """Break it off when it is over, and draw meanwhile."""
        struck = float("-inf")
        while not self._over.wait(self._drawn()):
            has_gone = self._run.done or not questions.is_open(self._asked)
            is_over = has_gone or bool(self._run.state.stopping) or self.problem is not None
            if is_over and time.monotonic() - struck >= _AGAIN:
                struck = time.monotonic()
                self._own += 1
                # Not interrupt_main: that would not end a read of a terminal.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _drawn(self) -> float:
        """Draw the view; seconds until the next look."""
        try:
            return _TICK if self.problem else min(_TICK, self._draw())
        except Exception as problem:
            self.problem = problem
            return 0.0
