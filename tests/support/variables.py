"""What ranks would tell of their variables: descriptions of namespaces in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xla_nb.rank import variables
from xla_nb.run.comparing import Compared, compare, questions


def compared(*ranks: Mapping[str, Any], counted: bool = True) -> list[Compared]:
    """The namespaces of ranks 0, 1, … compared, in both rounds or in the first one only."""
    told = {
        rank: variables.describe(namespace, variables.names_of(namespace))
        for rank, namespace in enumerate(ranks)
    }
    first = compare(told)
    if not counted:
        return first
    answers = {rank: variables.values(ranks[rank], asked) for rank, asked in asked_of(first)}
    return compare(told, answers)


def asked_of(first: Sequence[Compared]) -> list[tuple[int, list[tuple[str, str]]]]:
    return sorted(questions(first).items())


def only(*values: Any, counted: bool = True) -> Compared:
    """The one variable `it`, with a value for each rank."""
    (one,) = compared(*({"it": value} for value in values), counted=counted)
    return one
