"""The files of a run: every file's name is spelled here and nowhere else.

A record is complete without the notebook that started the run, and only its owner can read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Literal

from xla_nb.protocol.events import Event, encode
from xla_nb.record.full_disk import Appender

#: Ended runs to keep, newest first; runs of live processes do not count.
KEPT = 50
#: Folders of the home: a notebook's runs, and this host's parts of other machines' runs.
Folder = Literal["runs", "parts"]
#: What a file of a record holds, where ranks add to it while they run.
Kind = Literal["log", "history", "result", "sample"]
_KINDS: dict[str, Kind] = {
    "out": "log",
    "err": "log",
    "history": "history",
    "result": "result",
    "now": "sample",
}
_WEEK = 7 * 24 * 3600
_KEPT = 1 << 24  # bytes of events that wait for space on a full disk


def home() -> Path:
    """The folder of all records: $XLA_NB_HOME, else in the user's state directory (XDG)."""
    chosen = os.environ.get("XLA_NB_HOME")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "xla_nb"


class Record:
    """The record of one run, at `path`.

    program/NAME.py   the module that ranks ran     rank-R.out, rank-R.err   their output
    rank-R.result     what rank R returned          rank-R.history           what it reported
    rank-R.now        its newest sample             job.out, job.err         the job's output
    module.result     what the cell's module bound
    events.jsonl      what happened                 run.json                 the summary
    stacks, alone     requests to ranks             owner                    who launched the run
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events = Appender(self.events, _KEPT)

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, run: str, folder: Folder = "runs") -> Record:
        """A new, empty record. Raises OSError when it cannot be written."""
        path = home() / folder / run
        path.mkdir(parents=True, mode=0o700)
        record = cls(path)
        record.program_folder.mkdir(mode=0o700)
        record._owner.write_text(_process(os.getpid()))
        record.stacks_request.touch()  # now, for a full disk takes no new file later
        os.utime(record.stacks_request, (0, 0))
        return record

    @property
    def program_folder(self) -> Path:
        return self.path / "program"

    def program(self, name: str) -> Path:
        return self.program_folder / f"{name}.py"

    def log(self, rank: int | None, stream: str = "out") -> Path:
        """A rank's stdout (`out`) or stderr (`err`); of the job if `rank` is None."""
        return self.path / (f"job.{stream}" if rank is None else f"rank-{rank}.{stream}")

    def result(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.result"

    def results(self) -> dict[int, Path]:
        """The results that are there, by rank."""
        paths = self.path.glob("rank-*.result")
        return {int(path.stem.partition("-")[2]): path for path in paths}

    @property
    def module_values(self) -> Path:
        """What the launched cell's module has bound, for the notebook."""
        return self.path / "module.result"

    def history(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.history"

    def sample(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.now"

    @property
    def stacks_request(self) -> Path:
        """Touched to ask the ranks for their stacks; of 1970 until then."""
        return self.path / "stacks"

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
    def _owner(self) -> Path:
        return self.path / "owner"

    @property
    def is_owned(self) -> bool:
        """Whether the process that launched the run is alive."""
        try:
            owner = self._owner.read_text()
            return _process(int(owner.split()[0])) == owner
        except (OSError, ValueError, IndexError):
            return False

    def add(self, event: Event | None = None) -> None:
        """Record an event, and those that had no space. Raises OSError where some still wait."""
        try:
            self._events.add(b"" if event is None else encode(event) + b"\n")
        finally:
            self._events.close()

    def disown(self) -> None:
        """Mark the record as no longer needed by the process that launched the run."""
        self._owner.unlink(missing_ok=True)

    def close(self, summary: dict[str, Any]) -> None:
        """Write the summary; from now on `tidy` may remove the record.

        On a full disk the summary is cut short: that it is there says that the run has ended."""
        scratch = partial(self.summary)
        with contextlib.suppress(OSError):
            self.add()
        with contextlib.suppress(OSError):
            scratch.write_text(json.dumps(summary, indent=2))
        with contextlib.suppress(OSError):
            scratch.rename(self.summary)


def partial(path: Path) -> Path:
    """Where to write a file before renaming it to `path`, so that it is whole or absent."""
    return path.with_name(f"{path.name}.partial")


def kind(name: str) -> Kind | None:
    """What a file of a record holds; None for files that ranks do not add to."""
    return _KINDS.get(name.rpartition(".")[2])


def is_log_of_job(name: str) -> bool:
    """Whether this is the job's output rather than a rank's."""
    return kind(name) == "log" and name.startswith("job.")


def tidy(folder: Folder = "runs") -> None:
    """Remove the oldest ended runs beyond KEPT, and unended ones not touched for a week.

    Runs launched by a live process stay: it may hold the Run.
    """
    with contextlib.suppress(OSError):
        paths = sorted((home() / folder).iterdir(), key=lambda path: path.name, reverse=True)
        records = [record for record in map(Record, paths) if not record.is_owned]
        ended = [record for record in records if record.summary.exists()]
        lost = [r for r in records if r not in ended and _age(r.path) > _WEEK]
        for record in ended:  # for their notebooks alone
            record.module_values.unlink(missing_ok=True)
        for record in [*ended[KEPT:], *lost]:
            shutil.rmtree(record, ignore_errors=True)


def _process(pid: int) -> str:
    """A process by its id and start time (proc(5)), because ids are reused."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid} {fields[19]}"


def _age(path: Path) -> float:
    """Seconds since any file was touched; a folder's own time does not change as files grow."""
    return time.time() - max(file.stat().st_mtime for file in [path, *path.iterdir()])
