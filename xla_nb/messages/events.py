"""The events of a run, sent by ranks, jobs and fork servers, and folded into a state by the
notebook.

An event is small (a datagram), plain (JSON) and final: none is ever withdrawn. Output and results
travel in the run's files, never here.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages import checked_json
from xla_nb.messages.exit_status import ending

#: The most characters of one text in an event, and of a line in it.
TEXT_LIMIT, LINE_LIMIT = 8_000, 2_000


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base class; `at` is in seconds since the epoch on the sender's clock."""

    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Launched(Event):
    """The notebook has ordered the run's jobs. `label` is the cell or function, `called` the call
    with its arguments, `notebook` the notebook's name, if known."""

    label: str = ""
    called: str = ""
    notebook: str = ""


@dataclass(frozen=True, kw_only=True)
class HostsPlaced(Event):
    """The run has several hosts, `names` in order; each will start its own job."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostLost(Event):
    """A host is lost with all its processes; how its ranks ended is unknown."""

    host: str
    why: str


@dataclass(frozen=True, kw_only=True)
class OfHost(Event):
    """An event with the name of its host; "" if the run has only one."""

    host: str = ""


@dataclass(frozen=True, kw_only=True)
class RankStarted(OfHost):
    """A rank has joined its runtime and is about to call the entry.

    `devices` names them if one process drives several.
    """

    rank: int
    pid: int
    device: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobStarted(OfHost):
    """A host's job is ready to start its ranks: `ranks` of them, numbered from `first`. For a
    program of live ranks, `live` are the ranks that run it, already started."""

    ranks: int
    simulated: bool
    first: int = 0
    live: tuple[RankStarted, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankFinished(Event):
    """The entry returned; the record holds its value in `nbytes` bytes (0: None, without a file).
    `preview` is its shortened repr, `numbers` a small dict of numbers as text; equal digests mean
    equal values.

    Sent at once without these, then again with them, because a repr may hang or end the process.
    Not sent again for None, for a displayed value, or if the cell ends with `;`."""

    rank: int
    preview: str
    nbytes: int
    numbers: dict[str, str] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Changed(Event):
    """Rank 0 changed the notebook's lists and dicts `names` without returning them. `in_cell`: the
    program was a cell without a function."""

    names: tuple[str, ...]
    in_cell: bool = False


@dataclass(frozen=True, kw_only=True)
class RankFailed(OfHost):
    """The entry raised, or its value could not be sent.

    `place` is the innermost line of the notebook, such as ``Cell In[3], line 7``. `where` (the
    type and the frames) is equal for ranks with the same error. `follows`: the failure is a
    consequence of another rank's end. `early`: ranks that had returned before the collective in
    which this one failed.
    """

    rank: int
    kind: str
    message: str
    text: str
    place: str
    where: str
    follows: bool = False
    early: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankStopped(Event):
    """The entry ended because the run was being stopped."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class RankLeft(Event):
    """A live rank has finished a program and sent all its events."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class RankAt(Event):
    """The current position of a rank's entry: its stack, and the innermost notebook line."""

    rank: int
    place: str
    stack: str


@dataclass(frozen=True, kw_only=True)
class RankInterrupted(Event):
    """The position at which an interrupt hit a rank's entry, as in RankAt. The rank may be
    elsewhere a moment later, for example in a `finally` block."""

    rank: int
    place: str
    stack: str


@dataclass(frozen=True, kw_only=True)
class GroupBegan(Event):
    """The ranks of this run stay alive between programs, as the group `name`; they end after `idle`
    seconds without a program (None: never)."""

    name: str
    idle: float | None = None


@dataclass(frozen=True, kw_only=True)
class GroupEnding(Event):
    """Live ranks are to end; `why` continues "ended …": `by %xla_shutdown`."""

    why: str


@dataclass(frozen=True, kw_only=True)
class ProgramBegan(Event):
    """Live ranks have been given a program: the `number`-th, from 1, whose run is `run`."""

    number: int
    run: str
    label: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ProgramEnded(Event):
    """All ranks of a program of live ranks have ended it; `headline` says how, unless the ranks
    themselves ended. `elapsed` are the seconds that its run reports (None: the time since
    ProgramBegan); `found` is a problem despite success."""

    number: int
    outcome: Literal["finished", "failed", "stopped"]
    headline: str
    elapsed: float | None = None
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class NotOpened(Event):
    """A live rank could not open all that a program brought from the notebook."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class NamesBound(Event):
    """Names that a program has bound and deleted in the namespace of a live rank. `imported` maps
    names bound by an import to what was imported."""

    rank: int
    bound: tuple[str, ...]
    deleted: tuple[str, ...] = ()
    imported: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Asked(Event):
    """A rank waits for input from the person at the notebook. The answer is not an event:
    `input_requests` sends it. `secret`: do not show what is typed."""

    rank: int
    pid: int
    fd: int
    ino: int
    prompt: str
    secret: bool = False


@dataclass(frozen=True, kw_only=True)
class Answered(Event):
    """The question of this process and descriptor was answered, or is no longer asked."""

    rank: int
    pid: int
    fd: int


@dataclass(frozen=True, kw_only=True)
class ProcessDied(OfHost):
    """A rank's process ended unexpectedly; `status` is an exit code, negative for a signal.

    `lack`: the memory limit, in bytes, that the kernel killed it for; 0: it had none. `place` and
    `stack`: where it crashed in native code, if known."""

    pid: int
    status: int
    lack: int | None = None
    place: str = ""
    stack: str = ""


@dataclass(frozen=True, kw_only=True)
class JobFailed(OfHost):
    """The ranks could not be started: the program did not load, or the runtime refused."""

    kind: str
    message: str
    text: str


@dataclass(frozen=True, kw_only=True)
class StopRequested(Event):
    """The notebook has asked every rank to stop; `why` is a headline for people. Sent again if the
    reason becomes known only later."""

    why: str


@dataclass(frozen=True, kw_only=True)
class SignalSent(Event):
    """The notebook is about to send this signal to the ranks still running after StopRequested.

    of_group: they are live ranks, which are lost by this."""

    number: int
    of_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """A line for the user from a rank, or from the launch if `rank` is None. `passing`: useless
    once the run has ended. `once`: shown once per notebook, across all runs."""

    text: str
    rank: int | None = None
    passing: bool = False
    once: bool = False


@dataclass(frozen=True)
class StackGroup:
    """Ranks at the same place. `note` is a remark about the answer."""

    ranks: tuple[int, ...]
    place: str
    stack: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class HangReported(Event):
    """Ranks `ranks` make no progress. `verdict` says why, without a final period; `groups` are the
    positions of all running ranks, the odd one out first; `culprits` wait for no other rank."""

    verdict: str
    ranks: tuple[int, ...]
    groups: tuple[StackGroup, ...]
    culprits: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HangOver(Event):
    """The last hang report no longer holds; `why` is a sentence without a final period."""

    why: str


@dataclass(frozen=True, kw_only=True)
class FigureTurned(Event):
    """A figure that a rank reports is no longer finite, or is finite again.

    kinds  its values since step `since`: "NaN", "inf", "-inf"; empty if it is finite
    last   its value before that, if any
    """

    rank: int
    name: str
    kinds: tuple[str, ...]
    since: float
    last: float | None = None


@dataclass(frozen=True, kw_only=True)
class Concluded(Event):
    """A problem that a run has or had; it stays in the run's title after the end. A newer one of
    the same `kind` replaces the previous one; one without a sentence ends it.

    ranks     the ranks concerned; empty: all
    sentence  continues `4 ranks finished in 27.9 s; `, without a final period
    calm      not a problem: follows a comma instead, if there is nothing else to report
    strength  the seconds that it has cost; the strongest is reported
    wrong     computed values are wrong: reported first, also while the run continues and if it
              fails
    """

    kind: str
    sentence: str
    ranks: tuple[int, ...] = ()
    strength: float = 0.0
    calm: bool = False
    wrong: bool = False


@dataclass(frozen=True, kw_only=True)
class JobEnded(OfHost):
    """Every process of the run on a host is gone; `status` is the job's, None if unknown. `why`:
    what ended them early, if it was not the job's own end."""

    status: int | None
    why: str = ""

    @property
    def reason(self) -> str:
        """`why`, or how the job ended abnormally; otherwise empty."""
        return self.why or (f"their job {ending(self.status)}" if self.status else "")


_BY_NAME = {
    cls.__name__: cls
    for base in (Event, OfHost)
    for cls in base.__subclasses__()
    if cls is not OfHost
}


#: `vars` turns a nested dataclass into a JSON object.
_JSON = json.JSONEncoder(ensure_ascii=False, default=vars)


def encode(event: Event) -> bytes:
    """The event as one datagram; long texts keep their head and tail.

    Lone surrogates become text (`\\ud800`), since they cannot be sent to a front end."""
    body = {name: _shorten(value) for name, value in vars(event).items()}
    return _JSON.encode({"event": type(event).__name__, **body}).encode()


def decode(data: bytes) -> Event:
    """Decode an event written by `encode`. Raises ValueError for other data."""
    try:
        body = json.loads(data)
        name = body.pop("event")
    except (TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise ValueError(f"not an event: {data[:200]!r}") from problem
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ValueError(f"not an event: {data[:200]!r}")
    return checked_json.made(_BY_NAME[name], body)


def _shorten(value: object) -> object:
    if not isinstance(value, str):
        return value
    if len(value) > LINE_LIMIT:
        value = "\n".join(_without_middle(line, LINE_LIMIT, " ") for line in value.split("\n"))
    value = _without_middle(value, TEXT_LIMIT, "\n")
    return value.encode(errors="backslashreplace").decode()


def _without_middle(text: str, longest: int, separator: str) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    note = f"… {len(text) - 2 * half:,} characters left out …"
    return separator.join([text[:half], note, text[-half:]])
