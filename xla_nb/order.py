"""What a launch asks for: all that a job must know, and nothing about who asked.

The rule: an order is plain data and complete; a job looks at it, never at the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb.inheritance import Inheritance

#: The module global that holds the entry's arguments, and the order's place in a parcel.
ARGUMENTS = "__xla_nb_args__"
ORDER = -1
ARGUMENTS_GROUP = -2


@dataclass(frozen=True)
class Order:
    """One run. `ranks` is None for as many as there are; `program` is the module's file."""

    run: str
    runtime: str
    program: str
    record: str
    entry: str | None
    takes_lock: bool
    by_name: frozenset[str]
    ranks: int | None
    device: str
    env: Mapping[str, str]
    cwd: str
    sys_path: tuple[str, ...]
    authkey: bytes
    inheritance: Inheritance
