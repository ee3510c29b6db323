"""The visible state of a run at one moment.

The live panel, saved HTML and saved text all render a Snapshot, so they cannot disagree; only the
observer reads files and events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages.events import Concluded, HangReported
from xla_nb.monitor import state
from xla_nb.monitor.activity import Slot
from xla_nb.monitor.sentences import Returned, Trouble
from xla_nb.record.sample import Sample

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, Stream] = ("out", "err")
Phase = Literal[state.Phase, "compiling", "idle", "waiting", "not responding", "early"]
ENDED: frozenset[Phase] = frozenset({"early", *state.ENDED})
UNDER_WAY: frozenset[Phase] = frozenset(
    {"starting", "running", "compiling", "waiting", "not responding"}
)


@dataclass(frozen=True)
class Bar:
    """Progress of a loop: `done` of `total` items, `rate` in items per second, `eta` in seconds.
    All except `done` are None when unknown. `on`: the ranks in the loop, if others are not in it.
    `least`: they have done at least so much, like a rank that died after its last sample.
    `note`: times and rate of a tqdm bar. `number`: index, from 1, among the rank's loops with this
    label."""

    label: str
    done: float
    total: float | None
    rate: float | None = None
    eta: float | None = None
    on: str = ""
    least: bool = False
    note: str = ""
    number: int = 1


#: Placeholder for the sample of a rank that has not written one yet.
NO_SAMPLE = Sample(at=0.0, since=0.0)


@dataclass(frozen=True)
class Diagnosis:
    """The most important fact about a run, in one sentence: the cause of its end, else the current
    delay, else the number of running ranks.

    level     "bad": it failed or hangs; "warning": it is slower than it could be; else "calm"
    ranks     ranks to mark: the slow rank, or the rank that others wait for
    """

    sentence: str
    level: Literal["calm", "warning", "bad"] = "calm"
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Card:
    """One rank.

    phase     "early": it returned, and others failed because it was missing in a collective; "not
              responding": no sample has arrived for some time, so what it does is unknown
    since     when the phase began, in seconds since the epoch
    place     its innermost line in the notebook, `Cell In[3], line 7`
    detail    in short: the collective it waits in and for which ranks, the call it is blocked
              in, or the loss of its host
    line      the last line it printed, plain text of at most 200 characters
    step      seconds between its last steps; None until some were seen
    waits     share of its lane, from 0 to 1, in which it waited for others; None if that is not
              visible
    lane      its last 60 s, or its whole time if the run is over, oldest first; a gap means that
              nothing is known about that time
    sample    its newest sample; views/facts.py defines which values are shown
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
    step: float | None = None
    waits: float | None = None
    lane: tuple[Slot, ...] = ()
    bars: tuple[Bar, ...] = ()
    sample: Sample = NO_SAMPLE


@dataclass(frozen=True)
class Live:
    """Facts that only live ranks have.

    name    name of the group
    idle    seconds without a cell after which the ranks end; None: never
    since   when they became idle, or when the current cell started
    count   number of cells they have received, of which `running` are running now and `lost` ended
            without finishing
    cut     whether they were ended while a cell ran
    cells   the newest cells, newest first
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
        """Whether the ranks exist and no cell is running on any of them."""
        return self.since is not None and not self.running


@dataclass(frozen=True)
class Excerpt:
    """The first and last lines of one stream (`ansi.clean`); rank None is the job.

    The `left_out` lines between them are only in the file at `path`. `times`: when each shown line
    was seen, if known. `switches`: how many switches of its rank from one stream to the other
    precede each shown line.
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
class Series:
    """A figure that ranks reported: points (step, value) by rank.

    odd: by rank, the steps (step, `NaN`) where it first and last became non-finite
    """

    name: str
    lines: dict[int, list[tuple[float, float]]]
    odd: dict[int, tuple[tuple[float, str], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The whole run. Times are in seconds since the epoch, `elapsed` in seconds.

    headline  the outcome or state of the run; the diagnosis, unless empty, says more
    ok        None while the run is in progress
    conclusion  the most important problem found in the run
    hosts     names of the machines, in order
    lost      reasons for lost hosts, by host name
    hang      the report of a hang still in progress, as plain text
    free      bytes of free memory on the host that has the least
    live      facts about live ranks, which run a cell only at times; None for other runs
    """

    run: str
    cell: str
    headline: str
    record: str
    now: float
    started: float | None = None
    elapsed: float = 0.0
    diagnosis: Diagnosis = Diagnosis("")
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
    cards: tuple[Card, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    series: tuple[Series, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    returned: tuple[Returned, ...] = ()
    live: Live | None = None

    @property
    def is_calm(self) -> bool:
        """Whether no problem is known."""
        return self.diagnosis.level == "calm"
