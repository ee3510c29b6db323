"""Whether a record is whole: its events are those that were written, and lead to the run's end.

What is damaged is refused by name, since it could say that a failed run was well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from xla_nb.protocol import events, plain
from xla_nb.record import private
from xla_nb.record.files import Record
from xla_nb.run.state import Outcome, RunState
from xla_nb.wording import in_one_line, listed, ranks


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended."""

    rank: int
    phase: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is read of the summary of a run that has ended. `events` is the SHA-256 of its events;
    what older versions did not write is None."""

    ok: bool
    headline: str
    cell: str = ""
    outcome: Outcome | None = None
    hang: str = ""
    elapsed: float | None = None
    ranks: tuple[RankEnd, ...] | None = None
    events: str | None = None


class Damaged(Exception):
    """Says what is wrong with the events, as in "events.jsonl is missing"."""


def summary(record: Record) -> Summary | None:
    """The summary; None where there is none, or a full disk has cut it short."""
    try:
        return _parsed(private.read(record.summary))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _parsed(data: bytes) -> Summary:
    body = json.loads(data)
    if "ranks" in body:
        body["ranks"] = [{name: rank[name] for name in ("rank", "phase")} for rank in body["ranks"]]
    names = [field.name for field in dataclasses.fields(Summary)]
    return plain.made(Summary, {name: body[name] for name in names if name in body})


def fold(record: Record, state: RunState, told: Summary | None) -> float:
    """Fold the events into the state; gives the time of the last one, 0 if there is none.

    Raises Damaged where they are not those that were written, as far as that is known."""
    data = _read(record)
    if told is not None and told.events not in (None, hashlib.sha256(data or b"").hexdigest()):
        raise Damaged("is missing" if data is None else "is not as xla_nb wrote it")
    last = 0.0
    for number, line in enumerate((data or b"").splitlines(keepends=True), 1):
        try:
            event = events.decode(line)
        except events.UnknownEvent:  # of a later version
            continue
        except ValueError:
            if line.endswith(b"\n"):
                raise Damaged(f"has a line that cannot be read ({number})") from None
            continue  # the kernel was killed, or the disk was full
        state.apply(event)
        last = event.at
    if state.started is None and (state.ranks or record.results()):
        raise Damaged("lacks the start of the run")
    return last


def _read(record: Record) -> bytes | None:
    try:
        return private.read(record.events)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise Damaged(f"cannot be read: {problem.strerror}") from None


def check_end(state: RunState, told: Summary | None) -> None:
    """Raise Damaged where the events have led to another end than the summary tells."""
    if told is None or told.ranks is None or told.events is not None:
        return
    if {rank.rank: rank.phase for rank in told.ranks} != {
        rank.rank: rank.phase for rank in state.ranks.values()
    }:
        raise Damaged("does not lead to the end that run.json tells")


def refusal(record: Record, damage: Damaged, told: Summary | None) -> str:
    """Why a record was not opened, and what of it can still be read."""
    summed_up = [] if told is None else [f'{record.summary} ("{in_one_line(told.headline, 200)}")']
    left = [*summed_up, *_outputs(record), *_results(record)]
    return (
        f"The record of {record.path.name} is damaged: {record.events} {damage}, so the run was "
        f"not opened. Still there: {listed(left)}."
    )


def _outputs(record: Record) -> list[str]:
    written = {
        int(path.stem.partition("-")[2])
        for stream in ("out", "err")
        for path in record.path.glob(f"rank-*.{stream}")
        if path.stem.partition("-")[2].isdecimal() and path.stat().st_size
    }
    return [f"the output of {ranks(written)} ({record.path}/rank-R.out, .err)"] if written else []


def _results(record: Record) -> list[str]:
    returned = sorted(record.results())
    what = "result" if len(returned) == 1 else "results"
    return [f"the {what} of {ranks(returned)} ({record.path}/rank-R.result)"] if returned else []
