"""What a person at a notebook waits for, measured: xla_nb beside its rivals, in one run.

`python -m benchmarks` (or `make bench`) runs every module here that has a `rows()`. Times alone
say little on a shared machine, so each row is a ratio of two figures taken in turn.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, the one it is held against, and the ratio aimed at."""

    what: str
    figure: float
    against: float
    unit: str
    aim: float | None = None

    @property
    def ratio(self) -> float:
        return self.figure / self.against
