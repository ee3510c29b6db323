"""A cell's own `jax.distributed.initialize(...)`: checked against the world that it is in.

xla_nb joins each rank itself, so the call has nothing left to do. The rule: arguments that say
what is so anyway pass, whatever else they say is an error, and nothing is initialised twice.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

_Ids: TypeAlias = int | Sequence[int] | None


class WorldMismatch(ValueError):
    """`jax.distributed.initialize` was told of another world than the one the rank is in."""


@dataclass(frozen=True)
class Membership:
    """A rank's place in its world; `device_ids` are the devices it has, where it is told."""

    address: str
    ranks: int
    rank: int
    device_ids: tuple[int, ...] | None = None


class Guard:
    """Stands in for `initialize` and `shutdown` of `jax.distributed`.

    Calls that come in the job, before there are ranks, are kept until the rank is known.
    """

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._early: list[tuple[str | None, int | None, int | None, _Ids]] = []

    def initialize(
        self,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        local_device_ids: _Ids = None,
        *_args: object,
        **_kwargs: object,
    ) -> None:
        """xla_nb has joined this process to the others; the arguments are only checked."""
        told = coordinator_address, num_processes, process_id, local_device_ids
        if self._membership is None:
            self._early.append(told)
        else:
            check(self._membership, *told)

    def shutdown(self) -> None:
        """Nothing: the rank leaves when its function has ended, and without the others."""

    def admit(self, membership: Membership) -> None:
        self._membership = membership
        for call in self._early:
            check(membership, *call)


_guard = Guard()


def install() -> None:
    """In the job, before the cell's module is loaded, which may bind `initialize` to a name."""
    import jax
    from jax._src import distributed

    module: Any
    for module in (jax.distributed, distributed):
        module.initialize = _guard.initialize
        module.shutdown = _guard.shutdown


def admit(membership: Membership) -> None:
    """In the rank: who it is. Raises `WorldMismatch` if the cell has said something else."""
    _guard.admit(membership)


def check(
    mine: Membership,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    local_device_ids: _Ids,
) -> None:
    """Raise `WorldMismatch` for an argument that is given and is not so."""
    if coordinator_address is not None and not _same_place(coordinator_address, mine.address):
        _refuse(mine, "coordinator_address", coordinator_address, repr(mine.address))
    if num_processes is not None and num_processes != mine.ranks:
        _refuse(mine, "num_processes", num_processes, str(mine.ranks))
    if process_id is not None and process_id != mine.rank:
        _refuse(mine, "process_id", process_id, str(mine.rank))
    if local_device_ids is None or mine.device_ids is None:
        return
    ids = (local_device_ids,) if isinstance(local_device_ids, int) else tuple(local_device_ids)
    if ids != mine.device_ids:
        _refuse(mine, "local_device_ids", local_device_ids, repr(list(mine.device_ids)))


_THIS_MACHINE = {"localhost", "127.0.0.1", "[::1]"}  # and its own name


def _same_place(given: str, ours: str) -> bool:
    """The same address, or any port of this machine: a cell cannot know the one we were given."""
    hosts = {given.rpartition(":")[0], ours.rpartition(":")[0]}
    return given == ours or hosts <= _THIS_MACHINE | {socket.gethostname()}


def _refuse(mine: Membership, name: str, given: object, so: str) -> None:
    raise WorldMismatch(
        f"jax.distributed.initialize({name}={given!r}): in this run it is {so}. xla_nb has already "
        f"joined its {mine.ranks} processes. What to do: leave the arguments out, or the call"
    )
