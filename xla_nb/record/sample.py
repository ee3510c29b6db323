"""A sample of a rank's activity, taken a few times a second.

Only the newest sample counts, so it is a file that is overwritten and never an event. It remains
when the rank is killed, and costs nothing if nobody reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages import checked_json

Activity = Literal["running", "compiling", "waiting", "blocked", "idle"]
_MAX_MARKERS = 4  # most step markers in one step
_SILENT = 3.0  # seconds, plus one for every few ranks, without a sample until a rank is silent
#: The operation of a rank that waits for the shared `lock`.
LOCK = "lock"
#: The operation of a rank that waits for an answer in the notebook.
INPUT = "input()"
#: The operation of a rank that waits for a loader's next batch; its activity is running.
DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop under `xla_nb.progress`, the `number`-th with its label; `rate` is in items per
    second, None until known; `since` is the time of the current item so far, in seconds;
    `finished`: exhausted or left."""

    label: str
    done: int
    total: int | None
    rate: float | None
    since: float = 0.0
    finished: bool = False
    number: int = 1


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample. `at` and `since` (when the activity began) are in seconds since the epoch.

    activity        blocked: in a call that only waits, such as time.sleep; idle: a live rank with
                    nothing to run
    place           the innermost line of the notebook, `Cell In[3], line 7`
    operation       the collective that the rank waits in, or LOCK or INPUT, for the ranks
                    `missing`: for LOCK, the rank that holds it, none if unknown. Otherwise DATA,
                    or the blocking call that it is in, however short
    memory          bytes of host memory; of shared pages only its share
    free            bytes of host memory still available to any process
    device_*        bytes; None if the backend does not report them
    cpu             seconds of processor time so far
    compiles        graphs compiled, in `compile_seconds`
    compiling       seconds of the compilation in progress, as far as seen; 0 if there is none
    waited          seconds of waiting in collectives so far, with the wait in progress; None if
                    not visible, as on a TPU
    lock_waited     the same for the `lock`
    data_waited     seconds of waiting for a loader's next batch so far; `first_data_waited` of
                    these in the first wait, in which the loader's workers start
    blocked         seconds in calls that only wait so far
    idle            seconds in which a live rank had nothing to run so far
    steps           step markers (torch_xla.sync)
    graphs          graphs looked up, each to be executed
    items           items done in loops under `xla_nb.progress`, except loops in which another
                    loop began
    changes_at      the line whose tensors' shapes, or whose numbers, differ from step to step, if
                    each step compiles; `change` says which changes
    fallbacks_at    the lines at which operators fell back to the CPU, by operator
    returned        its function has returned, and the result is being sent
    heeds           an interrupt ends its program, which has set no handler
    locks           number of times that the process acquired the `lock`
    fallbacks       calls of each `aten::` operator that fell back to the CPU
    """

    at: float
    activity: Activity = "running"
    since: float
    place: str = ""
    operation: str = ""
    missing: tuple[int, ...] = ()
    memory: int | None = None
    free: int | None = None
    cpu: float = 0.0
    device_used: int | None = None
    device_limit: int | None = None
    compiles: int = 0
    compile_seconds: float = 0.0
    compiling: float = 0.0
    waited: float | None = None
    lock_waited: float = 0.0
    data_waited: float = 0.0
    first_data_waited: float = 0.0
    blocked: float = 0.0
    idle: float = 0.0
    steps: int = 0
    graphs: int = 0
    items: int = 0
    changes_at: str = ""
    change: str = ""
    fallbacks_at: dict[str, str] = field(default_factory=dict)
    returned: bool = False
    heeds: bool = False
    locks: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    loops: tuple[Loop, ...] = ()

    @property
    def loops_step(self) -> bool:
        """Whether items of its loops are its steps: loaders and optimizers mark extra steps within
        an item, but an item with many of them is an epoch, say."""
        return self.items > 0 and self.steps <= _MAX_MARKERS * self.items

    @property
    def done(self) -> int:
        """Steps so far: items of loops, otherwise step markers."""
        return self.items if self.loops_step else self.steps

    @property
    def executed(self) -> int:
        """Graphs executed so far. JAX executions are not counted: one per step is assumed."""
        return self.graphs or self.done


def ticks(ranks: int) -> int:
    """Quarters of a second between two samples of each of so many ranks: many share few cores."""
    return 1 + ranks // 64


def silence(ranks: int) -> float:
    """Seconds without a sample from which one of so many ranks is taken to be silent: it may have
    been stopped."""
    return _SILENT + ticks(ranks)


def encode(sample: Sample) -> bytes:
    """The sample as one line of JSON. Lone surrogates, which cannot be sent to a front end, become
    question marks."""
    text = json.dumps(vars(sample), default=vars, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def decode(data: bytes) -> Sample:
    """The sample that `encode` wrote. Raises ValueError for anything else, such as half of one."""
    try:
        return checked_json.made(Sample, json.loads(data))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not a sample: {data[:200]!r}") from problem
