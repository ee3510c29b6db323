"""What launched cells bind and the notebook does not have yet, name by name while it is newest.

A launched cell binds its names on ranks only. What its source gives again is executed when it is
used; what the run alone can tell is taken from there. Until then the notebook does not have the
name, so that nothing finds what it held before.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import IMPORT, Cell, Pending, parsed, star_module
from xla_nb.program.names import names_in
from xla_nb.program.origins import imported
from xla_nb.program.outcome import is_literal
from xla_nb.program.reach import names_used_by
from xla_nb.program.split import only
from xla_nb.program.stars import bound_by_stars, names_bound

ABSENT = object()
#: What IPython keeps up to date in a notebook's namespace.
_DISPLAYED = {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "In", "Out"}


@dataclass(eq=False)
class Launched:
    """A launched cell, of which `cell` is the part in its module: the statements that are left,
    and what the notebook held under the names that they bind and that nobody has bound since.

    `computed` names are taken from the run. The others are executed: `inputs` are what that reads
    of the notebook, `flags` the compiler's, and `made` is what it has given.
    """

    cell: Cell
    left: list[ast.stmt]
    held: dict[str, object]
    computed: frozenset[str] = frozenset()
    inputs: dict[str, object] = field(default_factory=dict)
    flags: int = 0
    made: dict[str, object] = field(default_factory=dict)

    def names(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that still count: those that the notebook does not have."""
        return self.held.keys() - namespace.keys()

    @property
    def set_by_functions(self) -> frozenset[str]:
        """Computed names that no statement binds, but a function that one calls."""
        return self.computed - bindings(parsed(self.cell).body)

    def bound_by(self, node: ast.stmt) -> set[str]:
        """What a statement binds, also by functions that it defines."""
        called = self.set_by_functions
        return bindings([node]) | (names_in([node]).sets & called if called else set())

    def source(self) -> list[ast.stmt]:
        """The statements that are left to be executed."""
        if not self.computed:
            return self.left
        each = ((node, bindings([node])) for node in self.left)
        return [n for n, names in each if not names & self.computed and (names or _is_star(n))]

    def text(self, nodes: Iterable[ast.stmt]) -> Cell:
        """The cell with these statements alone, at their own lines."""
        return Cell(self.cell.label, only(parsed(self.cell), nodes, self.cell.source))

    def has_changed(self, namespace: Mapping[str, object]) -> bool:
        """Whether the notebook has bound anew what the statements read."""
        return any(namespace.get(n, ABSENT) is not value for n, value in self.inputs.items())


@dataclass(frozen=True)
class Taken:
    """What the notebook is to do for names that it uses: execute `text`, which is to bind the names
    `binds` and no others, then take `computed` names from the run."""

    launched: Launched
    text: Cell | None
    binds: Set[str]
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
        namespace: dict[str, object],
        computed: Iterable[str] = (),
        flags: int = 0,
    ) -> Launched:
        """A cell was launched, of which `cell` is in the module: the notebook no longer has what
        `namespace` held under its names."""
        nodes = list(parsed(cell).body)
        starred = bound_by_stars(nodes) & self._known(namespace)
        bound = (bindings(nodes) | starred | set(computed)) - _DISPLAYED
        launched = Launched(cell, nodes, {}, frozenset(computed), {}, flags)
        read = names_in(launched.source()).now.keys() - bound
        launched.inputs = {name: namespace[name] for name in read & namespace.keys()}
        same = _imported_again(nodes, namespace) - launched.computed
        launched.held = {name: namespace.pop(name, ABSENT) for name in bound - same}
        for earlier in self._launched:
            for name in bound & earlier.held.keys():
                launched.held[name] = earlier.held.pop(name)
        self._launched = [one for one in self._launched if one.held or any(map(_is_star, one.left))]
        self._launched.append(launched)
        return launched

    def _known(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that are bound, in the notebook or by cells launched before."""
        return set(namespace).union(*(one.held for one in self._launched))

    def close(self, namespace: Mapping[str, object]) -> None:
        """What the notebook has, it has bound itself: that counts no more, also once deleted."""
        for launched in self._launched:
            for name in launched.held.keys() & namespace.keys():
                del launched.held[name]

    def clear(self) -> None:
        """The notebook has forgotten everything."""
        for launched in self._launched:
            launched.held.clear()
        self._launched.clear()

    def undo(self, launched: Launched, namespace: dict[str, object]) -> None:
        """The cell has bound nothing, since it raised: the notebook has what it held."""
        for name in launched.names(namespace):
            if launched.held[name] is not ABSENT:
                namespace[name] = launched.held[name]
        launched.held.clear()
        self._launched = [one for one in self._launched if one is not launched]

    def pending(self, namespace: Mapping[str, object]) -> list[Pending]:
        """What ranks may execute themselves: the cells with the statements that are left, and the
        names that count."""
        return [
            Pending(one.text(one.source()), frozenset(one.names(namespace) - one.computed))
            for one in self._launched
            if not one.has_changed(namespace)
        ]

    def all_of(self, launched: Launched, namespace: Mapping[str, object]) -> Taken:
        """All that is left to be executed of a launched cell, also where it no longer counts."""
        return _taken(launched, launched.source(), namespace)

    def taken_first(self, namespace: Mapping[str, object]) -> set[str]:
        """The names that the notebook must take before it launches what uses them: computed ones,
        literals (of which there would be two), and what would be executed with other inputs."""
        found: set[str] = set()
        for one in self._launched:
            changed = one.has_changed(namespace)
            here = [node for node in one.source() if changed or is_literal(node)]
            found |= one.names(namespace) & (one.computed | bindings(here))
        return found

    def of(self, name: str, namespace: Mapping[str, object]) -> Launched | None:
        """The launched cell in which the name counts."""
        return next((one for one in self._launched if name in one.names(namespace)), None)

    def take(
        self, names: Set[str], namespace: Mapping[str, object], deep: bool = True
    ) -> list[Taken]:
        """What binds these names, and what that needs; where `deep`, also what their functions
        need when they are called."""
        chosen = self._closure(names, namespace, deep)
        each = [(one, [node for node in one.left if node in chosen]) for one in self._launched]
        taken = [_taken(launched, nodes, namespace) for launched, nodes in each if nodes]
        self._launched = [one for one in self._launched if one.left]
        return taken

    def remember(self) -> Callable[[], None]:
        """What is deferred now; calling the result brings it back, if what was taken could not be
        executed to its end."""
        each = [(one, list(one.left), dict(one.held)) for one in self._launched]

        def bring_back() -> None:
            for one, left, held in each:
                one.left, one.held = left, held
            self._launched = [one for one, _, _ in each]

        return bring_back

    def _closure(
        self, names: Set[str], namespace: Mapping[str, object], deep: bool
    ) -> set[ast.stmt]:
        chosen: set[ast.stmt] = set()
        fresh = names | (names_used_by(namespace, names) if deep else set())
        seen: set[str] = set()
        while fresh:
            seen |= fresh
            found = [
                node
                for launched in self._launched
                for node in launched.left
                if node not in chosen and self._binds(launched, node, fresh, namespace)
            ]
            chosen.update(found)
            each = [names_in([node]) for node in found]
            needed = {name for read in each for name in (read.wanted() if deep else read.now)}
            # Of what they bind besides, the newest definition must be executed after them.
            needed |= bindings(found)
            fresh = (needed | (names_used_by(namespace, needed) if deep else set())) - seen
        return chosen

    def _binds(
        self,
        launched: Launched,
        node: ast.stmt,
        names: Set[str],
        namespace: Mapping[str, object],
    ) -> bool:
        module = star_module(node)
        if module is None:
            return bool(launched.bound_by(node) & names & launched.names(namespace))
        found = names_bound(module)
        if found is not None and names & found & launched.names(namespace):
            return True
        missing = names - namespace.keys() - {n for one in self._launched for n in one.held}
        return bool(missing if found is None else missing & found)


def _imported_again(nodes: list[ast.stmt], namespace: Mapping[str, object]) -> set[str]:
    """The names that the cell imports, and binds to what the notebook has under them anyway."""
    found: dict[str, object] = {}
    for node in nodes:
        found |= dict.fromkeys(bindings([node]), ABSENT)
        if isinstance(node, IMPORT):
            found |= imported(node)
        if module := star_module(node):
            content = vars(sys.modules[module]) if module in sys.modules else {}
            found |= {name: content.get(name, ABSENT) for name in names_bound(module) or ()}
    return {name for name, value in found.items() if namespace.get(name) is value}


def _is_star(node: ast.stmt) -> bool:
    return star_module(node) is not None


def _taken(launched: Launched, nodes: list[ast.stmt], namespace: Mapping[str, object]) -> Taken:
    """Take statements out of a launched cell, those that are to be executed; computed names count
    until the notebook has them."""
    source = [node for node in launched.source() if node in nodes]
    counting = launched.names(namespace)
    bound = bindings(source) | (bound_by_stars(source) & launched.held.keys())
    launched.left = [node for node in launched.left if node not in source]
    for name in bound:
        launched.held.pop(name, None)
    text = launched.text(source) if source else None
    computed = launched.computed.intersection(set().union(*map(launched.bound_by, nodes)))
    return Taken(launched, text, bound & counting, computed & counting)
