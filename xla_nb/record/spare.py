"""A record that is made ahead, for the next run of live ranks.

To make the files takes a short cell a tenth of its time, and half of it where files have just been
removed (`tidying.Pace`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence

from xla_nb.record.files import Record

#: The names of records that no run has yet.
NAMES = ".spare-"


class Spare:
    """One record that no run has yet, or none, with a file for a program of this name. Of any
    thread, in the process that made it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._made: Record | None = None
        self._ranks: Sequence[int] = ()
        self._pid = os.getpid()
        self._is_over = False

    def make(self, ranks: Sequence[int]) -> None:
        """Make one for a run whose ranks on this machine are these, unless there is one."""
        with self._lock, contextlib.suppress(OSError):  # the next run tells what is wrong
            if self._made is None and not self._is_over:
                self._made, self._ranks = _with_files(ranks, self._program), ranks

    def take(self, run: str, ranks: Sequence[int]) -> Record:
        """The record of a run with these ranks, as from `Record.create`. Raises as that does."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                if ranks == self._ranks:
                    return made.named(run)
            made.discard()
        return Record.create(run)

    def discard(self) -> None:
        """Remove it, and make no other."""
        with self._lock:
            made, self._made = self._made, None
            self._is_over = True
        if made is not None and self._pid == os.getpid():
            made.discard()


def _with_files(ranks: Sequence[int], program: str) -> Record:
    record = Record.create(f"{NAMES}{secrets.token_hex(4)}")
    try:
        record.make_files(ranks, program)
    except BaseException:
        record.discard()
        raise
    return record
