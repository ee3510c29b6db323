"""A run read from its record, in progress or ended.

Nothing here needs the process that launched the run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, SupportsIndex

from xla_nb import untrusted
from xla_nb.errors import UsageError, XlaNbError
from xla_nb.messages import events
from xla_nb.monitor import sentences
from xla_nb.monitor.activity import Tracks
from xla_nb.monitor.sentences import RankError
from xla_nb.monitor.state import ENDED, Outcome, Phase, RunState
from xla_nb.pickling.parcel import Malformed, Parcel, Unopened
from xla_nb.pickling.results import RESULT
from xla_nb.record import displays, private
from xla_nb.record.displays import Display
from xla_nb.record.figures import History, last_values
from xla_nb.record.files import Record, find, home, records
from xla_nb.record.sample import Sample, decode
from xla_nb.record.tail import Arrivals
from xla_nb.wording import in_one_line, several, shortened, took

#: Why a run ended whose record does not say so.
_KERNEL_ENDED = "the notebook's kernel ended before the run did"


class RecordedRun(Mapping[int, Any]):
    """A readable run. As a mapping it holds its results, as the return value of older launchers
    did.

    results      {rank: value}, unpickled at first use; run[2] is rank 2's
    ok           every rank returned its value
    errors       {rank: error} of the ranks that failed or died
    output(rank) what a rank printed; for live ranks, in all their cells
    history      the figures that ranks reported with xla_nb.report, likewise
    displays     {rank: list} of each rank's newest displays, likewise
    elapsed      seconds from the launch to the end of the last rank, or until now
    record       its files
    arrivals     when lines of its output were seen
    tracks       the activity of each rank, as far as a view has followed it
    """

    def __init__(
        self,
        name: str,
        label: str,
        files: Record,
        definitions: Mapping[int, object] = {},
    ) -> None:
        """definitions: objects that the launch sent, by the numbers that results refer to"""
        self.name = name
        self.label = label
        self.record = files
        self.state = RunState()
        self._definitions = definitions
        self._results: dict[int, Any] = {}
        self.arrivals = Arrivals()
        self.tracks = Tracks()
        self._elapsed: float | None = None  # as measured by the notebook that launched it
        self._is_whole = True

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Open the run whose record is at `path`, or whose name `path` is. Its results use the
        classes and functions that the notebook or script defines now.

        Unreadable lines of its events are skipped with a notice, and the run is then not `ok`.
        Raises UsageError if no run is recorded there; if the record contains anything but plain
        files; if it does not say how the run began; and, without `trust`, if another user may have
        written any of it."""
        files = Record(_find_folder(path).resolve())
        _check_origin(files.path, trust)
        summary = _read_summary(files)
        run = cls(files.path.name, "", files)
        run.arrivals = Arrivals.read(files)
        run._elapsed = summary.elapsed if summary else None
        run._fold()
        run.label = summary.cell if summary else run.state.launched.label
        if run.state.ended is None:
            run._elapsed = run._lasted()  # as it is now: nothing follows it
        elif summary is None and not files.is_owned:
            files.close(run.summary())  # else it would seem to run while anybody has it open
        return run

    def _fold(self) -> None:
        """Fold the recorded events into the state. Raises UsageError."""
        last, unread = _fold_events(self.record, self.state)
        has_begun = any(host.started is not None for host in self.state.hosts.values())
        if not has_begun and (self.state.ranks or self.record.results()):
            raise UsageError(
                f"The record of {self.record.path.name} is damaged: {self.record.events} does not "
                f"say how the run began. Its ranks' results and output are in {self.record.path}."
            )
        if unread:
            self._is_whole = False
            text = f"{several(unread, 'line')} of {self.record.events} could not be read; skipped."
            self.state.apply(events.Notice(text=text))
        if self.state.ended is None and (self.record.summary.exists() or not self.record.is_owned):
            _mark_returned(self.state, self.record)
            times = [sample.at for rank in self.state.ranks if (sample := self.sample(rank))]
            why = "" if self.record.summary.exists() else _KERNEL_ENDED
            self.state.apply(events.JobEnded(status=None, at=max([last, *times]), why=why))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle as the dict of its results, for another process (such as a Ray task's caller)."""
        if not self.ok:
            raise TypeError("A run can be pickled only if every rank returned a result.")
        return dict, (dict(self.results),)

    def __eq__(self, other: object) -> bool:
        """Equal to the dict of its results, which it stands in for, and to itself."""
        return self.results == other if isinstance(other, dict) else self is other

    __hash__ = object.__hash__

    @property
    def ok(self) -> bool:
        return self.state.ok and self._is_whole

    @property
    def elapsed(self) -> float:
        return self._lasted() if self._elapsed is None else self._elapsed

    def _lasted(self) -> float:
        """Seconds elapsed, from the times in the events of its processes."""
        started = self.state.started
        if started is None:
            return 0.0
        ends = [rank.ended for rank in self.state.ranks.values() if rank.ended is not None]
        end = max(ends, default=self.state.ended) if self.state.settled else None
        return round((time.time() if end is None else end) - started, 3)

    @property
    def results(self) -> dict[int, Any]:
        """{rank: value} of the ranks that have returned so far. Raises XlaNbError if any value
        cannot be read; `run[rank]` still gives the others."""
        finished = sorted(r.rank for r in self.state.ranks.values() if r.phase == "finished")
        try:
            return {rank: self[rank] for rank in finished}
        except XlaNbError as problem:
            if len(finished) == 1:
                raise
            raise XlaNbError(f"{problem} Read the others one by one, as run[RANK].") from None

    def __iter__(self) -> Iterator[int]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, rank: int) -> Any:
        """The value that a rank returned. Raises KeyError if it has not returned."""
        if rank not in self._results:
            self._check_rank(rank)
            if rank not in self.state.ranks:
                raise KeyError(f"Rank {rank} has not started, so it has no result yet.")
            if self.state.ranks[rank].phase != "finished":
                raise KeyError(_no_result(rank, self.state.ranks[rank].phase))
            self._results[rank] = self._read_result(rank)
        return self._results[rank]

    def _check_rank(self, rank: int) -> None:
        """Raise KeyError for a rank that the run does not have and never will."""
        if self.state.has_all_ranks and rank not in self.state.ranks:
            raise KeyError(f"{self.name} has no rank {rank!r}.")

    def _read_result(self, rank: int) -> Any:
        path = self.record.result(rank)
        try:
            return self._opened(rank, path)
        except FileNotFoundError:
            returned = self.state.ranks[rank].returned
            if returned is not None and returned.nbytes == 0:
                return None
            self.check_files(f"rank {rank}'s result")
            raise XlaNbError(
                f"Rank {rank}'s result is gone: {path} existed when the rank returned, "
                "and is missing now. The run's other files are still there."
            ) from None
        except OSError as problem:
            raise XlaNbError(f"Cannot read rank {rank}'s result: {problem}.") from None
        except Malformed as damage:
            reason = in_one_line(str(damage), 200).rstrip(".")
            raise XlaNbError(f"Rank {rank}'s result is damaged: {path} ({reason}).") from None

    def _opened(self, rank: int, path: Path) -> Any:
        """Unpickle the value in a file. Raises XlaNbError, Malformed if it is damaged, OSError."""

        def find(name: str | int) -> object:
            if isinstance(name, int):
                return self._definitions[name]
            try:
                return vars(sys.modules["__main__"])[name]
            except KeyError:
                raise XlaNbError(
                    f"Rank {rank}'s result needs {name}, which the notebook does not define. Run "
                    "the cell that defines it first."
                ) from None

        fd = private.reading(path)
        try:
            values: Any = Parcel(fd).open(resolve=find)
        except Unopened as unopened:
            problem = unopened.problem
            if isinstance(problem, XlaNbError):
                raise problem from None
            if isinstance(problem, pickle.UnpicklingError | EOFError):
                raise Malformed(str(problem)) from None
            kind, text = untrusted.name_of(type(problem)), untrusted.message_of(problem)
            raise XlaNbError(
                f"Cannot read rank {rank}'s result: {in_one_line(f'{kind}: {text}', 300)}. Return "
                "numbers, arrays or CPU tensors instead."
            ) from problem
        finally:
            os.close(fd)
        if RESULT not in values:
            raise Malformed("it has no result")
        return values[RESULT]

    def raised(self, rank: int) -> BaseException | None:
        """The exception that ended a rank, unpickled here; None if it is not available."""
        try:
            value = self._opened(rank, self.record.raised(rank))
        except (OSError, Malformed, XlaNbError):
            return None
        return value if isinstance(value, BaseException) else None

    @property
    def errors(self) -> dict[int, RankError]:
        return sentences.errors(self.state)

    def output(self, rank: int, stream: str = "out") -> str:
        """All that a rank has written to stdout so far (`stream="err"`: to stderr).

        Raises UsageError for any other stream, KeyError for a rank that the run does not have."""
        if stream not in ("out", "err"):
            raise UsageError(f"Unknown stream {stream!r}. Choose out or err.")
        self._check_rank(rank)
        self.check_files("its output")
        return "".join(_read_text(record.log(rank, stream)) for record in self._records)

    @property
    def _records(self) -> list[Record]:
        """Its own record and, for live ranks, those of the kept cells, oldest first."""
        return [self.record, *self.record.cells()[::-1]]

    @property
    def history(self) -> History:
        """The figures that the ranks have reported so far with `xla_nb.report`."""
        self.check_files("the figures that its ranks reported")
        ranks = sorted(self.state.ranks)
        return History(*({rank: one.history(rank) for rank in ranks} for one in self._records))

    @property
    def displays(self) -> dict[int, list[Display]]:
        """The displays of each rank that it has not cleared: figures, frames, `display(…)`, and its
        function's return value if that is one of these. `display(run.displays[0][-1])` shows rank
        0's last one again."""
        self.check_files("the displays of its ranks")
        ranks = sorted(self.state.ranks)
        records = self._records
        return {
            rank: [display for one in records for display in displays.read(one.displays(rank))]
            for rank in ranks
        }

    def sample(self, rank: int) -> Sample | None:
        """The newest sample of a rank, or None."""
        try:
            return decode(private.read(self.record.sample(rank)))
        except (OSError, ValueError):  # read during a write, or unreadable
            return None

    def check_files(self, what: str) -> None:
        """Raise XlaNbError if the record, and `what` with it, was removed."""
        if not self.record.path.exists():
            raise XlaNbError(
                f"The files of {self.name} are gone from {self.record.path}, including {what}. "
                "xla_nb keeps the files of runs that variables or Out refer to, plus those of the "
                "newest others. Run the cell again."
            )

    def __repr__(self) -> str:
        text = "".join(f"; {value.line}" for value in sentences.returned(self.state))
        results = shortened(text, 300)
        return f"<Run {self.name}: {sentences.headline(self.state)}, {took(self.elapsed)}{results}>"

    def append(self, event: events.Event) -> None:
        """Add an event that was found out after the run had ended."""
        self.state.apply(event)
        with contextlib.suppress(OSError):
            self.record.add(event)
            self.record.close(self.summary())

    def summary(self) -> dict[str, Any]:
        """The content of the record's summary."""
        ranks = [
            {
                "rank": number,
                "device": rank.device,
                "phase": rank.phase,
                "result": rank.returned.preview if rank.returned else "",
            }
            for number, rank in sorted(self.state.ranks.items())
        ]
        return {
            "run": self.name,
            "cell": self.label,
            "called": self.state.launched.called,
            "notebook": self.state.launched.notebook,
            "ok": self.ok,
            "outcome": self.state.outcome,
            "headline": sentences.headline(self.state),
            "found": sentences.found(self.state),
            "calm": sentences.found(self.state, calm=True),
            "hang": sentences.hang(self.state),
            "elapsed": self.elapsed,
            "ranks": ranks,
        }

    def as_data(self) -> dict[str, Any]:
        """The summary for programs that read a notebook's outputs, under its MIME type."""
        return {"application/vnd.xla-nb.run+json": self.summary()}


def _read_text(path: Path) -> str:
    """The text of a file; empty if it does not exist."""
    try:
        return private.read(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _no_result(rank: int, phase: Phase) -> str:
    if phase in ("starting", "running"):
        return f"Rank {rank} is {phase}, so it has no result yet."
    if phase == "stopped":
        return f"Rank {rank} was stopped, so it has no result."
    return f"Rank {rank} {phase}, so it has no result. See run.errors[{rank}]."


def _mark_returned(state: RunState, files: Record) -> None:
    """Mark ranks as finished whose result exists without its event (full disk, kernel ended)."""
    for rank, path in files.results().items():
        if rank in state.ranks and state.ranks[rank].phase not in ENDED:
            status = path.stat()
            state.apply(
                events.RankFinished(
                    rank=rank, preview="", nbytes=status.st_size, at=status.st_mtime
                )
            )


def _find_folder(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"open_run needs a run's name or folder, not {shortened(repr(path), 60)}.")
    for record in find(path):
        if any(map(os.path.exists, (record.events, record.summary))):  # raises nothing
            return record.path
    raise UsageError(
        f"No run is recorded at {os.fspath(path)!r}. %xla_runs lists the recorded runs."
    )


def _check_origin(folder: Path, trust: bool) -> None:
    """Raise UsageError for a record that xla_nb did not make, or another user may have changed."""
    home_path = os.path.realpath(home())  # resolve() raises where a link leads to itself
    parents = [path for path in folder.parents if path.is_relative_to(home_path)]
    for path in parents:
        own_folder(path)
    try:
        files = [
            Path(entry) for entry in os.scandir(folder) if not entry.is_dir(follow_symlinks=False)
        ]
        file = next((path for path in files if path.is_symlink() or not path.is_file()), None)
        reason = next(filter(None, map(private.why_not_ours, [*parents, folder, *files])), "")
    except PermissionError as problem:
        raise UsageError(f"Cannot read the record at {folder}: {problem}.") from None
    if file:
        raise UsageError(
            f"{file} is not a plain file. Records of xla_nb have only plain files, so this one was "
            "not opened."
        )
    if reason and not trust:
        raise UsageError(
            f"{reason}. Results are pickles, which can run code when opened, so the record was "
            "not opened. If you trust everyone who may have written it (for example, you copied it "
            f"from another machine), use xla_nb.open_run({str(folder)!r}, trust=True)."
        )


def own_folder(path: Path) -> None:
    """Make a folder of the home private. Raises UsageError if it belongs to another user."""
    try:
        private.own_folder(path)
    except OSError as problem:
        raise UsageError(
            f"Cannot use the folder of recorded runs: {problem}. Set XLA_NB_HOME to a folder of "
            "yours."
        ) from None


@dataclass(frozen=True)
class Entry:
    """One recorded run in a list: `headline` says how it went, `found` names a problem, `calm`
    anything else of note, `elapsed` is in seconds, `figures` are rank 0's last values, `notebook`
    is the one that launched it, if known, and `called` is a function with its arguments."""

    name: str
    cell: str
    outcome: Outcome
    headline: str
    elapsed: float | None
    found: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    calm: str = ""
    called: str = ""
    notebook: str = ""


def entries() -> list[Entry]:
    """The recorded runs, the newest first."""
    if not (home() / "runs").exists():
        return []
    for folder in (home(), home() / "runs"):
        own_folder(folder)
    return [replace(_make_entry(record), figures=_last_figures(record)) for record in records()]


def _last_figures(record: Record) -> dict[str, float]:
    values = (last_values(source.history(0)) for source in (record, *reversed(record.cells())))
    return functools.reduce(operator.or_, values)


def _make_entry(record: Record) -> Entry:
    summary, name = _read_summary(record), record.path.name
    if summary is not None:
        return summary
    is_running, why = record.is_owned, _KERNEL_ENDED.capitalize()
    if is_running or record.summary.exists():  # else the disk was full
        try:
            run = RecordedRun.open(record)
        except UsageError as error:
            why = str(error)
        else:
            if run.state.ranks or is_running:
                return _entry_of(name, run.summary())
            why = "Ended, but the disk was too full to save the outcome"
    if is_running:
        return Entry(name, "", "running", "", None)
    return Entry(name, "", "failed", why, None)


# ---------------------------------------------------------------- a record's files


def _read_summary(record: Record) -> Entry | None:
    """An ended run, from its summary; None if there is none, or a full disk cut it short."""
    try:
        body = json.loads(private.read(record.summary))
        return _entry_of(record.path.name, body)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _entry_of(name: str, summary: Mapping[str, Any]) -> Entry:
    shared = Entry.__dataclass_fields__.keys() & summary.keys()
    return Entry(name, **{field: summary[field] for field in shared})


def _fold_events(record: Record, state: RunState) -> tuple[float, int]:
    """Fold the events into the state. Returns the time of the last one (0 if there is none) and the
    number of whole lines that cannot be read."""
    last, unread, data = 0.0, 0, b""
    with contextlib.suppress(OSError):
        data = private.read(record.events)
    for line in data.splitlines(keepends=True):
        try:
            event = events.decode(line)
        except ValueError:
            unread += line.endswith(b"\n")  # else the kernel was killed, or the disk was full
            continue
        state.apply(event)
        last = event.at
    return last, unread
