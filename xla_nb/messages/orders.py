"""Messages that start a run: the notebook's request, and a host's order.

A job knows only its order: everything that a rank needs from the notebook is in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from xla_nb.process_state.random_state import Inheritance
from xla_nb.process_state.settings import ProcessState

#: The module global that holds the entry's arguments.
ARGUMENTS = "__xla_nb_args__"
#: The module global of an entry that has no name in the notebook.
ENTRY = "_xla_nb_entry"


@dataclass(frozen=True)
class HostGroup:
    """The hosts of a run, as seen by number `index` of `hosts`.

    `address` is where host 0 receives the others (its name or IP address, and a free port);
    None if there is only one host.
    """

    hosts: int = 1
    index: int = 0
    address: tuple[str, int] | None = None


@dataclass(frozen=True)
class Turn:
    """A program of live ranks: the `number`-th, from 1, of the group whose run is `group`.

    `members` are the ranks that run it, None for all; every rank receives the values it brings from
    the notebook, except for the names `remote`, which belong to the ranks. `asks`: it is a question
    from the notebook about the ranks, not a cell of the user.
    """

    group: str
    number: int
    members: tuple[int, ...] | None = None
    remote: frozenset[str] = frozenset()
    asks: bool = False

    def is_for(self, rank: int) -> bool:
        """True if the rank runs it."""
        return self.members is None or rank in self.members


@dataclass(frozen=True)
class Request:
    """A launch, as requested by the notebook.

    `n`, `user_env`, `hosts`, `slices` and `wait` are options of the magic; `program` is the
    module's file, if any, `record` the run's folder; `entry` is the name of the function to call,
    None for a cell of plain statements; `binds` are the names that it binds, if any. `label` is
    that of the launched cell, `magic` the magic that launches it. `drops`: replace a result that
    cannot be sent by None. `mute`: the ranks cannot ask in the notebook (`input()`). `lives`: the
    ranks run no entry, but programs until they are told to end. Each such program has a `turn`, and
    the map of its lines (`table`) instead of a file, but no `inheritance` and no `state`, which its
    processes have had since they began.
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
    mute: bool = False
    lives: bool = False
    turn: Turn | None = None
    hosts: int | None = None
    slices: int | None = None
    wait: float = 0.0
    table: str = ""


@dataclass(frozen=True)
class Order:
    """A request fitted to the host that carries it out, for the job there.

    `ranks` is how many start there, None for all possible; `env` their whole environment. `at` is a
    time of that host's `time.monotonic()`.
    """

    request: Request
    device: str
    ranks: int | None
    env: Mapping[str, str]
    host_group: HostGroup = HostGroup()
    at: float = field(default_factory=time.monotonic)
