"""The source that launched cells have left to be executed, name by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import Cell, Pending, Statement, parsed, star_module
from xla_nb.program.names import names_in


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


def globals_of_source(
    pending: Mapping[str, list[Statement]], names: Set[str]
) -> tuple[set[str], set[str]]:
    """The global names that the source of these names reads, and those that its functions bind."""
    each = [names_in([s.node]) for name in names & pending.keys() for s in pending[name]]
    read = {name for one in each for name in (*one.now, *one.later, *one.hints)}
    return read, {name for one in each for name in one.sets}


def star_imports(pending: Sequence[Cell]) -> list[tuple[Statement, str]]:
    """Every `from m import *`, with `m`."""
    return [
        (Statement(cell, node), module)
        for cell in pending
        for node in parsed(cell).body
        if (module := star_module(node)) is not None
    ]
