"""The notebook's record of a run whose ranks are elsewhere.

The rule: it is written as ranks on this machine would write it, so that nothing which reads a
record can tell the difference; but for logs, of which a host keeps the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from xla_nb.engines.ray.outbox import FileChunk
from xla_nb.errors import XlaNbError


class Unwritable(XlaNbError):
    """This machine does not keep what came: its disk is full, or the record is gone."""


class Mirror:
    """The files of the record at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replaced: dict[str, int] = {}

    def take(self, pieces: Iterable[FileChunk]) -> None:
        """Write what came. Raises Unwritable."""
        try:
            for piece in pieces:
                self._take(piece)
        except OSError as problem:
            raise Unwritable(
                "what the ranks wrote cannot be kept on the notebook's machine, in "
                f"{self._path}: {problem}. The run was ended. What to do: make space on that disk, "
                "or set XLA_NB_HOME to a folder of yours that has space"
            ) from problem

    def _take(self, piece: FileChunk) -> None:
        path = self._path / Path(piece.name).name
        if piece.mode == "append":
            _put(path, piece.data, os.O_APPEND)
        else:
            # Over the last sample, in one write; spaces cover what was longer (meter.py).
            last = self._replaced.get(piece.name, 0)
            _put(path, piece.data.ljust(last), 0)
            self._replaced[piece.name] = max(last, len(piece.data))


def _put(path: Path, data: bytes, how: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
