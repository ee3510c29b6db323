"""What is to be seen of a run at one moment.

The rule: everything that shows a run (the live page, the saved cell, plain text) shows a Snapshot;
none of them reads files or folds events itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["rank", "device"]
Phase = Literal[
    "starting", "running", "compiling", "waiting", "finished", "failed", "killed", "stopped"
]


@dataclass(frozen=True)
class Bar:
    """How far a loop is: `done` of `total` (None: unknown). `rate` is items a second, `eta`
    seconds to go; both None when unknown."""

    label: str
    done: float
    total: float | None
    rate: float | None = None
    eta: float | None = None


@dataclass(frozen=True)
class Card:
    """One rank.

    since             when the phase began, seconds since the epoch
    place             its innermost notebook line, `Cell In[3], line 7`
    detail            what it waits in and for whom; its result in short; its error in short
    line              the last line it printed (`ansi.clean`), at most 200 characters
    rss, device_*     bytes; None where nobody knows
    cpu               1.0 is one core
    fallbacks         calls by `aten::` operator that ran on the CPU
    clients           clients of a device that it started, by who did: torch_xla, jax
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
    rss: int | None = None
    cpu: float | None = None
    device_used: int | None = None
    device_limit: int | None = None
    compiles: int = 0
    compile_seconds: float = 0.0
    steps: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    bars: tuple[Bar, ...] = ()
    clients: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Trouble:
    """Ranks that failed alike, one leading and the others in order. `first`: the leading one was
    the first of the run to fail.

    `text` is the traceback of the leading rank (may be empty), `others` are the ranks
    whose error has other words, a line each.
    """

    ranks: tuple[int, ...]
    first: bool
    title: str
    place: str
    text: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Excerpt:
    """Head and tail of one stream's output (`ansi.clean` lines); rank None is the job.

    `left_out` lines between them are only in the file `path`.
    """

    rank: int | None
    stream: Literal["out", "err"]
    head: tuple[str, ...]
    left_out: int
    tail: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class Series:
    """A figure that ranks reported: points (step, value) by rank, thinned out when many."""

    name: str
    lines: dict[int, list[tuple[float, float]]]


@dataclass(frozen=True)
class Snapshot:
    """The whole run. Times are seconds since the epoch, `elapsed` seconds; `ok` None: it runs.
    A card is a rank's, or, where one process drives several, a device's: `unit` says which.
    `hosts` are the machines in their order, of which a card names one; `lost` says why of those
    that are gone."""

    run: str
    cell: str
    headline: str
    record: str
    now: float
    started: float | None = None
    ended: float | None = None
    elapsed: float = 0.0
    ok: bool | None = None
    simulated: bool = False
    hosts: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    stopping: str = ""
    notices: tuple[str, ...] = ()
    bar: Bar | None = None
    unit: Unit = "rank"
    cards: tuple[Card, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    series: tuple[Series, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()


def of_hosts(snapshot: Snapshot) -> str:
    """The hosts of a run in a few words: its name, or `4 hosts, 1 lost`."""
    names = f"{len(snapshot.hosts)} hosts" if len(snapshot.hosts) > 1 else "".join(snapshot.hosts)
    return f"{names}, {len(snapshot.lost)} lost" if snapshot.lost else names
