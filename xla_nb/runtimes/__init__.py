"""The runtimes that ranks can use: the modules xla, spmd and torchax, listed in `NAMES`.

`fit` and `forking` serve all of them; the other modules serve the runtime in their name.
`plan` runs in the notebook, which does not import torch, so no module here imports torch or JAX at
its top. `prepare` runs in the job before the fork, and `Prepared` in the job and its ranks.
docs/how-it-works.md says how to add a runtime.
"""

from __future__ import annotations

import abc
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from xla_nb.messages.orders import Order
from xla_nb.runtimes.forking import Lifecycle
from xla_nb.stopwatch import Wait

NAMES = ("xla", "spmd", "torchax")


@dataclass(frozen=True)
class Machine:
    """One of the `hosts` of a run: `device` is "TPU" or "CPU". `env` is its environment,
    `user_env` the variables of --env, which take precedence."""

    device: str
    chips: int
    accelerator: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user_env: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 1

    def variable(self, name: str) -> str:
        """The variable's value in the ranks; an empty string if it is not set."""
        return self.user_env.get(name, self.env.get(name, ""))


@dataclass(frozen=True)
class Plan:
    """The needs of a launch: `sets` are variables for its environment, `imports` modules for its
    fork server, `notices` messages for the user. `ranks` None: the runtime counts its devices."""

    ranks: int | None
    sets: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankInfo:
    """The size of a rank's world, and its device.

    `device` is the value of that name in a cell without a function, `shown` its text for display;
    `devices` are the names of all devices if one process drives several.
    """

    world_size: int
    device: object
    shown: str
    devices: tuple[str, ...] = ()


class Counts(NamedTuple):
    """torch_xla's counters at one moment, or another runtime's equivalents."""

    hits: int = 0  # graphs found in the compilation cache
    misses: int = 0  # graphs not found in it, which are compiled next
    compiles: int = 0
    compile_seconds: float = 0.0
    steps: int = 0
    fallbacks: Counter[str] = Counter()  # noqa: RUF012 # operators that ran on the CPU


class Prepared(abc.ABC):
    """A runtime in the job and, through the fork, in each rank.

    The meter reads its figures, in any thread of a rank; the defaults are for runtimes whose
    collectives are part of a compiled program."""

    ranks: int
    simulated = False  # whether the ranks belong to a simulated TPU host

    @abc.abstractmethod
    def start(self, life: Lifecycle) -> None:
        """Fork the processes, each with this lifecycle; return when all have ended."""

    @abc.abstractmethod
    def join(self, local_rank: int, processes: int) -> None:
        """In a new process, before the user's function: join the other ranks."""

    @abc.abstractmethod
    def rank_info(self, rank: int) -> RankInfo:
        """In a rank that has joined: its position and device."""

    def begin(self, number: int, members: Iterable[int] | None) -> None:
        """In a live rank, before each program. Its `number` is higher than the last one's and the
        same on all ranks that run it, which are `members` (None: all)."""
        return

    def leave(self, reason: str) -> None:
        """In a rank, after its function; `reason` is "returned" or "raised ValueError"."""
        return

    def consequence(self, error: BaseException) -> BaseException | None:
        """The error, with a clear message, if the end of another rank caused it; otherwise None."""
        return None

    @abc.abstractmethod
    def counts(self) -> Counts:
        """Compilations and steps so far."""

    def waiting(self) -> Wait | None:
        """The collective that this rank waits in; None if there is none, or it is not visible."""
        return None

    def waited(self) -> float | None:
        """Seconds that this rank has waited in collectives so far, including the current one; None
        if that is not visible."""
        return None

    def memory(self) -> tuple[int, int] | None:
        """Bytes in use on the device, and its capacity; None if unknown."""
        return None


class Runtime(Protocol):
    """The functions that a runtime's module defines."""

    def plan(self, machine: Machine, n: int | None) -> Plan:
        """Plan a launch. Raises XlaNbError if this machine or n does not fit."""

    def set_up(self, order: Order) -> None:
        """In the job, before the program's module is executed."""

    def prepare(self, order: Order) -> Prepared:
        """In the job, after the module and before the fork. Raises OSError at a system limit."""

    def opened(self) -> str | None:
        """Why this process can no longer fork ranks, if the program opened a device; else None."""


def named(name: str) -> Runtime:
    """Return the runtime with this name, one of `NAMES`."""
    module: Any = importlib.import_module(f"xla_nb.runtimes.{name}")
    return cast(Runtime, module)
