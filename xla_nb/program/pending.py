"""The source that launched cells have left to be executed, name by name."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import Cell, Pending, Statement, parsed


def by_name(pending: Sequence[Pending]) -> dict[str, list[Statement]]:
    """For each name, the statements of the newest pending cell that define it."""
    found: dict[str, list[Statement]] = {}
    for one in pending:
        nodes = parsed(one.cell).body
        binds = bindings(nodes)
        for name in binds if one.names is None else binds & one.names:
            found[name] = []
        for node in nodes:
            for name in bindings([node]) & found.keys():
                if one.names is None or name in one.names:
                    found[name].append(Statement(one.cell, node))
    return found


def star_imports(pending: Sequence[Cell]) -> list[Statement]:
    return [
        Statement(cell, node)
        for cell in pending
        for node in parsed(cell).body
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]


def star_module(statement: Statement) -> str:
    assert isinstance(statement.node, ast.ImportFrom)
    return statement.node.module or ""
