"""What a program is built from: the notebook as it is at this moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from xla_nb.program.cells import Cell, Pending
from xla_nb.protocol.units import Sent


@dataclass(frozen=True)
class Scope:
    """What the notebook (or script) contains at this moment.

    `values` are its live globals; `cells` ran before, oldest first. The source of `pending` cells
    is newer than `values`, for the names that count; so are the values of `computed` names, which
    are still with the runs of launched cells. `executed` are the cells that a magic has executed.
    For live ranks, `sent` is what they have been sent, `remote` are the names that are theirs, and
    `lost` those of ranks that have ended, each with a clause on that.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    pending: Sequence[Pending] = ()
    computed: Set[str] = frozenset()
    executed: Sequence[Cell] = ()
    sent: Sent | None = None
    remote: Set[str] = frozenset()
    lost: Mapping[str, str] = field(default_factory=dict)


class OnlyTheRunHas(Exception):
    """Raised while a program is built that needs `names`, which are computed: take them first."""

    def __init__(self, names: Set[str]) -> None:
        super().__init__(*sorted(names))
        self.names = names
