"""The notebook's copy of the record of a run on other hosts.

Files are written as ranks on this machine would write them, so a reader of records sees no
difference, except that long logs are complete only on their hosts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from xla_nb.engines.ray.outbox import FileChunk
from xla_nb.errors import XlaNbError
from xla_nb.record import private


class Unwritable(XlaNbError):
    """The record cannot be written: the disk is full, or its folder is gone."""


class Mirror:
    """The files of the record at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replaced: dict[str, int] = {}

    def take(self, pieces: Iterable[FileChunk]) -> None:
        """Write chunks to the record. Raises Unwritable."""
        try:
            for piece in pieces:
                self._take(piece)
        except OSError as problem:
            raise Unwritable(
                "Could not write the ranks' output on the notebook's machine, in "
                f"{self._path}: {problem}. The run was ended. Free space on that disk, or set "
                "XLA_NB_HOME to a folder with space."
            ) from problem

    def _take(self, piece: FileChunk) -> None:
        path = self._path / Path(piece.name).name
        if piece.mode == "append":
            _put(path, piece.data, os.O_APPEND)
        else:
            # Overwrites the last sample in one write, padded to its length (rank/meter.py).
            last = self._replaced.get(piece.name, 0)
            _put(path, piece.data.ljust(last), 0)
            self._replaced[piece.name] = max(last, len(piece.data))


def _put(path: Path, data: bytes, flag: int) -> None:
    fd = private.writing(path, os.O_WRONLY | flag)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
