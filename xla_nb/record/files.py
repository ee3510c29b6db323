"""The files of a run: every file's name is spelled here and nowhere else.

A record is complete without the notebook that started the run, and only its owner can read it.
On a full disk, data that fits is kept, lost data is reported once, and no process ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from xla_nb.messages.events import Event, encode
from xla_nb.record import private

#: Folders of the home: a notebook's runs, and this host's parts of other machines' runs.
Folder = Literal["runs", "parts"]
#: The endings of files that grow while ranks run; a sample is overwritten.
GROWING = ("out", "err", "switches", "history", "result", "displays")
SAMPLE = "now"
_CELLS = "cells"
_NAME = re.compile(r"[\w-]+")  # of a run
#: Seconds after which an untouched record is given up.
WEEK = 7 * 24 * 3600
_MAX_WAITING = 1 << 24  # bytes of events that wait for space on a full disk


def home() -> Path:
    """The folder of all records: $XLA_NB_HOME, else in the user's state directory (XDG). Raises
    OSError if it is relative to a folder that is gone."""
    override = os.environ.get("XLA_NB_HOME")
    if override:
        # Absolute, because the run's processes have other working directories.
        return Path(override).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "xla_nb"


class _Named:
    """The path of what a record has under a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, record: Record, _: type[Record]) -> Path:
        return record.path / self._name


class Record:
    """The record of one run, at `path`.

    program/NAME.py   the module that ranks loaded  program/NAME.json        origin of its lines
    rank-R.result     rank R's return value         rank-R.out, rank-R.err   its output
    rank-R.now        its newest sample             rank-R.history           its reported figures
    rank-R.raised     its exception                 rank-R.displays          its displays
    rank-R.switches   the order of its output       job.out, job.err, job.switches   the job's
    module.result     names the cell's module bound
    events.jsonl      all events                    run.json                 the summary
    stacks, alone     requests to ranks             owner                    the process needing it
    arrivals.json     when lines were seen          cells/NAME               a record for each cell
                                                                             of live ranks
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = str(path)

    # Live ranks have a record for each of their programs, add no events to it, and need no Path:
    # creating a few would take each rank a twentieth of the time until its code runs.

    @functools.cached_property
    def path(self) -> Path:
        return Path(self.folder)

    def of_rank(self, rank: int | None, ending: str) -> str:
        """The path of the rank's file with this ending; the job's if `rank` is None."""
        return f"{self.folder}/{'job' if rank is None else f'rank-{rank}'}.{ending}"

    def log(self, rank: int | None, ending: str = "out") -> Path:
        """The log of its stdout (`out`), or another of its files, as a Path."""
        return Path(self.of_rank(rank, ending))

    result = functools.partialmethod(log, ending="result")
    raised = functools.partialmethod(log, ending="raised")  # if the exception can be sent
    history = functools.partialmethod(log, ending="history")
    displays = functools.partialmethod(log, ending="displays")
    sample = functools.partialmethod(log, ending=SAMPLE)

    program_folder = _Named("program")
    events = _Named("events.jsonl")
    summary = _Named("run.json")  # written when the run has ended
    arrivals = _Named("arrivals.json")  # written when the view that followed it has ended
    others_ended = _Named("alone")  # touched on host 0 when all ranks of other hosts have ended
    _owner = _Named("owner")
    _cells = _Named(_CELLS)

    @functools.cached_property
    def _events(self) -> Appender:
        return Appender(self.events, _MAX_WAITING)

    def __fspath__(self) -> str:
        return self.folder

    @classmethod
    def create(cls, run: str, folder: Folder | Record = "runs") -> Record:
        """Create an empty record, in a folder of the home or among the cells of live ranks' record.
        Raises OSError if it cannot be written, or the home belongs to another user."""
        top, name = (folder.path, _CELLS) if isinstance(folder, Record) else (home(), folder)
        private.own_folder(top)  # it may have been removed
        private.own_folder(top / name)
        record = cls(top / name / run)
        record.path.mkdir(0o700)
        try:
            private.write(record._owner, _identify_process(os.getpid()).encode())
        except OSError:
            record.discard()
            raise
        return record

    def discard(self) -> None:
        """Remove it, or it would be listed as a run in progress, although it never began."""
        shutil.rmtree(self.path, ignore_errors=True)

    def cell(self, run: str) -> Record:
        """The record of a cell, in this record of live ranks."""
        return Record(self._cells / run)

    def cells(self) -> list[Record]:
        """The existing records of cells, newest first."""
        with contextlib.suppress(FileNotFoundError):
            return _records_in(self._cells)
        return []

    def program(self, name: str) -> Path:
        return self.program_folder / f"{name}.py"

    def results(self) -> dict[int, Path]:
        """The existing results, by rank."""
        paths = self.path.glob("rank-*.result")
        ranks = {path: path.stem.partition("-")[2] for path in paths}
        return {int(rank): path for path, rank in ranks.items() if rank.isdecimal()}

    @property
    def stacks_request(self) -> str:
        """Touched to ask the ranks for their stacks."""
        return f"{self.folder}/stacks"

    @property
    def is_owned(self) -> bool:
        """Whether a living process needs the record, or one of its live ranks' cells: it launched
        the run, or has it open."""
        return self._has_owner or any(cell._has_owner for cell in self.cells())

    @property
    def _has_owner(self) -> bool:
        """A process on another machine that shares the home counts as alive for a week."""
        pid, *fields = self._owner_fields() or [""]
        if not fields or fields[1:] not in ([], [os.uname().nodename]):
            return _age(self._owner) < WEEK
        try:
            return _identify_process(int(pid)).split()[1] == fields[0]
        except (OSError, ValueError):
            return False

    def is_lost(self) -> bool:
        """Whether an unended run will never end: its process is gone, and no file was touched for a
        week."""
        return not self.is_owned and _age(self.path) > WEEK

    def _owner_fields(self) -> list[str]:
        try:
            return private.read(self._owner).decode(errors="replace").split()
        except OSError:
            return []

    @property
    def nbytes(self) -> int:
        """Bytes of all files, except those of cells; for an ended run, as in its summary."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return int(json.loads(private.read(self.summary))["bytes"])
        return _bytes_in(self.path)

    def add(self, event: Event | None = None) -> None:
        """Record an event, and earlier ones that had no space. Raises OSError if some still wait.
        Call from one thread at a time."""
        line = b"" if event is None else encode(event) + b"\n"
        try:
            self._events.add(line)
        finally:
            self._events.close()

    def own(self) -> None:
        """Mark the record as needed by this process, if no other process needs it."""
        if not self._has_owner:
            with contextlib.suppress(OSError):  # another process removed it, or the disk is full
                private.write(self._owner, _identify_process(os.getpid()).encode())

    def disown(self) -> None:
        """Mark the record as no longer needed by this process; other processes' marks remain."""
        if self._owner_fields() == _identify_process(os.getpid()).split():
            self._owner.unlink(missing_ok=True)

    def close(self, summary: dict[str, Any]) -> None:
        """Write the summary, with the bytes of all files; this marks the run as ended.

        On a full disk the summary is cut short; its existence alone marks the run as ended."""
        scratch = partial(self.summary)
        with contextlib.suppress(OSError):
            self.add()
        with contextlib.suppress(OSError):
            text = json.dumps({**summary, "bytes": _bytes_in(self.path)}, indent=2)
            private.write(scratch, text.encode())
        with contextlib.suppress(OSError):
            scratch.rename(self.summary)


def lines(program: Path) -> Path:
    """The file beside a program with the cells of its lines (`program.module_file.ModuleMap`)."""
    return program.with_suffix(".json")


def records(folder: Folder = "runs") -> list[Record]:
    """All records of the home, newest first. Raises OSError."""
    return _records_in(home() / folder)


def find(name: str | os.PathLike[str]) -> Iterator[Record]:
    """The record at this path, and those with this name in the home; they may not exist."""
    yield Record(Path(name))
    yield Record(home() / "runs" / name)
    if _NAME.fullmatch(os.fspath(name)):
        with contextlib.suppress(OSError):  # there is no home yet
            yield from (record.cell(os.fspath(name)) for record in records())


def _records_in(folder: Path) -> list[Record]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Record(folder / name) for name in sorted(names, reverse=True) if name[0] != "."]


def partial(path: Path) -> Path:
    """The path to write to before renaming to `path`, so that the file is whole or absent."""
    return path.with_name(f"{path.name}.partial")


def _identify_process(pid: int) -> str:
    """Identify a process by id, start time (proc(5), since ids are reused) and machine. Raises
    OSError if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":  # its parent has not noticed yet
        raise ProcessLookupError(pid)
    return f"{pid} {fields[19]} {os.uname().nodename}"


def _age(path: Path) -> float:
    """Seconds since a file, or any file of a folder, was touched; infinity if it is gone.

    A folder's own time does not change as its files grow."""
    try:
        files = [path, *path.iterdir()] if path.is_dir() else [path]
        return time.time() - max(file.stat().st_mtime for file in files)
    except FileNotFoundError:
        return math.inf


def _bytes_in(folder: Path) -> int:
    """Bytes of all files in it, except those of cells; 0 if it was removed."""
    total = 0
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != _CELLS]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_size
    return total


# ---------------------------------------------------------------- a disk that may be full

#: Errors of the disk: full, quota, file size limit, broken.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE}
_FREE = " Free up space there, or set XLA_NB_HOME to a folder with more before the next launch."
_ADVICE = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: " Raise the limit on the size of files (`ulimit -f`).",
}


def is_of_disk(problem: OSError) -> bool:
    """Whether the disk could not take the data, rather than the file being wrong."""
    return problem.errno in _DISK_ERRORS


class Losses:
    """Reports, once per kind, data that could not be written to a folder."""

    def __init__(self, folder: str | Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self._reported: set[str] = set()

    def note(self, what: str, problem: OSError) -> None:
        """Report a loss; `what` completes "Cannot write all of its output"."""
        if what not in self._reported:
            self._reported.add(what)
            self._report(
                f"Cannot write {what}: {problem.strerror} ({self._folder}). The run continues."
                f"{_ADVICE.get(problem.errno or 0, '')}"
            )


class Appender:
    """A file that any thread can append whole lines to. Lines that do not fit wait in memory, up
    to `limit` bytes, until there is space again; beyond that they are lost.

    `add` opens the file if needed; the caller closes it.
    """

    def __init__(self, path: str | Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._file: int | None = None
        self._waiting = b""
        self._lock = threading.Lock()

    def add(self, line: bytes = b"") -> None:
        """Append waiting lines, and `line`. Raises OSError if some still wait, or are lost."""
        with self._lock:
            if len(self._waiting) + len(line) <= self._limit:
                self._waiting += line
            if self._file is None and self._waiting:
                self._file = private.writing(self._path, os.O_WRONLY | os.O_APPEND)
            while self._file is not None and self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
