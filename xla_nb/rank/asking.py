"""`input()` and `getpass` in a rank ask the person at the notebook, and wait for the answer.

A debugger's prompt is not sent: its output would not be shown first (rank/process.py has the advice
to the user).
"""

from __future__ import annotations

import builtins
import os
import sys
import time
from typing import Any

from xla_nb.messages.channel import Sender
from xla_nb.messages.events import Answered, Asked
from xla_nb.messages.input_requests import Pipe, Refused
from xla_nb.patching import when_imported
from xla_nb.rank.threads import OfRank
from xla_nb.record import output
from xla_nb.record.sample import INPUT
from xla_nb.stopwatch import Wait

_OUTSIDE_RANK = (
    "input() works only in a function that runs on ranks, until it returns. Call it there, or "
    "before the launch."
)
_NO_CELL = (
    "A run in the background (--bg) or on a cluster (--on ray) has no cell for input(). Call it "
    "before the launch and pass the answer as an argument."
)


class Asker:
    """Sends one rank's questions. `mute`: it cannot ask, since its run has no cell."""

    def __init__(self, rank: int, sender: Sender, mute: bool) -> None:
        self._rank, self._sender, self._mute = rank, sender, mute
        self.waiting: Wait | None = None

    def ask(self, prompt: str, secret: bool) -> str:
        """Ask, and return the answer. Raises EOFError if nobody can answer."""
        if self._mute:
            raise EOFError(_NO_CELL)
        output.flush()  # show earlier output before the question
        with Pipe() as pipe:
            ids = {"rank": self._rank, "pid": os.getpid(), "fd": pipe.fd}
            self.waiting = Wait(INPUT, time.monotonic())
            try:
                self._sender.send(Asked(**ids, ino=pipe.ino, prompt=prompt, secret=secret))
                return pipe.answer()
            except Refused as refused:
                raise EOFError(str(refused)) from None
            finally:
                self.waiting = None
                self._sender.send(Answered(**ids))


#: The askers of this process's ranks.
askers: OfRank[Asker] = OfRank()


def install() -> None:
    """Have `input` and `getpass.getpass` ask in the ranks of this job."""
    builtins.input = _input
    when_imported("getpass", lambda module: vars(module).update(getpass=_getpass))


def _input(prompt: object = "", /) -> str:
    if sys._getframe(1).f_globals.get("__name__") == "cmd":  # called by pdb
        raise EOFError
    return _ask(prompt, secret=False)


def _getpass(prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
    return _ask(prompt, secret=True)


def _ask(prompt: object, secret: bool) -> str:
    asker = askers.here()
    if asker is None:  # the cell's top level, or a thread that outlives its rank
        raise EOFError(_OUTSIDE_RANK)
    return asker.ask(str(prompt), secret)
