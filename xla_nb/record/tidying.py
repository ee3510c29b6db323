"""How much of ended runs a home keeps, and what is removed when there is more.

A record stays while its run is in progress, and while a process that lives needs it (its `owner`).
Of the rest the newest stay, within the home's limits. Several processes may tidy one home at once:
a record is first renamed, which only one of them can do, and then deleted.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Collection
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path

from xla_nb.record import private
from xla_nb.record.files import Folder, Record, home, partial, records

_REMOVED = ".removed-"  # the names of records that are being deleted
# What may gather between two times of tidying: seconds, runs, and bytes.
_SECONDS, _RUNS, _BYTES = 60.0, 100, 64 << 20


@dataclass(frozen=True)
class Limits:
    """Ended runs that a home keeps: their number, and their bytes together."""

    runs: int = 20
    nbytes: int = 2 << 30


@dataclass
class Tidied:
    """What was removed (`freed` bytes), and the ended runs that stay because they are needed, which
    have `needed_bytes`; each by its name."""

    removed: list[str] = field(default_factory=list)
    freed: int = 0
    needed: list[str] = field(default_factory=list)
    needed_bytes: int = 0

    def is_over(self, most: Limits) -> bool:
        """Whether what is needed alone takes more than its bytes; many small ones are no matter."""
        return self.needed_bytes > most.nbytes


@dataclass
class Pace:
    """When a process tidies that ends runs in quick succession, as cells of live ranks do: to
    remove a record takes as long as to run such a cell, and for five seconds after it ext4 makes
    new files slowly, as it passes over each inode that has just been freed (`recently_deleted` in
    Linux, fs/ext4/ialloc.c)."""

    _since: float = field(default_factory=time.monotonic)
    _runs: int = 0
    _nbytes: int = 0

    def count(self, nbytes: int) -> bool:
        """Count a run that has ended, whose record has so many bytes. True when it is time to tidy,
        from when on it counts anew."""
        self._runs += 1
        self._nbytes += nbytes
        now = time.monotonic()
        if now - self._since < _SECONDS and self._runs < _RUNS and self._nbytes < _BYTES:
            return False
        self._since, self._runs, self._nbytes = now, 0, 0
        return True


def limits() -> Limits:
    """The limits of the home, which all notebooks that use it share."""
    try:
        stored = Limits(**json.loads(private.read(_file())))
    except (OSError, ValueError, TypeError):
        return Limits()
    return stored if all(type(value) is int for value in astuple(stored)) else Limits()


def set_limits(**changes: int | None) -> None:
    """Set limits of the home, by name; None is the default. Raises OSError."""
    values = {n: getattr(Limits, n) if value is None else value for n, value in changes.items()}
    new = replace(limits(), **values)
    if new != limits():
        private.own_folder(home())
        scratch = partial(_file())
        private.write(scratch, json.dumps(asdict(new)).encode())
        scratch.rename(_file())


def tidy(folder: Folder = "runs", needed: Collection[Path] = ()) -> Tidied:
    """Remove the oldest ended runs beyond the limits, and unended ones not touched for a week.

    `needed` are the records that this process needs; it gives up its other ended runs. Records that
    another living process needs stay, and count.
    """
    return _tidy(folder, needed, limits(), at_once=False)


def clean(folder: Folder = "runs", needed: Collection[Path] = ()) -> Tidied:
    """Remove all runs but those in progress and those that are needed."""
    return _tidy(folder, needed, Limits(0, 0), at_once=True)


def _file() -> Path:
    return home() / "limits.json"


def _tidy(folder: Folder, needed: Collection[Path], most: Limits, *, at_once: bool) -> Tidied:
    done = Tidied()
    with contextlib.suppress(OSError):  # there is no home yet, or it is another user's
        _finish_removals(home() / folder)
        everything = records(folder)
        ended = _by_their_end(everything)
        _claim(ended, {path.resolve() for path in needed})
        for record in _surplus(ended, most, done):
            _remove(record, done)
        for record in set(everything) - set(ended):
            if record.is_lost(at_once=at_once):
                _remove(record, done)
    return done


def _by_their_end(everything: list[Record]) -> list[Record]:
    """The records of ended runs, the newest first: by when they were launched, to the second, then
    by when they ended."""
    ended = {}
    for record in everything:
        with contextlib.suppress(FileNotFoundError):
            launched = record.path.name.rpartition("-")[0]
            ended[record] = launched, record.summary.stat().st_mtime_ns
    return sorted(ended, key=ended.__getitem__, reverse=True)


def _claim(ended: list[Record], needed: set[Path]) -> None:
    """Own the records that this process needs, and no others."""
    for record in ended:
        if record.path.resolve() in needed:
            if not record.is_owned:
                record.own()
        elif record.is_mine:
            record.disown()


def _surplus(ended: list[Record], most: Limits, done: Tidied) -> list[Record]:
    """The ended records that nobody needs and that are beyond the limits, newest first; notes those
    that are needed."""
    free = []
    for record in ended:
        if record.is_owned:
            done.needed.append(record.path.name)
            done.needed_bytes += record.nbytes
        else:
            free.append(record)
    count, nbytes = len(done.needed), done.needed_bytes
    for number, record in enumerate(free):
        count, nbytes = count + 1, nbytes + record.nbytes
        if count > most.runs or nbytes > most.nbytes:
            return free[number:]
    return []


def _remove(record: Record, done: Tidied) -> None:
    nbytes = record.nbytes
    gone = record.path.with_name(f"{_REMOVED}{record.path.name}")
    try:
        record.path.rename(gone)
    except OSError:  # another process has removed it
        return
    shutil.rmtree(gone, ignore_errors=True)
    done.removed.append(record.path.name)
    done.freed += nbytes


def _finish_removals(root: Path) -> None:
    """Delete what a process that ended in the middle has left."""
    for path in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(path, ignore_errors=True)
