"""What a rank is doing: a sample, taken a few times a second.

Only the newest sample counts, so it is a file that is overwritten and never an event. It remains
when the rank is killed, and costs nothing where nobody reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from xla_nb.messages import checked_json

Activity = Literal["running", "compiling", "waiting", "blocked", "idle"]
_MARKERS = 4  # at most in a step
#: The operation of a rank that waits for the `lock` that ranks share.
LOCK = "lock"
#: The operation of one that waits for an answer in the notebook.
INPUT = "input()"
#: That of one that waits for a loader's next batch, which is running.
DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop under `xla_nb.progress`, the `number`-th of its label; `rate` is in items per second,
    None until it is known, and the next item takes `since` seconds so far. `finished`: exhausted or
    left."""

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

    activity        blocked: in a call that only waits, such as time.sleep; idle: a live rank that
                    has nothing to run
    place           the innermost line of the notebook, `Cell In[3], line 7`
    operation       the collective that the rank waits in, or LOCK or INPUT, for the ranks
                    `missing`; of LOCK that is the rank that holds it, none if that is not known.
                    DATA, or the blocking call that it is in, however short
    memory          bytes of its host's memory, of pages that others have too only its share
    free            bytes of that memory that can still be taken, by any process
    device_*        bytes; None if the backend does not report them
    cpu             seconds of processor time so far
    compiles        graphs compiled, in `compile_seconds`
    compiling       seconds for which the compilation in progress has been seen; 0 if there is none
    waited          seconds of waiting in collectives so far, with the wait in progress; None where
                    that cannot be seen, as on a TPU
    lock_waited     the same for the `lock`
    data_waited     seconds of waiting for a loader's next batch so far
    blocked         seconds in calls that only waited so far
    idle            seconds in which a live rank had nothing to run so far
    steps           step markers (torch_xla.sync)
    graphs          graphs looked up, each to be executed
    items           items done of loops under `xla_nb.progress`, but of those in which another
                    began
    changes_at      the line whose tensors have another shape, or whose numbers are others, from
                    step to step, where each step compiles; `change` says what changes
    fallbacks_at    the lines at which operators fell back to the CPU, by operator
    returned        its function has returned, and the result is on its way
    heeds           an interrupt ends what it does: its program has set no handler of its own
    locks           times that the process has got the `lock`
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
        """Its steps are the items of its loops: loaders and optimizers mark steps beside the loop's
        own, but an item with many of them is an epoch, say."""
        return self.items > 0 and self.steps <= _MARKERS * self.items

    @property
    def done(self) -> int:
        """Steps so far: items of loops, or else step markers."""
        return self.items if self.loops_step else self.steps

    @property
    def executed(self) -> int:
        """Graphs executed so far. Nobody counts what JAX executes: one for each step."""
        return self.graphs or self.done


def encode(sample: Sample) -> bytes:
    """The sample as one line of JSON. Lone surrogates, which no front end could be sent, become
    question marks."""
    text = json.dumps(vars(sample), default=vars, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def decode(data: bytes) -> Sample:
    """The sample that `encode` wrote. Raises ValueError for anything else, such as half of one."""
    try:
        return checked_json.made(Sample, json.loads(data))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not a sample: {data[:200]!r}") from problem
