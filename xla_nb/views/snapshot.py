"""What there is to see of a run at one moment.

The live panel, saved HTML and saved text all render a Snapshot, so they cannot disagree; only the
observer reads files and events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages.events import Concluded, HangReported
from xla_nb.record.sample import Sample
from xla_nb.run import state
from xla_nb.run.activity import Slot
from xla_nb.run.sentences import Returned, Trouble

Unit = Literal["rank", "device"]
Stream = Literal["out", "err"]
STREAMS: tuple[Stream, Stream] = ("out", "err")
Phase = Literal[state.Phase, "compiling", "idle", "waiting", "early"]
UNDER_WAY: frozenset[Phase] = frozenset({"starting", "running", "compiling", "waiting"})


@dataclass(frozen=True)
class Bar:
    """Progress of a loop: `done` of `total` items, `rate` in items per second, `eta` in seconds.
    All but `done` are None when unknown. `on`: of which ranks, where others have yet to begin.
    least: its rank died, and may have done more than it could tell. number: of those with its
    label in its rank."""

    label: str
    done: float
    total: float | None
    rate: float | None = None
    eta: float | None = None
    on: str = ""
    least: bool = False
    number: int = 1


#: Stands for the sample of a rank that has written none yet.
NO_SAMPLE = Sample(at=0.0, since=0.0)


@dataclass(frozen=True)
class Diagnosis:
    """The most important thing about a run, in one sentence: what ended it, else what holds it up,
    else how many ranks run.

    level     "bad": it failed or hangs; "warning": it is slower than it could be; else "calm"
    ranks     whom it is about, to be marked: the slow one, the one that others wait for
    """

    sentence: str
    level: Literal["calm", "warning", "bad"] = "calm"
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Card:
    """One rank, or one device of a process that drives several.

    phase     "early": it has returned, and others failed as they missed it in a collective
    since     when the phase began, in seconds since the epoch
    place     its innermost line in the notebook, `Cell In[3], line 7`
    detail    the collective it waits in and for whom, the call it is blocked in, or its host's
              loss, in short
    line      the last line it printed, plain text of at most 200 characters
    cpu       processor time per second in its last seconds; 1.0 is one core
    step      seconds from one of its last steps to the next; None until some were seen
    waits     share of its lane, from 0 to 1, in which it waited for others; None where that cannot
              be seen
    lane      its last 60 s, of a run that is over all its time, oldest first; a gap is time of
              which nothing is known
    sample    its newest figures; views/facts.py says which are shown
    """

    rank: int
    phase: Phase = "starting"
    since: float | None = None
    device: str = ""
    host: str = ""
    pid: int | None = None
    place: str = ""
    detail: str = ""
    line: str = ""
    cpu: float | None = None
    step: float | None = None
    waits: float | None = None
    lane: tuple[Slot, ...] = ()
    bars: tuple[Bar, ...] = ()
    sample: Sample = NO_SAMPLE


@dataclass(frozen=True)
class Live:
    """What live ranks have beside what any run has.

    name    of the group
    idle    seconds without a cell after which they end; None: never
    since   when they became idle, or what runs now began
    count   how many cells they have been given; of those, `running` run now, and `lost` have ended
            without finishing
    cut     they were ended while a cell ran
    cells   the newest ones, newest first
    """

    name: str
    idle: float | None = None
    since: float | None = None
    count: int = 0
    running: int = 0
    lost: int = 0
    cut: bool = False
    cells: tuple[state.ProgramState, ...] = ()

    @property
    def is_idle(self) -> bool:
        """They are there, and no cell runs on any of them."""
        return self.since is not None and not self.running


@dataclass(frozen=True)
class Excerpt:
    """The first and last lines of one stream (`ansi.clean`); rank None is the job.

    The `left_out` lines between them are only in the file at `path`. `times`: when each of the
    others was seen, where that is known; `switches`: after how many switches of its rank from one
    stream to the other.
    """

    rank: int | None
    stream: Stream
    head: tuple[str, ...]
    left_out: int
    tail: tuple[str, ...]
    path: str
    times: tuple[float, ...] = ()
    switches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Odd:
    """Values of a figure that are no finite numbers: how many, of which kinds, the step of the one
    that came first, the least and the greatest of all."""

    since: float
    least: float
    greatest: float
    count: int
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, some: Sequence[Odd]) -> Odd:
        """All of these, in the order in which they came."""
        return cls(
            since=some[0].since,
            least=min(one.least for one in some),
            greatest=max(one.greatest for one in some),
            count=sum(one.count for one in some),
            kinds=tuple(dict.fromkeys(kind for one in some for kind in one.kinds)),
        )


@dataclass(frozen=True)
class Series:
    """A figure that ranks reported: points (step, value) by rank, of the ranks `thinned` not all of
    them.

    odd: by rank, all its values that are no finite numbers; those since it became so last apart
    """

    name: str
    lines: dict[int, list[tuple[float, float]]]
    odd: dict[int, tuple[Odd, ...]] = field(default_factory=dict)
    thinned: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """The whole run. Times are in seconds since the epoch, `elapsed` in seconds.

    headline  how the run went, or goes; the diagnosis, where there is one, is more telling
    ok        None while the run is in progress
    conclusion  what it suffers from, of which the strongest
    unit      what a card stands for: a rank, or a device if one process drives several
    hosts     names of the machines, in order
    lost      reasons by name, for hosts that were lost
    hang      the report of one that is not over, as plain text
    free      bytes of memory that can still be taken, on the host with the least
    live      these are live ranks, which a cell has only at times
    """

    run: str
    cell: str
    headline: str
    record: str
    now: float
    started: float | None = None
    ended: float | None = None
    elapsed: float = 0.0
    diagnosis: Diagnosis | None = None
    conclusion: Concluded | None = None
    ok: bool | None = None
    simulated: bool = False
    hosts: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    stopping: str = ""
    hang: HangReported | None = None
    notices: tuple[str, ...] = ()
    bar: Bar | None = None
    free: int | None = None
    unit: Unit = "rank"
    cards: tuple[Card, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    series: tuple[Series, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    returned: tuple[Returned, ...] = ()
    live: Live | None = None

    @property
    def is_calm(self) -> bool:
        """Nothing is amiss, as far as is known."""
        return self.diagnosis is None or self.diagnosis.level == "calm"


def hosts_in_short(snapshot: Snapshot) -> str:
    """The host's name, or `4 hosts, 1 lost`."""
    names = f"{len(snapshot.hosts)} hosts" if len(snapshot.hosts) > 1 else "".join(snapshot.hosts)
    return f"{names}, {len(snapshot.lost)} lost" if snapshot.lost else names
