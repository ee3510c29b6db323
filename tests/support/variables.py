"""Compared variables of ranks, from descriptions of namespaces in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_nb.monitor.variable_comparison import Compared, compare
from xla_nb.rank import variables


def compared(*ranks: Mapping[str, Any]) -> list[Compared]:
    """Compare the namespaces of ranks 0, 1, …"""
    return compare(
        {
            rank: variables.describe(namespace, variables.names_of(namespace))
            for rank, namespace in enumerate(ranks)
        }
    )


def only(*values: Any) -> Compared:
    """Compare a single variable `it`, with one value for each rank."""
    (one,) = compared(*({"it": value} for value in values))
    return one
