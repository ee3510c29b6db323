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
from types import TracebackType
from typing import Any, Self

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

    def serve(self) -> None:
        """Ask what a rank has asked, if any has, and send it the answer."""
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
        with _Watch(self._run, asked, self._draw) as watch:
            try:
                questions.answer(asked, _ask(asked))
            # IPython has a NotImplementedError of its own.
            except (EOFError, NotImplementedError, OSError):
                questions.answer(asked, refusal=_NOWHERE)
        if watch.is_interrupted:
            self._interrupts.append(signal.SIGINT)
        if watch.has_struck:
            self._withdrawn()
        if watch.problem is not None:
            raise watch.problem


def _shows_both() -> bool:
    """Whether the front end shows output of other threads, and not in the line that is typed: not
    Colab, nor a terminal."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return hasattr(shell, "kernel") and "google.colab" not in sys.modules


def _ask(asked: Asked) -> str:
    prompt = f"rank {asked.rank} asks: {ansi.plain(asked.prompt)}"
    return getpass.getpass(prompt) if asked.secret else input(prompt)


class _Watch:
    """While the main thread waits for an answer: an interrupt ends that, and so does the end of
    whoever has asked."""

    def __init__(self, run: Run, asked: Asked, draw: Callable[[], float]) -> None:
        self._run, self._asked, self._draw = run, asked, draw
        self._over = threading.Event()
        self._is_withdrawn = False
        self.is_interrupted = False
        self.has_struck = False
        self.problem: Exception | None = None  # of the view
        self._thread = threading.Thread(target=self._look, name=f"{run.name}-asks", daemon=True)

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            self._over.set()
            self._thread.join()
        except KeyboardInterrupt as late:
            error = late
        finally:
            signal.signal(signal.SIGINT, self._before)
        self.has_struck = isinstance(error, KeyboardInterrupt)
        self.is_interrupted = self.has_struck and not self._is_withdrawn
        return self.has_struck

    def _look(self) -> None:
        struck = float("-inf")
        while not self._over.wait(self._drawn()):
            is_over = self._run.state.stopping or not questions.is_open(self._asked)
            if (is_over or self.problem) and time.monotonic() - struck >= _AGAIN:
                self._is_withdrawn, struck = True, time.monotonic()
                # Not interrupt_main: that would not end a read of a terminal.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _drawn(self) -> float:
        """Draw the view; seconds until the next look."""
        try:
            return _TICK if self.problem else min(_TICK, self._draw())
        except Exception as problem:
            self.problem = problem
            return 0.0
