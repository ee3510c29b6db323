"""The files of a run: one object names them all.

The rule: what a run leaves is complete without the notebook that started it, and readable by
its owner alone.
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

#: How many runs of processes that have ended are kept, the newest ones.
KEPT = 50
#: Where in the home: runs of a notebook's, and what of another machine's runs was on this one.
Folder = Literal["runs", "parts"]
_WEEK = 7 * 24 * 3600


def home() -> Path:
    """Where records lie: $XLA_NB_HOME, else the user's state directory (XDG)."""
    chosen = os.environ.get("XLA_NB_HOME")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "xla_nb"


class Record:
    """The record of one run, at `path`.

    program/NAME.py   the module the ranks ran      rank-R.out, rank-R.err   their output
    rank-R.result     what rank R returned          rank-R.history           what it reported
    rank-R.now        its newest sample             events.jsonl, run.json   what happened
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, run: str, folder: Folder = "runs") -> Record:
        """A new, empty record. Raises OSError when it cannot be written."""
        path = home() / folder / run
        path.mkdir(parents=True, mode=0o700)
        (path / "program").mkdir(mode=0o700)
        (path / "owner").write_text(_process(os.getpid()))
        return cls(path)

    def program(self, name: str) -> Path:
        return self.path / "program" / f"{name}.py"

    def log(self, rank: int | None, stream: str = "out") -> Path:
        """The file of a rank's stdout (`out`) or stderr (`err`); None is the job."""
        return self.path / (f"job.{stream}" if rank is None else f"rank-{rank}.{stream}")

    def result(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.result"

    def history(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.history"

    def sample(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.now"

    @property
    def stacks_request(self) -> Path:
        """Touched when somebody wants to know where the ranks are."""
        return self.path / "stacks"

    @property
    def is_owned(self) -> bool:
        """Whether the process that launched the run still lives."""
        return _owned(self.path)

    def add(self, event: Event) -> None:
        with contextlib.suppress(OSError), (self.path / "events.jsonl").open("ab") as file:
            file.write(encode(event) + b"\n")

    def disown(self) -> None:
        """The process that launched the run has no more use for it."""
        (self.path / "owner").unlink(missing_ok=True)

    def close(self, summary: dict[str, Any]) -> None:
        """Write what became of the run; from then on the record may be tidied away."""
        scratch = self.path / "run.json.partial"
        with contextlib.suppress(OSError):
            scratch.write_text(json.dumps(summary, indent=2))
            scratch.rename(self.path / "run.json")


def tidy(folder: Folder = "runs") -> None:
    """Remove the oldest ended runs beyond KEPT, and unended ones not touched for a week.

    What a living notebook has launched stays: it may hold the Run.
    """
    runs = home() / folder
    with contextlib.suppress(OSError):
        found = sorted(runs.iterdir(), key=lambda path: path.name, reverse=True)
        found = [path for path in found if not _owned(path)]
        ended = [path for path in found if (path / "run.json").exists()]
        lost = [path for path in found if path not in ended and _age(path) > _WEEK]
        for path in [*ended[KEPT:], *lost]:
            shutil.rmtree(path, ignore_errors=True)


def _owned(path: Path) -> bool:
    """Whether the process that launched the run still lives."""
    try:
        owner = (path / "owner").read_text()
        return _process(int(owner.split()[0])) == owner
    except (OSError, ValueError, IndexError):
        return False


def _process(pid: int) -> str:
    """A process by its number and when it started (proc(5)): numbers are used again."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid} {fields[19]}"


def _age(path: Path) -> float:
    """Seconds since any file was touched; the folder's own time stands still while one grows."""
    return time.time() - max(file.stat().st_mtime for file in [path, *path.iterdir()])
