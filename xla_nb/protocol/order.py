"""What a launch asks of a host: all that a job must know, and nothing about who asked.

The rule: an order is plain data and complete; a job looks at it, never at the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb.protocol.random_state import Inheritance

#: The module global that holds the entry's arguments, and its place in the parcel of values.
ARGUMENTS = "__xla_nb_args__"
ARGUMENTS_GROUP = -1


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
class Order:
    """One run on one host. `ranks` is how many there, None for as many as there are; `n`
    and `user_env` are the options -n and --env; `program` is the module's file.
    """

    run: str
    runtime: str
    program: str
    record: str
    entry: str | None
    takes_lock: bool
    by_name: frozenset[str]
    n: int | None
    user_env: Mapping[str, str]
    ranks: int | None
    device: str
    env: Mapping[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    authkey: bytes
    inheritance: Inheritance
    host_group: HostGroup = HostGroup()
