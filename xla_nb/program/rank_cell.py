"""A cell that ranks run as a whole: for live ranks, or launched without a function.

Only the cell's text and the `__future__` imports of earlier cells decide: the same cell must not be
read differently when the notebook's values change.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from xla_nb.errors import ProgramError
from xla_nb.program import ipython_syntax
from xla_nb.program.cell_text import (
    DEFINITION,
    FUNCTION,
    IMPORT,
    Cell,
    Function,
    futures,
    is_future,
    parse,
)
from xla_nb.program.names import Names, names_in

RANK_NAMES = frozenset({"rank", "world_size", "device", "lock"})
#: Names in a rank's namespace that are not the user's.
PREDEFINED = RANK_NAMES | {"get_ipython", "display"}


@dataclass(frozen=True)
class RankCell:
    """A cell, the names that it binds and reads, the `__future__` imports that are in force, and
    notes for the user."""

    cell: Cell
    names: Names
    futures: frozenset[str]
    notes: tuple[str, ...]


def rank_cell(cell: Cell, known_futures: frozenset[str], *, live: bool) -> RankCell:
    """Analyze a cell that ranks run as a whole; `live` ranks keep the names that it binds. Raises
    ProgramError if it has nothing to run."""
    tree = parse(cell)
    active_futures = known_futures | futures(cell.source)
    nodes = [node for node in tree.body if not is_future(node)]
    if not live and all(isinstance(node, (*IMPORT, *DEFINITION)) for node in nodes):
        raise ProgramError(
            f"{cell.label} has nothing for ranks to run: no functions, and no statements other "
            "than imports and classes. Define a function, or name a notebook function after "
            "%%xla_spawn."
        )
    return RankCell(
        cell=cell,
        names=names_in(nodes, lazy_annotations="annotations" in active_futures),
        futures=active_futures,
        notes=ipython_syntax.check(tree, cell.label),
    )


def functions(tree: ast.Module) -> list[Function]:
    """The functions at the top level, which ranks may call."""
    return [node for node in tree.body if isinstance(node, FUNCTION)]
