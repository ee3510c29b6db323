"""The source that launched cells have left to be executed, name by name."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import Cell, Pending, Statement, parsed, star_module


def by_name(pending: Sequence[Pending]) -> dict[str, list[Statement]]:
    """For each name, the statements of the newest pending cell that define it."""
    found: dict[str, list[Statement]] = {}
    for one in pending:
        nodes = parsed(one.cell).body
        binds = bindings(nodes)
        counting = binds if one.names is None else binds & one.names
        found.update({name: [] for name in counting})
        for node in nodes:
            for name in bindings([node]) & counting:
                found[name].append(Statement(one.cell, node))
    return found


def star_imports(pending: Sequence[Cell]) -> list[tuple[Statement, str]]:
    """Every `from m import *`, with `m`."""
    return [
        (Statement(cell, node), module)
        for cell in pending
        for node in parsed(cell).body
        if (module := star_module(node)) is not None
    ]
