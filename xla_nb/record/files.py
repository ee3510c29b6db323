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
from xla_nb.record import private

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

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, run: str, folder: Folder = "runs") -> Record:
        """A new, empty record. Raises OSError when it cannot be written, or the home is another
        user's."""
        for above in (home(), home() / folder):
            private.own_folder(above)
        record = cls(home() / folder / run)
        private.make_folder(record.path)
        private.make_folder(record.program_folder)
        private.write(record._owner, _process(os.getpid()).encode())
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
        """Touched to ask the ranks for their stacks."""
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
            owner = private.read(self._owner).decode()
            return _process(int(owner.split()[0])) == owner
        except (OSError, ValueError, IndexError):
            return False

    def add(self, event: Event) -> None:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND
            with os.fdopen(private.writing(self.events, flags), "ab") as file:
                file.write(encode(event) + b"\n")

    def disown(self) -> None:
        """Mark the record as no longer needed by the process that launched the run."""
        self._owner.unlink(missing_ok=True)

    def close(self, summary: dict[str, Any]) -> None:
        """Write the summary; from now on `tidy` may remove the record."""
        scratch = partial(self.summary)
        with contextlib.suppress(OSError):
            private.write(scratch, json.dumps(summary, indent=2).encode())
            scratch.rename(self.summary)


def records(folder: Folder = "runs") -> list[Record]:
    """All records of the home, the newest first. Raises OSError."""
    root = home() / folder
    with os.scandir(root) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [Record(root / name) for name in sorted(folders, reverse=True) if name[0] != "."]


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
