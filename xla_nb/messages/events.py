"""The events of a run, which ranks, jobs and fork servers send and the notebook folds into a state.

An event is small (a datagram), plain (JSON) and final: none is ever taken back. Output and results
travel in the run's files, never here.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages import checked_json
from xla_nb.wording import ending

#: The most characters of one text in an event, and of a line in it.
TEXT_LIMIT, LINE_LIMIT = 8_000, 2_000


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base class; `at` is in seconds since the epoch on the sender's clock."""

    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Launched(Event):
    """A notebook, by its name if that is known, has ordered the run's jobs, of a cell or a
    function: `label`, and `called` with its arguments."""

    label: str = ""
    called: str = ""
    notebook: str = ""


@dataclass(frozen=True, kw_only=True)
class HostsPlaced(Event):
    """The run has several hosts, `names` in order; each will start a job of its own."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostLost(Event):
    """A host is gone with all its processes, and how its ranks ended is unknown."""

    host: str
    why: str


@dataclass(frozen=True, kw_only=True)
class OfHost(Event):
    """An event with the name of its host; "" where a run has only one."""

    host: str = ""


@dataclass(frozen=True, kw_only=True)
class RankStarted(OfHost):
    """A rank has joined its runtime and is about to call the entry.

    `devices` names them where one process drives several.
    """

    rank: int
    local_rank: int
    pid: int
    device: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobStarted(OfHost):
    """A host's job is ready to start its ranks: `ranks` of them, numbered from `first`. Of a
    program of live ranks, `live` are those that run it, which had started before."""

    pid: int
    ranks: int
    simulated: bool
    first: int = 0
    live: tuple[RankStarted, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankFinished(Event):
    """The entry returned; its value is in the record, in so many bytes: with 0 it is None, and has
    no file. `preview` is its shortened repr, `numbers` a small dict with numbers, its values in
    words; equal digests are of equal values.

    Sent at once without them, and again with them: a repr may hang, or end the process. Not again
    for None, for what was displayed, and where the cell ends with `;`."""

    rank: int
    preview: str
    nbytes: int
    numbers: dict[str, str] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Changed(Event):
    """The notebook's lists and dicts, by `names`, that rank 0 has changed and does not return.
    `in_cell`: what ran is a cell without a function."""

    names: tuple[str, ...]
    in_cell: bool = False


@dataclass(frozen=True, kw_only=True)
class RankFailed(OfHost):
    """The entry raised, or its value could not be sent.

    `place` is the innermost line of the notebook, such as ``Cell In[3], line 7``. `where` (the
    type and the frames) is equal for ranks with the same error. `follows`: the failure is a
    consequence of another rank's end. `early`: ranks that had returned without the collective in
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
    """A live rank has ended a program, and has told all that there was of it."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class RankAt(Event):
    """Where a rank's entry is now: its stack, and the innermost line of the notebook."""

    rank: int
    place: str
    stack: str


@dataclass(frozen=True, kw_only=True)
class RankInterrupted(Event):
    """Where an interrupt has struck a rank's entry, as in RankAt. It may be elsewhere a moment
    later, in a `finally` block say."""

    rank: int
    place: str
    stack: str


@dataclass(frozen=True, kw_only=True)
class GroupBegan(Event):
    """The ranks of this run live on between programs, as the group `name`; they end once none has
    come for `idle` seconds (None: never)."""

    name: str
    idle: float | None = None


@dataclass(frozen=True, kw_only=True)
class GroupEnding(Event):
    """Live ranks are to end; `why` goes on from "ended": `by %xla_shutdown`."""

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
    """All its ranks have ended a program of live ranks; `headline` says how, if not by the end of
    the ranks. `elapsed` are the seconds that its own run tells (None: as long as from ProgramBegan
    to here); `found` what is amiss all the same. Told again, as what was found later."""

    number: int
    outcome: Literal["finished", "failed", "stopped"]
    headline: str
    elapsed: float | None = None
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class NotOpened(Event):
    """A live rank could not open what a program brought of the notebook; `why` is told where the
    rank was not to run it."""

    rank: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class NamesBound(Event):
    """Names that a program has bound, and deleted, in the namespace of a live rank. `imported`:
    those that are bound to what an import gives, with its name."""

    rank: int
    bound: tuple[str, ...]
    deleted: tuple[str, ...] = ()
    imported: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Asked(Event):
    """A rank asks the person at the notebook, and waits: `input_requests` has the way of the
    answer, which is none of the events. `secret`: it is not to be seen when it is typed."""

    rank: int
    pid: int
    fd: int
    ino: int
    prompt: str
    secret: bool = False


@dataclass(frozen=True, kw_only=True)
class Answered(Event):
    """What this process asked by this descriptor has been answered, or is asked no more."""

    rank: int
    pid: int
    fd: int


@dataclass(frozen=True, kw_only=True)
class ProcessDied(OfHost):
    """A rank's process ended unexpectedly; `status` is an exit code, negative for a signal.

    `lack`: the limit of memory, in bytes, that the kernel killed it for; 0: it had none. `place`,
    `stack`: where it crashed in native code, as far as that is known."""

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
    """The notebook has asked every rank to stop; `why` is a headline for people. Another one says
    why, where that was not known at first."""

    why: str


@dataclass(frozen=True, kw_only=True)
class SignalSent(Event):
    """The notebook is about to end the ranks that go on after StopRequested, with this signal.

    of_group: they are live ranks, which are lost with that."""

    number: int
    of_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """A line for the user, from a rank, or from the launch if `rank` is None. `passing`: of no use
    once the run has ended. `once`: the notebook is told it once, in whatever run."""

    text: str
    rank: int | None = None
    passing: bool = False
    once: bool = False


@dataclass(frozen=True)
class StackGroup:
    """Ranks that are at the same place. `note` says what is to be known of the answer."""

    ranks: tuple[int, ...]
    place: str
    stack: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class HangReported(Event):
    """Ranks `ranks` do not get on: `verdict` says why without a full stop at its end, `groups`
    where all running ranks are, the odd one out first."""

    verdict: str
    ranks: tuple[int, ...]
    groups: tuple[StackGroup, ...]


@dataclass(frozen=True, kw_only=True)
class HangOver(Event):
    """What the last report said is no longer so; `why` is a sentence without a full stop."""

    why: str


@dataclass(frozen=True, kw_only=True)
class FigureTurned(Event):
    """A figure that a rank reports is no finite number any more, or is one again.

    kinds  what it has been since step `since`: "NaN", "inf", "-inf"; none: it is finite
    last   its value before that, if there was one
    """

    rank: int
    name: str
    kinds: tuple[str, ...]
    since: float
    last: float | None = None


@dataclass(frozen=True, kw_only=True)
class Concluded(Event):
    """What a run suffers from, or suffered from: it stays in the run's title when that has ended.
    A newer one of the same `kind` takes the place of the one before; without a sentence it is over.

    ranks     whom it is about; none: all of them
    sentence  goes on after `4 ranks finished in 27.9 s; `, without a full stop
    calm      nothing is amiss; it goes on after a comma, where there is nothing else to say
    strength  seconds that it has cost, by which the strongest is told
    wrong     what was computed is: that comes first, and is told while the run goes on too, and if
              it fails
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
    what ended them before their time, where it was not the job's own end."""

    status: int | None
    why: str = ""

    @property
    def reason(self) -> str:
        """`why`, or how the job ended where that was not as it should; else empty."""
        return self.why or (f"their job {ending(self.status)}" if self.status else "")


_BY_NAME = {
    cls.__name__: cls
    for base in (Event, OfHost)
    for cls in base.__subclasses__()
    if cls is not OfHost
}


#: `vars` makes an object of a dataclass within.
_JSON = json.JSONEncoder(ensure_ascii=False, default=vars)


def encode(event: Event) -> bytes:
    """The event as one datagram; long texts keep their head and tail.

    Lone surrogates become text (`\\ud800`): no front end could be sent them."""
    body = {name: _shorten(value) for name, value in vars(event).items()}
    return _JSON.encode({"event": type(event).__name__, **body}).encode()


class UnknownEvent(ValueError):
    """An event that this version does not have."""


def decode(data: bytes) -> Event:
    """The event that `encode` wrote. Raises UnknownEvent, and ValueError for other data."""
    try:
        body = json.loads(data)
        name = body.pop("event")
    except (TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise ValueError(f"not an event: {data[:200]!r}") from problem
    if not isinstance(name, str):
        raise ValueError(f"not an event: {data[:200]!r}")
    if name not in _BY_NAME:
        raise UnknownEvent(f"unknown event: {data[:200]!r}")
    return checked_json.made(_BY_NAME[name], body)


def _shorten(value: object) -> object:
    if not isinstance(value, str):
        return value
    if len(value) > LINE_LIMIT:
        value = "\n".join(_without_middle(line, LINE_LIMIT, " ") for line in value.split("\n"))
    value = _without_middle(value, TEXT_LIMIT, "\n")
    return value.encode(errors="backslashreplace").decode()


def _without_middle(text: str, longest: int, between: str) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    left_out = f"… {len(text) - 2 * half:,} characters left out …"
    return between.join([text[:half], left_out, text[-half:]])
