"""What ranks ask (`input()`, `getpass`) is asked in the notebook, one question at a time, in order.

The thread that draws asks, with the `input` of its own process: the front end's. Meanwhile it draws
nothing. A question ends with its answer, with an interrupt, or when its rank waits no longer.
"""

from __future__ import annotations

import getpass
import signal
import threading
import time
from types import TracebackType
from typing import Self

from xla_nb import ansi
from xla_nb.protocol import questions
from xla_nb.protocol.events import Asked
from xla_nb.run.run import Run

#: Seconds that a view has to show what was printed before a question.
_FIRST = 0.2
_TICK = 0.1  # seconds between two looks whether the rank still waits
_FIX = "Ask before the launch, and give the answer as an argument."
_NOWHERE = f"Nobody can be asked here: this front end takes no input. {_FIX}"
_IN_A_THREAD = f"Nobody can be asked: the run was launched in a thread, not by the cell. {_FIX}"


def serve(run: Run, interrupts: list[int]) -> None:
    """Ask what a rank has asked, if any has, and send it the answer. An interrupt of the question
    is added to `interrupts`."""
    asked = next(filter(questions.is_open, run.state.questions), None)
    if asked is None or run.state.stopping or time.time() - asked.at < _FIRST:
        return
    if threading.current_thread() is not threading.main_thread():
        questions.answer(asked, refusal=_IN_A_THREAD)
        return
    with _Watch(run, asked) as watch:
        try:
            questions.answer(asked, _ask(asked))
        except (EOFError, NotImplementedError, OSError):  # IPython has its own NotImplementedError
            questions.answer(asked, refusal=_NOWHERE)
    if watch.is_interrupted:
        interrupts.append(signal.SIGINT)


def _ask(asked: Asked) -> str:
    prompt = f"rank {asked.rank} asks: {ansi.plain(asked.prompt)}"
    return getpass.getpass(prompt) if asked.secret else input(prompt)


class _Watch:
    """While the main thread waits for an answer: an interrupt ends that, and so does the end of
    whoever has asked."""

    def __init__(self, run: Run, asked: Asked) -> None:
        self._run, self._asked = run, asked
        self._over = threading.Event()
        self._is_withdrawn = False
        self.is_interrupted = False
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
        self.is_interrupted = isinstance(error, KeyboardInterrupt) and not self._is_withdrawn
        return isinstance(error, KeyboardInterrupt)

    def _look(self) -> None:
        while not self._over.wait(_TICK):
            if self._run.state.stopping or not questions.is_open(self._asked):
                self._is_withdrawn = True
                # Not interrupt_main: that would not end a read of a terminal.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
