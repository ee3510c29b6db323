"""The files of a run: every file's name is spelled here and nowhere else.

A record is complete without the notebook that started the run, and only its owner can read it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any, Literal

from xla_nb.protocol.events import Event, encode
from xla_nb.record import private
from xla_nb.record.full_disk import Appender

#: Folders of the home: a notebook's runs, and this host's parts of other machines' runs.
Folder = Literal["runs", "parts"]
#: The endings of files that grow while ranks run; a sample is written over.
GROWING = ("out", "err", "history", "result", "displays")
SAMPLE = "now"
#: Seconds after which what nobody has touched is given up.
WEEK = 7 * 24 * 3600
_KEPT = 1 << 24  # bytes of events that wait for space on a full disk


def home() -> Path:
    """The folder of all records: $XLA_NB_HOME, else in the user's state directory (XDG). Raises
    OSError where it is relative to a folder that is gone."""
    chosen = os.environ.get("XLA_NB_HOME")
    if chosen:
        return Path(chosen).absolute()  # the run's processes are in folders of their own
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "xla_nb"


class Record:
    """The record of one run, at `path`.

    program/NAME.py   the module that ranks ran     program/NAME.json        whose its lines are
    rank-R.result     what rank R returned          rank-R.out, rank-R.err   their output
    rank-R.now        its newest sample             rank-R.history           what it reported
    rank-R.raised     what it raised                rank-R.displays          what it displayed
    module.result     what the cell's module bound  job.out, job.err         the job's output
    events.jsonl      what happened                 run.json                 the summary
    stacks, alone     requests to ranks             owner                    who needs it
    arrivals.json     when lines were seen
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = str(path)

    # Live ranks have a record for each of their programs, add no events to it, and need no Path:
    # to make a few would take each of them a twentieth of the way to its code.

    @functools.cached_property
    def path(self) -> Path:
        return Path(self.folder)

    def of_rank(self, rank: int, ending: str) -> str:
        """The path of the rank's file whose name ends so."""
        return f"{self.folder}/{_of_rank(rank, ending)}"

    @functools.cached_property
    def _events(self) -> Appender:
        return Appender(self.events, _KEPT)

    def __repr__(self) -> str:
        return f"Record({self.folder!r})"

    def __fspath__(self) -> str:
        return self.folder

    @classmethod
    def create(cls, run: str, folder: Folder = "runs") -> Record:
        """A new, empty record. Raises OSError when it cannot be written, or the home is another
        user's."""
        record = cls(_own(folder) / run)
        private.make_folder(record.path)
        try:
            private.make_folder(record.program_folder)
            private.write(record._owner, _own_process(os.getpid()).encode())
            private.touch(record.stacks_request)  # now, for a full disk takes no new file later
            os.utime(record.stacks_request, (0, 0))
        except OSError:
            record.discard()
            raise
        return record

    def discard(self) -> None:
        """Remove it: it would be listed as a run in progress, which has never begun."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def program_folder(self) -> Path:
        return self.path / "program"

    def program(self, name: str) -> Path:
        return self.program_folder / f"{name}.py"

    def log(self, rank: int | None, stream: str = "out") -> Path:
        """A rank's stdout (`out`) or stderr (`err`); of the job if `rank` is None."""
        return self.path / (f"job.{stream}" if rank is None else _of_rank(rank, stream))

    def result(self, rank: int) -> Path:
        return self.path / _of_rank(rank, "result")

    def raised(self, rank: int) -> Path:
        """The exception that ended a rank, if it can be sent."""
        return self.path / _of_rank(rank, "raised")

    def results(self) -> dict[int, Path]:
        """The results that are there, by rank."""
        paths = self.path.glob("rank-*.result")
        ranks = {path: path.stem.partition("-")[2] for path in paths}
        return {int(rank): path for path, rank in ranks.items() if rank.isdecimal()}

    def history(self, rank: int) -> Path:
        return self.path / _of_rank(rank, "history")

    def displays(self, rank: int) -> Path:
        return self.path / _of_rank(rank, "displays")

    def sample(self, rank: int) -> Path:
        return self.path / _of_rank(rank, "now")

    @property
    def stacks_request(self) -> str:
        """Touched to ask the ranks for their stacks; of 1970 until then."""
        return f"{self.folder}/stacks"

    @property
    def others_ended(self) -> Path:
        """Touched on host 0 when the ranks of all other hosts have ended."""
        return self.path / "alone"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """Written when the run has ended."""
        return self.path / "run.json"

    @property
    def arrivals(self) -> Path:
        """Written when the view that followed the run has ended."""
        return self.path / "arrivals.json"

    @property
    def _owner(self) -> Path:
        return self.path / "owner"

    @property
    def is_owned(self) -> bool:
        """Whether a living process needs the record: it launched the run, or has it open.

        A process on another machine that shares the home counts as alive for a week."""
        lives = self._owner_lives()
        return _age(self._owner) < WEEK if lives is None else lives

    @property
    def is_mine(self) -> bool:
        """Whether it is this process that needs the record."""
        return self._owner_fields() == _own_process(os.getpid()).split()

    def is_lost(self, *, at_once: bool = False) -> bool:
        """Whether a run that has not ended never will: its process is gone, and nothing was touched
        for a week. `at_once`: without the week, if the process is known to be gone."""
        if self.is_owned:
            return False
        return (at_once and self._owner_lives() is False) or _age(self.path) > WEEK

    def _owner_fields(self) -> list[str]:
        try:
            return private.read(self._owner).decode(errors="replace").split()
        except OSError:
            return []

    def _owner_lives(self) -> bool | None:
        """None if that cannot be known: there is no owner, or it is on another machine."""
        pid, *rest = self._owner_fields() or [""]
        if not rest or rest[1:] not in ([], [os.uname().nodename]):
            return None
        try:
            return _process(int(pid)).split()[1] == rest[0]
        except (OSError, ValueError):
            return False

    @property
    def nbytes(self) -> int:
        """Bytes of all files; of an ended run as its summary has them, and what waits for its
        notebook."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return int(json.loads(private.read(self.summary))["bytes"])
        return _bytes_in(self.path)

    def add(self, event: Event | None = None) -> None:
        """Record an event, and those that had no space. Raises OSError where some still wait. Of
        one thread at a time."""
        line = b"" if event is None else encode(event) + b"\n"
        try:
            self._events.add(line)
        finally:
            self._events.close()

    def own(self) -> None:
        """Mark the record as needed by this process."""
        with contextlib.suppress(OSError):  # another process has removed it
            private.write(self._owner, _own_process(os.getpid()).encode())

    def disown(self) -> None:
        """Mark the record as no longer needed by the process that needed it."""
        self._owner.unlink(missing_ok=True)

    def close(self, summary: dict[str, Any]) -> None:
        """Write the summary, with the bytes of all files; from now on the run has ended.

        On a full disk the summary is cut short: that it is there says that the run has ended."""
        scratch = partial(self.summary)
        with contextlib.suppress(OSError):
            self.add()
        with contextlib.suppress(OSError):
            text = json.dumps({**summary, "bytes": _bytes_in(self.path)}, indent=2)
            private.write(scratch, text.encode())
        with contextlib.suppress(OSError):
            scratch.rename(self.summary)


def _of_rank(rank: int, ending: str) -> str:
    return f"rank-{rank}.{ending}"


def lines(program: Path) -> Path:
    """Beside a program's file: whose its lines are (`program.module_file.ModuleMap`)."""
    return program.with_suffix(".json")


def _own(folder: Folder) -> Path:
    """A folder of the home, this user's alone. Raises OSError."""
    top = home()
    inner = top / folder
    for path in (top, inner):
        private.own_folder(path)
    return inner


def records(folder: Folder = "runs") -> list[Record]:
    """All records of the home, the newest first. Raises OSError."""
    root = home() / folder
    with os.scandir(root) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Record(root / name) for name in sorted(folders, reverse=True) if name[0] != "."]


def partial(path: Path) -> Path:
    """Where to write a file before renaming it to `path`, so that it is whole or absent."""
    return path.with_name(f"{path.name}.partial")


def _process(pid: int) -> str:
    """A process by its id, its start time (proc(5)), because ids are reused, and its machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid} {fields[19]} {os.uname().nodename}"


@functools.cache
def _own_process(pid: int) -> str:
    """The same of the calling process, which has this id as long as it lives."""
    return _process(pid)


def _age(path: Path) -> float:
    """Seconds since a file, or any file of a folder, was touched; without end if it is gone.

    A folder's own time does not change as its files grow."""
    try:
        files = [path, *path.iterdir()] if path.is_dir() else [path]
        return time.time() - max(file.stat().st_mtime for file in files)
    except FileNotFoundError:
        return math.inf


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _bytes_in(folder: Path) -> int:
    """Of all files in it; none where somebody has removed it."""
    try:
        with os.scandir(folder) as entries:
            found = [(Path(entry), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return 0
    return sum(_bytes_in(path) if is_folder else _size(path) for path, is_folder in found)
