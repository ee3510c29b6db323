"""What travels to where a run is started: the notebook's request, and a host's order.

A job knows its order and nothing of who asked: whatever a rank needs of the notebook is in here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from xla_nb.process_state.random_state import Inheritance
from xla_nb.process_state.settings import ProcessState

#: The module global that holds the entry's arguments.
ARGUMENTS = "__xla_nb_args__"
#: That of an entry which the notebook has under no name.
ENTRY = "_xla_nb_entry"


@dataclass(frozen=True)
class HostGroup:
    """The hosts of a run as one of them sees it, the one that is number `index` of `hosts`.

    `address` is where host 0 receives the others (a name or number, and a free port of it);
    None on the only host.
    """

    hosts: int = 1
    index: int = 0
    address: tuple[str, int] | None = None


@dataclass(frozen=True)
class Turn:
    """A program of live ranks: the `number`-th, from 1, of the group that is the run `group`.

    `members` are the ranks that run it, None for all; every rank gets what it brings of the
    notebook, but for the names `remote`, which are the ranks' own. `asks`: it is a question of the
    notebook's about them, and no cell of the user's.
    """

    group: str
    number: int
    members: tuple[int, ...] | None = None
    remote: frozenset[str] = frozenset()
    asks: bool = False

    def is_for(self, rank: int) -> bool:
        """Whether a rank runs it."""
        return self.members is None or rank in self.members


@dataclass(frozen=True)
class Request:
    """What a launch asks for, as the notebook's machine has it.

    `n` and `user_env` are the options -n and --env; `program` is the module's file, if there is
    one, `record` the run's folder; `entry` is None for a cell of plain statements, else what binds
    `binds`, if anything. `label` is the launched cell's, `magic` the one that launches it. `drops`:
    None takes the place of a result that cannot be sent. `why_mute` says why its ranks cannot ask
    in the notebook (`input()`), where that is so. `lives`: the ranks run no entry, but programs
    until they are told to end; each of those has a `turn`, the map of its lines (`table`) instead
    of a file, and neither `inheritance` nor `state`, which its processes have had since they began.
    """

    run: str
    runtime: str
    program: str
    record: str
    entry: str | None
    takes_lock: bool
    n: int | None
    user_env: Mapping[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    authkey: bytes
    inheritance: Inheritance | None = None
    label: str = ""
    magic: str = ""
    binds: tuple[str, ...] = ()
    drops: bool = False
    state: ProcessState | None = None
    why_mute: str = ""
    lives: bool = False
    turn: Turn | None = None
    table: str = ""


@dataclass(frozen=True)
class Order:
    """A request fitted to the host that carries it out: what the job there does.

    `ranks` is how many start there, None for as many as there are; `env` their whole environment.
    `at` is of that host's `time.monotonic()`.
    """

    request: Request
    device: str
    ranks: int | None
    env: Mapping[str, str]
    host_group: HostGroup = HostGroup()
    at: float = field(default_factory=time.monotonic)
