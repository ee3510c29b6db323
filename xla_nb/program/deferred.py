"""What launched cells define and the notebook has not executed, name by name while it is newest.

A launched cell binds its names on ranks only. A name stops counting once the notebook binds it:
when a cell does so in its text, or when the notebook holds another object under it than at the
launch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import CodeType, FunctionType

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import Cell, Pending, parsed
from xla_nb.program.names import names_in
from xla_nb.program.split import computed_again, is_future, lasting, only, touched

_ABSENT = object()


@dataclass
class _Launched:
    """A launched cell: the statements that are left, and what the notebook held under the names
    that they bind and that the notebook has not bound since."""

    cell: Cell
    left: list[ast.stmt]
    held: dict[str, object]

    def names(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that still count."""
        held = self.held.items()
        return {name for name, value in held if namespace.get(name, _ABSENT) is value}

    def text(self, nodes: Iterable[ast.stmt]) -> Cell:
        """The cell with these statements alone, at their own lines."""
        tree = parsed(self.cell)
        kept = [*nodes, *(node for node in tree.body if is_future(node))]
        return Cell(self.cell.label, only(tree, kept, self.cell.source))


class Deferred:
    """The definitions that launched cells have left to be executed, oldest first."""

    def __init__(self) -> None:
        self._launched: list[_Launched] = []

    def __bool__(self) -> bool:
        return bool(self._launched)

    def add(self, cell: Cell, namespace: Mapping[str, object]) -> None:
        """A cell was launched while the notebook held `namespace`."""
        nodes = [node for node in lasting(parsed(cell)) if not is_future(node)]
        held = {name: namespace.get(name, _ABSENT) for name in bindings(nodes)}
        for earlier in self._launched:
            for name in held:
                earlier.held.pop(name, None)
        self._launched.append(_Launched(cell, list(nodes), held))

    def close(self, names: Iterable[str]) -> None:
        """The notebook has bound these names itself."""
        for name in names:
            for launched in self._launched:
                launched.held.pop(name, None)

    def clear(self) -> None:
        """The notebook has forgotten everything."""
        self._launched.clear()

    def pending(self, namespace: Mapping[str, object]) -> list[Pending]:
        """The cells with the statements that are left, and the names that still count."""
        return [
            Pending(one.text(one.left), frozenset(one.names(namespace))) for one in self._launched
        ]

    def take(self, names: Set[str], namespace: Mapping[str, object]) -> list[Taken]:
        """The statements that bind these names and what they need in turn, to be executed now."""
        chosen = self._closure(names | _used_by(namespace, names), namespace)
        taken = []
        for launched in self._launched:
            nodes = [node for node in launched.left if node in chosen]
            if nodes:
                bound = bindings(nodes)
                newer = {
                    n: namespace[n] for n in bound & namespace.keys() - launched.names(namespace)
                }
                again = computed_again(launched.cell.label, nodes, "in the notebook")
                taken.append(Taken(launched.cell, launched.text(nodes), newer, tuple(again)))
                launched.left = [node for node in launched.left if node not in chosen]
                for name in bound:
                    launched.held.pop(name, None)
        self._launched = [one for one in self._launched if one.left]
        return taken

    def _closure(self, names: Set[str], namespace: Mapping[str, object]) -> set[ast.stmt]:
        chosen: set[ast.stmt] = set()
        fresh = set(names)
        seen: set[str] = set()
        while fresh:
            seen |= fresh
            found = [
                node
                for launched, counting in self._counting(namespace)
                for node in launched.left
                if node not in chosen and touched(node) & fresh & counting
            ]
            chosen.update(found)
            # Of what they bind besides, the newest definition must be executed after them.
            needed = {name for node in found for name in names_in([node]).wanted()} | bindings(
                found
            )
            fresh = (needed | _used_by(namespace, needed)) - seen
        return chosen

    def _counting(self, namespace: Mapping[str, object]) -> Iterator[tuple[_Launched, set[str]]]:
        """Each launched cell with the names that count in it: its own, and of earlier cells those
        that it does not bind but may change (`cfg["a"] = 1`)."""
        earlier: set[str] = set()
        for launched in self._launched:
            own = launched.names(namespace)
            yield launched, own | (earlier - bindings(launched.left))
            earlier |= own


@dataclass(frozen=True)
class Taken:
    """Statements to execute (`text`, of the launched `cell`), and what the notebook has bound since
    to names that they bind too: put it back afterwards. `again` is told the user."""

    cell: Cell
    text: Cell
    newer: Mapping[str, object]
    again: tuple[str, ...]


def _used_by(namespace: Mapping[str, object], names: Iterable[str]) -> set[str]:
    """Names that the notebook's own functions among `names` use, through each other."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        function = namespace.get(todo.pop())
        if isinstance(function, FunctionType) and function.__module__ == "__main__":
            fresh = _globals_of(function.__code__) - seen
            seen |= fresh
            todo += fresh
    return seen


def _globals_of(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_globals_of, inner))
