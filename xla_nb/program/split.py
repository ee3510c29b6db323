"""Split a cell that ranks run: what its module defines, and what they run.

Only the cell's own text decides, and the `__future__` imports of earlier cells: the same cell must
not be split differently when the notebook's values change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
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
    tree: ast.Module
    module: str
    body: str
    names: Names
    futures: set[str]
    notes: tuple[str, ...]


def split_cell(cell: Cell, known_futures: set[str]) -> CellSplit:
    """Split a cell without a function: its definitions are the module's, its statements the ranks'.
    Raises ProgramError."""
    tree = parse(cell)
    notes = vet(tree, cell.label)
    in_force = known_futures | futures(tree)
    lazy = "annotations" in in_force
    nodes = [node for node in tree.body if not is_future(node)]
    module = _hoisted(nodes, lazy=lazy)
    rest = [node for node in nodes if node not in module]
    if not rest:
        raise ProgramError(
            f"{cell.label} has nothing for ranks to run: no function, and no statements besides "
            "imports and classes. Define a function, or name one of the notebook's after "
            "%%xla_spawn."
        )
    return CellSplit(
        cell=cell,
        tree=tree,
        module=only(tree, module, cell.source) if module else "",
        body=only(tree, rest, cell.source),
        names=names_in(nodes, lazy_annotations=lazy),
        futures=in_force,
        notes=notes,
    )


def live_cell(cell: Cell, known_futures: set[str]) -> CellSplit:
    """A cell for live ranks, which run all of it where they keep what it binds."""
    tree = parse(cell, awaits=True)
    in_force = known_futures | futures(tree)
    nodes = [node for node in tree.body if not is_future(node)]
    return CellSplit(
        cell=cell,
        tree=tree,
        module="",
        body=only(tree, nodes, cell.source),
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


def only(tree: ast.Module, nodes: Iterable[ast.stmt], source: str) -> str:
    """The text with all statements but these blanked, at the same line numbers."""
    kept = set(nodes)
    return without(source, [node for node in tree.body if node not in kept])


def is_future(node: ast.stmt) -> bool:
    """Whether this is `from __future__ import`, which goes to the top of the module file."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _hoisted(nodes: Sequence[ast.stmt], *, lazy: bool) -> list[ast.stmt]:
    """The definitions among a cell's statements that may run before all statements.

    A definition stays in place if an earlier statement uses or binds its name, if defining it needs
    what a statement computes, or after one that may have changed something else: `os.environ[…] =
    …`, of which an import is to know.
    """
    stays = [n for n in nodes if not isinstance(n, (*IMPORT, *DEFINITION))]
    read = {node: names_in([node], lazy_annotations=lazy) for node in nodes}
    computed = RANK_NAMES.union(*(read[node].binds for node in stays))
    touched: set[str] = set()
    hoisted = []
    acted = False
    for node, names in read.items():
        acted = acted or (node in stays and _acts(node))
        can = node not in stays and not names.binds & touched and not set(names.now) & computed
        if can and not acted:
            hoisted.append(node)
            if {
                *names.now,
                *names.later,
            } & computed:  # calling it before the statements is too early
                computed = computed | names.binds
        else:
            touched |= names.binds | set(names.now)
            computed = computed | names.binds
    return hoisted


def _acts(node: ast.stmt) -> bool:
    """Whether a statement may change more than what names stand for."""
    return any(
        isinstance(part, ast.Call | ast.Await)
        or (isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load))
        for part in ast.walk(node)
    )
