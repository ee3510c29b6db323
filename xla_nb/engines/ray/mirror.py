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
from xla_nb.record.files import Losses, is_of_disk, kind, partial


class Unwritable(XlaNbError):
    """A result cannot be written, as the disk is full, or nothing, as the folder is gone."""


class Mirror:
    """The files of the record at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replaced: dict[str, int] = {}
        self._ended: set[str] = set()  # files that did not fit: a gap in one would mix up lines
        self._told: list[str] = []
        self._losses = Losses(path, self._told.append)

    def take(self, pieces: Iterable[FileChunk]) -> list[str]:
        """Write chunks to the record; gives a sentence if something does not fit that a run can do
        without. Raises Unwritable."""
        try:
            for piece in pieces:
                if piece.mode == "anew":
                    self._ended.discard(piece.name)
                if piece.name not in self._ended:
                    self._take_or_end(piece)
        except OSError as problem:
            raise Unwritable(
                "Could not write the ranks' results on the notebook's machine, in "
                f"{self._path}: {problem}. The run was ended. Free space on that disk, or set "
                "XLA_NB_HOME to a folder with space."
            ) from problem
        told = self._told.copy()
        self._told.clear()
        return told

    def _take_or_end(self, piece: FileChunk) -> None:
        try:
            self._take(piece)
        except OSError as problem:
            if kind(piece.name) == "result" or not is_of_disk(problem):
                raise
            if piece.mode != "replace":
                self._ended.add(piece.name)
            self._losses.note("all that ranks of other hosts print and report", problem)

    def _take(self, piece: FileChunk) -> None:
        path = self._path / Path(piece.name).name
        if piece.mode == "append":
            _put(path, piece.data, os.O_APPEND)
        elif piece.mode == "anew":
            private.write(partial(path), piece.data)
            partial(path).rename(path)
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
