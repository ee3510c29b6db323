"""Benchmarks of the waiting times of notebook users: xla_nb against its rivals, in one run.

`python -m benchmarks` (or `make bench`) runs every module here that has `rows(rounds)`. Times alone
mean little on a shared machine, so each row is a ratio of two figures measured in turn.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, the figure it is compared with, and the target ratio."""

    what: str
    figure: float
    against: float
    unit: str
    aim: float | None = None

    @property
    def ratio(self) -> float:
        return self.figure / self.against
