"""Copy the files of a host's record to the notebook's record as they grow.

The notebook writes them as ranks on its machine would, so that readers of records see no
difference.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xla_nb.record import private
from xla_nb.record.files import GROWING, SAMPLE, partial

LARGEST = 8 << 20  # bytes of a chunk, at most


@dataclass(frozen=True)
class FileChunk:
    """Bytes to append to the file `name` of a record; `anew`: to replace its content."""

    name: str
    data: bytes
    anew: bool = False


class NewBytes:
    """The bytes added to the files at `record` since the last look."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._sent: dict[str, tuple[int, int]] = {}  # by name: inode and bytes
        self._samples: dict[str, bytes] = {}

    def look(self) -> Iterator[FileChunk]:
        """The chunks up to the current sizes of the files."""
        entries = []
        for name in sorted(os.listdir(self._record)):  # noqa: PTH208 # 20 times a second
            if _suffix(name) in (*GROWING, SAMPLE):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    entries.append((name, (self._record / name).stat()))
        return self._chunks(entries)

    def _chunks(self, entries: list[tuple[str, os.stat_result]]) -> Iterator[FileChunk]:
        for name, status in entries:
            if _suffix(name) == SAMPLE:
                content = private.read(self._record / name)
                if content != self._samples.get(name):
                    self._samples[name] = content
                    yield FileChunk(name, content, anew=True)
                continue
            inode, sent = self._sent.get(name, (status.st_ino, 0))
            anew = inode != status.st_ino or status.st_size < sent
            sent = 0 if anew else sent
            while sent < status.st_size:
                most = min(status.st_size - sent, LARGEST)
                data = private.part(self._record / name, sent, most)
                if not data:
                    break
                sent += len(data)
                self._sent[name] = status.st_ino, sent
                yield FileChunk(name, data, anew)
                anew = False


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


class Copies:
    """The notebook's copies of the files, in the record at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given_up: set[str] = set()  # files that did not fit: a gap would garble their lines

    def take(self, chunks: Iterable[FileChunk]) -> str:
        """Write chunks to the record. If something dispensable cannot be written, return a sentence
        saying so, once. Raises OSError for a result."""
        message = ""
        for chunk in chunks:
            try:
                if chunk.name not in self._given_up:
                    self._write(chunk)
            except OSError as problem:
                if _suffix(chunk.name) == "result" or not self._path.is_dir():
                    raise
                if not self._given_up:
                    message = (
                        "Some output and figures of ranks on other hosts were not saved: "
                        f"{problem.strerror} ({self._path}). The run continues."
                    )
                self._given_up.add(chunk.name)
        return message

    def _write(self, chunk: FileChunk) -> None:
        path = self._path / Path(chunk.name).name
        if chunk.anew:
            private.write(partial(path), chunk.data)
            partial(path).rename(path)
            return
        with os.fdopen(private.writing(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(chunk.data)
