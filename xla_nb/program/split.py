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
    span,
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
    after = max((n for n, node in enumerate(tree.body, 1) if _is_future(node)), default=0)
    nodes = tree.body[after:]
    module = [] if live else _beginning(nodes)
    if len(module) == len(nodes) and not live:
        raise ProgramError(
            f"{cell.label} has nothing for ranks to run: no function, and no statements besides "
            "imports and classes. Define a function, or name one of the notebook's after "
            "%%xla_spawn."
        )
    lines = cell.source.split("\n")
    first = _lines(tree.body, after)
    last = _lines(tree.body, after + len(module)) if first or not after else first
    return CellSplit(
        cell=cell,
        module="\n".join([*[""] * first, *lines[first:last], ""]) if first < last else "",
        body="\n".join([*[""] * last, *lines[last:]]),
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


def _is_future(node: ast.stmt) -> bool:
    """Whether this is `from __future__ import`, which goes to the top of the module file."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _lines(nodes: Sequence[ast.stmt], count: int) -> int:
    """The number of lines that the first of these statements have, as many of them as share no line
    with those behind."""
    while 0 < count < len(nodes) and span(nodes[count])[0] <= span(nodes[count - 1])[1]:
        count -= 1
    return span(nodes[count - 1])[1] if count else 0


def _beginning(nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The imports and definitions with which a cell begins and that read nothing of a rank's own.
    What follows a statement runs after it: an import finds what `os.environ[…] = …` has set."""

    def may_run_before(node: ast.stmt) -> bool:
        names = names_in([node])
        return isinstance(node, (*IMPORT, *DEFINITION)) and RANK_NAMES.isdisjoint(
            names.wanted() | names.binds
        )

    return list(itertools.takewhile(may_run_before, nodes))
