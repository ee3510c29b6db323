"""Split a cell that ranks run: what its module defines, and what they run.

Only the cell's own text decides, and the `__future__` imports of earlier cells: the same cell must
not be split differently when the notebook's values change.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
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
    parse,
    without,
)
from xla_nb.program.names import Names, names_in

RANK_NAMES = frozenset({"rank", "world_size", "device", "lock"})


@dataclass(frozen=True)
class CellSplit:
    """A cell that ranks run: `module` is the text of it in the module file, if any, and `body` what
    every rank runs, at the cell's lines. `names` are those of both."""

    cell: Cell
    module: str
    body: str
    names: Names
    futures: set[str]
    notes: tuple[str, ...]


def split_cell(cell: Cell, known_futures: set[str], *, live: bool) -> CellSplit:
    """Split a cell without a function: what it begins with is the module's, the rest the ranks'.
    A `live` rank runs all of a cell where it keeps what that binds. Raises ProgramError."""
    tree = parse(cell, awaits=live)
    in_force = known_futures | futures(tree)
    first = [node for node in tree.body if is_future(node)]
    nodes = [node for node in tree.body if node not in first]
    module = [] if live else _beginning(nodes)
    rest = nodes[len(module) :]
    if not (rest or live):
        raise ProgramError(
            f"{cell.label} has nothing for ranks to run: no function, and no statements besides "
            "imports and classes. Define a function, or name one of the notebook's after "
            "%%xla_spawn."
        )
    return CellSplit(
        cell=cell,
        module=without(cell.source, [*first, *rest]) if module else "",
        body=without(cell.source, [*first, *module]),
        names=names_in(nodes, lazy_annotations="annotations" in in_force),
        futures=in_force,
        notes=vet(tree, cell.label),
    )


def vet(tree: ast.AST, label: str) -> tuple[str, ...]:
    """Notes on what ranks skip. Raises ProgramError for what cannot run on ranks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ProgramError(
                f"{label}, line {node.lineno}: relative imports do not work in a notebook. "
                "Use the module's full name."
            )
    return ipython_syntax.check(tree, label)


def functions(tree: ast.Module) -> list[Function]:
    """The functions at the top level, which ranks may call."""
    return [node for node in tree.body if isinstance(node, FUNCTION)]


def is_future(node: ast.stmt) -> bool:
    """Whether this is `from __future__ import`, which goes to the top of the module file."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _beginning(nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The imports and definitions with which a cell begins and that read nothing of a rank's own.
    What follows a statement runs after it: an import finds what `os.environ[…] = …` has set."""

    def may_run_before(node: ast.stmt) -> bool:
        names = names_in([node])
        return isinstance(node, (*IMPORT, *DEFINITION)) and RANK_NAMES.isdisjoint(
            names.wanted() | names.binds
        )

    return list(itertools.takewhile(may_run_before, nodes))
