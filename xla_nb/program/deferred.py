"""What launched cells bind and the notebook does not have yet, name by name while it is newest.

A launched cell binds its names on ranks only. What its source gives again is executed when it is
used; what the run alone can tell is taken from there. A name stops counting once the notebook binds
it: when a cell does so in its text, or when the notebook holds another object under it than at the
launch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import Cell, Pending, parsed
from xla_nb.program.names import names_in
from xla_nb.program.split import only, touched

_ABSENT = object()


@dataclass(eq=False)
class Launched:
    """A launched cell, of which `cell` is the part in its module: the statements that are left,
    and what the notebook held under the names that they bind and that it has not bound since.

    `computed` names are taken from the run; `made` is what executing the others gave, which takes
    the compiler `flags`.
    """

    cell: Cell
    left: list[ast.stmt]
    held: dict[str, object]
    computed: frozenset[str] = frozenset()
    flags: int = 0
    made: dict[str, object] = field(default_factory=dict)

    def names(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that still count."""
        held = self.held.items()
        return {name for name, value in held if namespace.get(name, _ABSENT) is value}

    @property
    def matters(self) -> bool:
        """Whether any of its names may count, or a statement changes what others have bound."""
        return bool(self.held) or any(not bindings([node]) for node in self.source())

    def source(self) -> list[ast.stmt]:
        """The statements that are left to be executed."""
        if not self.computed:
            return self.left
        own = ((node, bindings([node])) for node in self.left)
        return [node for node, names in own if names and not names & self.computed]

    def text(self, nodes: Iterable[ast.stmt]) -> Cell:
        """The cell with these statements alone, at their own lines."""
        return Cell(self.cell.label, only(parsed(self.cell), nodes, self.cell.source))


@dataclass(frozen=True)
class Taken:
    """What the notebook is to do for names that it uses: execute `text`, then take `computed` names
    from the run. It has bound `newer` names itself since: put them back afterwards."""

    launched: Launched
    text: Cell | None
    newer: Mapping[str, object]
    computed: Set[str]


class Deferred:
    """What launched cells have left to be executed or taken, oldest first."""

    def __init__(self) -> None:
        self._launched: list[Launched] = []

    def __bool__(self) -> bool:
        return bool(self._launched)

    def add(
        self,
        cell: Cell,
        namespace: Mapping[str, object],
        computed: Iterable[str] = (),
        flags: int = 0,
    ) -> Launched:
        """A cell was launched, of which `cell` is in the module, while the notebook held
        `namespace`."""
        nodes = list(parsed(cell).body)
        held = {name: namespace.get(name, _ABSENT) for name in bindings(nodes)}
        self.close(held)
        self._launched = [one for one in self._launched if one.matters]
        launched = Launched(cell, nodes, held, frozenset(computed), flags)
        self._launched.append(launched)
        return launched

    def close(self, names: Iterable[str]) -> None:
        """The notebook, or a later launch, has bound these names."""
        for name in names:
            for launched in self._launched:
                launched.held.pop(name, None)

    def clear(self) -> None:
        """The notebook has forgotten everything."""
        for launched in self._launched:
            launched.held.clear()
        self._launched.clear()

    def pending(self, namespace: Mapping[str, object]) -> list[Pending]:
        """The cells with the statements that are left, and the names that still count."""
        return [
            Pending(one.text(one.source()), frozenset(one.names(namespace) - one.computed))
            for one in self._launched
        ]

    def computed(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that runs of launched cells have, and that still count."""
        return {n for one in self._launched for n in one.names(namespace) & one.computed}

    def of(self, name: str, namespace: Mapping[str, object]) -> Launched | None:
        """The launched cell in which the name counts."""
        return next((one for one in self._launched if name in one.names(namespace)), None)

    def take(self, names: Set[str], namespace: Mapping[str, object]) -> list[Taken]:
        """The statements that bind these names and what they need in turn, to be executed now."""
        chosen = self._closure(names | _used_by(namespace, names), namespace)
        each = [(one, [node for node in one.left if node in chosen]) for one in self._launched]
        taken = [_taken(launched, nodes, namespace) for launched, nodes in each if nodes]
        self._launched = [one for one in self._launched if one.left]
        return taken

    def take_computed(self, names: Set[str], namespace: Mapping[str, object]) -> list[Taken]:
        """These names from runs, and nothing to execute."""
        each = [(one, one.names(namespace) & one.computed & names) for one in self._launched]
        return [Taken(launched, None, {}, asked) for launched, asked in each if asked]

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

    def _counting(self, namespace: Mapping[str, object]) -> Iterator[tuple[Launched, set[str]]]:
        """Each launched cell with the names that count in it: its own, and of earlier cells those
        that it does not bind but may change (`cfg["a"] = 1`)."""
        earlier: set[str] = set()
        for launched in self._launched:
            own = launched.names(namespace)
            yield launched, own | (earlier - bindings(launched.left))
            earlier |= own


def _taken(launched: Launched, nodes: list[ast.stmt], namespace: Mapping[str, object]) -> Taken:
    """Take statements out of a launched cell, those that are to be executed; computed names count
    until the notebook has them."""
    source = [node for node in launched.source() if node in nodes]
    bound, counting = bindings(source), launched.names(namespace)
    newer = {name: namespace[name] for name in bound & namespace.keys() - counting}
    launched.left = [node for node in launched.left if node not in source]
    for name in bound:
        launched.held.pop(name, None)
    text = launched.text(source) if source else None
    return Taken(launched, text, newer, bindings(nodes) & launched.computed & counting)


def _used_by(namespace: Mapping[str, object], names: Iterable[str]) -> set[str]:
    """Names that the notebook's own functions and classes among `names`, and the classes of its
    objects, use through each other."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        for code in _code_of(namespace.get(todo.pop())):
            fresh = _globals_of(code) - seen
            seen |= fresh
            todo += fresh
    return seen


def _code_of(value: object) -> Iterator[CodeType]:
    if isinstance(value, FunctionType):
        if value.__module__ == "__main__":
            yield value.__code__
        return
    for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        if cls.__module__ == "__main__":
            for part in vars(cls).values():
                if isinstance(part, FunctionType):
                    yield part.__code__


def _globals_of(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_globals_of, inner))
