"""A cell's own `jax.distributed.initialize(...)`: its arguments are checked, and nothing else.

xla_nb joins the ranks itself, so the call has nothing left to do. Arguments that match the run
pass; any others raise an error, because the cell would run in another world than it says.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

_Ids: TypeAlias = int | Sequence[int] | None


class WorldMismatch(ValueError):
    """`jax.distributed.initialize` was called with arguments that do not match the run."""


@dataclass(frozen=True)
class Membership:
    """A rank's position in its world; `device_ids` are its devices, where xla_nb assigns them."""

    address: str
    ranks: int
    rank: int
    device_ids: tuple[int, ...] | None = None


class Guard:
    """Replaces `initialize` and `shutdown` of `jax.distributed`.

    Calls in the job, before there are ranks, are checked once the rank is known.
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
        """Check the arguments; xla_nb has already joined this process to the others."""
        arguments = coordinator_address, num_processes, process_id, local_device_ids
        if self._membership is None:
            self._early.append(arguments)
        else:
            check(self._membership, *arguments)

    def shutdown(self) -> None:
        """Nothing: the rank leaves when its function has ended, without waiting for the others."""

    def admit(self, membership: Membership) -> None:
        self._membership = membership
        for call in self._early:
            check(membership, *call)


_guard = Guard()


def install() -> None:
    """In the job, before the cell's module, which may bind `initialize` to a name."""
    import jax
    from jax._src import distributed

    module: Any
    for module in (jax.distributed, distributed):
        module.initialize = _guard.initialize
        module.shutdown = _guard.shutdown


def admit(membership: Membership) -> None:
    """In the rank: check the early calls. Raises `WorldMismatch` if one does not match."""
    _guard.admit(membership)


def check(
    mine: Membership,
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    local_device_ids: _Ids,
) -> None:
    """Raise `WorldMismatch` for an argument that does not match this rank."""
    if coordinator_address is not None and not _same_address(coordinator_address, mine.address):
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


def _same_address(theirs: str, ours: str) -> bool:
    """The same address, or any port of this machine: a cell cannot know which port is free."""
    hosts = {theirs.rpartition(":")[0], ours.rpartition(":")[0]}
    return theirs == ours or hosts <= _THIS_MACHINE | {socket.gethostname()}


def _refuse(mine: Membership, name: str, value: object, actual: str) -> None:
    raise WorldMismatch(
        f"jax.distributed.initialize({name}={value!r}) does not match this run, where {name} is "
        f"{actual}. Remove the arguments, or the call: xla_nb has already joined the "
        f"{mine.ranks} processes."
    )
