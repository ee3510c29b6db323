"""What a rank joins: each module here is one runtime, and `NAMES` lists them.

The rule: what differs between runtimes is in their files. `plan` is asked in the notebook, where
torch is not to be imported; `prepare` in the job, before anything is forked; `Prepared` is for
the job and its ranks. docs/how-it-works.md tells how another one is added.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from xla_nb.errors import UsageError
from xla_nb.protocol.order import Order
from xla_nb.runtimes.forking import Lifecycle
from xla_nb.runtimes.gauges import Gauges

NAMES = ("xla", "spmd", "torchax")


@dataclass(frozen=True)
class Machine:
    """What a machine has that is one of `hosts`: `device` is "TPU" or "CPU". `env` are its
    variables, `user_env` those of --env, which win."""

    device: str
    chips: int
    accelerator: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user_env: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 1

    def variable(self, name: str) -> str:
        """What the ranks will see by that name; empty where it is not set."""
        return self.user_env.get(name, self.env.get(name, ""))


@dataclass(frozen=True)
class Plan:
    """What a launch of so many ranks needs: `sets` are variables of its environment, `imports`
    what its fork server imports. `ranks` None: the runtime finds out."""

    ranks: int | None
    sets: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankInfo:
    """What a rank is in its world.

    `device` is what a cell without a function has by that name, `shown` how people are told;
    `devices` are the names of those that one process drives where it drives several.
    """

    local_rank: int
    world_size: int
    device: object
    shown: str
    devices: tuple[str, ...] = ()


class Prepared(Gauges, Protocol):
    """A runtime in the job and, through the fork, in each rank. Its gauges are read by the meter:
    `waiting` where the runtime knows of collectives, `memory` where the backend tells."""

    @property
    def ranks(self) -> int: ...
    @property
    def simulated(self) -> bool: ...

    def start(self, life: Lifecycle) -> None:
        """Fork the processes, each of which lives so; return when all have ended."""

    def join(self, local_rank: int, processes: int) -> None:
        """In a new process, before the user's function: take part in the runtime."""

    def place(self, rank: int) -> RankInfo:
        """In a rank that has joined."""

    def leave(self, why: str) -> None:
        """In a rank whose function is over: "returned", "raised ValueError"."""

    def consequence(self, error: BaseException) -> BaseException | None:
        """An error that is only due to another rank's end, in words that say so; None for one
        that is a cause by itself."""


class Runtime(Protocol):
    """A module of this package."""

    def plan(self, machine: Machine, n: int | None) -> Plan:
        """What a launch needs. Raises XlaNbError where this machine, or n, will not do."""

    def set_up(self) -> None:
        """In the job, before the program's module is executed."""

    def prepare(self, order: Order) -> Prepared:
        """In the job, after that and before anything is forked. An OSError is the machine's."""

    def opened(self) -> str | None:
        """Why no rank can be forked from this process any more, if so: what has opened a device."""


def named(name: str) -> Runtime:
    """The runtime of that name; raises UsageError when there is none."""
    if name not in NAMES:
        raise UsageError(f"--runtime {name}: there are {', '.join(NAMES)}")
    module: Any = importlib.import_module(f"xla_nb.runtimes.{name}")
    return cast(Runtime, module)
