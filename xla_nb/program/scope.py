"""What a program is built from: the notebook as it is at this moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from xla_nb.program.cells import Cell
from xla_nb.protocol.units import Sent


@dataclass(frozen=True)
class Scope:
    """What the notebook (or script) contains at this moment.

    `values` are its live globals; `cells` ran before, oldest first. `executed` are the cells that a
    magic has executed. For live ranks, `sent` is what they have been sent, `remote` are the names
    that are theirs, and `lost` those of ranks that have ended, each with a clause on that.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    executed: Sequence[Cell] = ()
    sent: Sent | None = None
    remote: Set[str] = frozenset()
    lost: Mapping[str, str] = field(default_factory=dict)
