"""A cell's own `jax.distributed.initialize(...)`: its arguments are checked, and nothing else.

xla_nb joins the ranks itself, so the call has nothing left to do. Numbers that match the run pass;
any others raise an error, because the cell would run in another world than it says. The coordinator
may be any: the ranks have met already, and a cell cannot know where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from xla_nb.wording import several

_Ids: TypeAlias = int | Sequence[int] | None


class WorldMismatch(ValueError):
    """`jax.distributed.initialize` was called with arguments that do not match the run."""


@dataclass(frozen=True)
class Membership:
    """A rank's position in its world; `device_ids` are its devices, where xla_nb assigns them."""

    ranks: int
    ranks_here: int  # on this host
    rank: int
    device_ids: tuple[int, ...] | None = None


class Guard:
    """Replaces `initialize` and `shutdown` of `jax.distributed`.

    Calls in the job, before there are ranks, are checked once the rank is known.
    """

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._early: list[tuple[int | None, int | None, _Ids]] = []

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
        arguments = num_processes, process_id, local_device_ids
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
    mine: Membership, num_processes: int | None, process_id: int | None, local_device_ids: _Ids
) -> None:
    """Raise `WorldMismatch` for an argument that does not match this rank."""
    if num_processes is not None and num_processes != mine.ranks:
        several_hosts = mine.ranks_here < mine.ranks
        _refuse(
            f"num_processes={num_processes}",
            f"this run has {several(mine.ranks, 'rank')}",
            "Change -n or --hosts" if several_hosts else f"Launch with -n {num_processes}",
        )
    if process_id is not None and process_id != mine.rank:
        _refuse(
            f"process_id={process_id}",
            f"this is rank {mine.rank}",
            "Pass the number that the function is called with",
        )
    if local_device_ids is None or mine.device_ids is None:
        return
    ids = (local_device_ids,) if isinstance(local_device_ids, int) else tuple(local_device_ids)
    if ids != mine.device_ids:
        _refuse(
            f"local_device_ids={local_device_ids!r}",
            f"this rank has {list(mine.device_ids)}",
            "Launch with a rank for each device",
        )


def _refuse(argument: str, actual: str, fix: str) -> NoReturn:
    raise WorldMismatch(
        f"jax.distributed.initialize({argument}), but {actual}. {fix}, or leave the argument out: "
        "xla_nb has already joined the ranks."
    )
