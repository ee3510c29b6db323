"""Collect what a program needs from the notebook: name by name, and what each name needs in turn.

Definitions are sent as source and imported objects as their import, if that gives the live object
again; everything else is sent as a value.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from xla_nb.errors import ProgramError
from xla_nb.program import origins
from xla_nb.program.cells import (
    DEFINITION,
    Cell,
    Cells,
    Section,
    Statement,
    futures,
    imported_modules,
    parsed,
)
from xla_nb.program.names import Names, bindings, names_in
from xla_nb.program.ordering import Group, Item, generated, layout
from xla_nb.program.origins import star_names
from xla_nb.program.patches import Patch, patches
from xla_nb.program.references import reached
from xla_nb.program.split import RANK_NAMES, CellSplit, lasting, vet

PREFIX = "_xla_nb_"
_BUILTINS = frozenset(vars(builtins))
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__doc__", "__package__", "__spec__"),
        *("__file__", "__loader__", "__builtins__", "__annotations__", "__dict__", "__class__"),
        *("get_ipython", "display"),
    }
)


@dataclass(frozen=True)
class Scope:
    """What the notebook (or script) contains at this moment.

    `values` are its live globals; `cells` ran before, oldest first. `pending` cells were launched,
    but the notebook has not executed their definitions yet: their source is newer than `values`.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    pending: Sequence[Cell] = ()


class Extraction:
    """Collects, name by name and transitively, what a program needs from the notebook."""

    def __init__(self, scope: Scope) -> None:
        self.sources: dict[str, str] = {}
        self.defines: set[str] = set()
        self.notes: list[str] = []
        self.futures = {f for c in (*scope.cells, *scope.pending) for f in futures(parsed(c))}
        self._scope = scope
        self._values = scope.values
        self._cells = Cells(scope.cells)
        self._mains = {"__main__", str(scope.values.get("__name__", "__main__"))}
        self._pending = _by_name(scope.pending)
        self._stars = _star_imports(scope.pending)
        self._known = _BUILTINS | _MODULE_NAMES
        self._bound: set[str] = set()
        self._replaced: set[str] = set()
        self._taken: dict[str, Item] = {}
        self._patched: dict[str, Item] = {}  # taken along with what they patch
        self._paths: set[str] = set()

    def cell(self, plan: CellSplit) -> None:
        """Take a launched cell's text and what it needs."""
        self.futures = plan.futures
        self.defines |= plan.defines
        self.notes += plan.notes
        self._bound = plan.names.binds | plan.names.sets
        self._replaced = plan.replaced
        if plan.entry is None:
            self._known |= RANK_NAMES
        self._check_names(plan.names, plan.cell.label)
        self._paths |= plan.names.paths
        for name in sorted(plan.names.wanted()):
            self._need(name, early=name in plan.early, replaced=True)
        if plan.entry is not None:
            self._need(plan.entry)
        self.sources[plan.cell.label] = plan.cell.source

    def callable(self, fn: Callable[..., object]) -> str:
        """Take a live callable; returns its name in the module."""
        own = origins.name_of(fn)
        named = [own] if self._values.get(own) is fn else origins.names_of(fn, self._values)
        if named:
            self._need(named[0])
            return named[0]
        name = own if origins.importable(fn, self._mains) else f"{PREFIX}entry"
        self._take(self._from_value(name, fn))
        return name

    def pending(self, name: str) -> Statement | None:
        """The last statement of a pending cell that binds the name."""
        return self._pending[name][-1] if name in self._pending else None

    def origin(self, name: str) -> str:
        """The label of the last cell that binds the name."""
        newest = self._cells.newest(name)
        return newest.cell.label if newest else ""

    def layout(self) -> tuple[list[Section | Group], Group, Group]:
        """The pieces before the cell, in order; the values before it; the values after it."""
        for item in self._taken.values():
            if item.module is not None:
                lines = self._imports(item.name, item.module)
                item.sections = [generated("\n".join(lines))]
        return layout(self._taken, self._replaced)

    def _imports(self, name: str, module: ModuleType) -> Iterator[str]:
        """`import a.b as name`, and imports of the loaded submodules that the notebook uses."""
        full = module.__name__
        yield f"import {full}" if name == full else f"import {full} as {name}"
        asked = {
            f"{full}{path[len(name) :]}" for path in self._paths if path.startswith(f"{name}.")
        }
        if name == full:
            written = imported_modules(statement.node for statement in self._cells.statements())
            asked |= {path for path in written if path.startswith(f"{name}.")}
        for submodule in sorted({part for path in asked for part in _prefixes(path, full)}):
            yield f'__import__("{submodule}")'

    # Taking

    def _need(self, name: str, *, early: bool = False, replaced: bool = False) -> None:
        """Take what `name` refers to; if `early`, before the cell's definitions run.

        A name that the launched cell binds itself is skipped, unless `replaced`: then the
        notebook's object is needed as well.
        """
        if name in self._known and not self._shadows(name):
            return
        if name in self._bound and not early and not replaced:
            return
        item = self._taken.get(name) or self._patched.get(name) or self._find(name)
        if item is not None:
            self._take(item, early=early)

    def _shadows(self, name: str) -> bool:
        """Whether the notebook has its own object under the name of a builtin.

        IPython's `open` and `exit` do not count; ranks use Python's.
        """
        if name not in _BUILTINS:
            return False
        if name in self._pending:
            return True
        held = self._values.get(name, getattr(builtins, name))
        python_s = any(part is getattr(builtins, name) for part in origins.unwrapped(held))
        return not python_s and type(held).__module__.partition(".")[0] != "IPython"

    def _take(self, item: Item, *, early: bool = False) -> None:
        if item.name in self._taken and item.early >= early:
            return
        self._taken[item.name] = item
        item.early = early
        if item.is_definition:
            self.defines.add(item.name)
        for name in sorted(item.now):
            # A value of a class that the cell redefines is restored after the cell.
            self._need(name, early=early or not item.is_value)
        for name in sorted(item.later):
            self._need(name, early=early)

    def _find(self, name: str) -> Item | None:
        if name in self._pending:
            return self._from_source(name, self._pending[name])
        if name in self._values:
            return self._from_value(name, self._values[name])
        stars = self._stars_with(name)
        return self._from_source(name, stars) if stars else None

    def _has(self, name: str) -> bool:
        held = (self._known, self._bound, self._pending, self._values)
        return any(name in names for names in held) or bool(self._stars_with(name))

    def _stars_with(self, name: str) -> list[Statement]:
        """The pending `from m import *` that bind the name, or might."""
        return [s for s in self._stars if name in (star_names(_star_module(s)) or {name})]

    # Missing names

    def _check_names(self, names: Names, label: str) -> None:
        known = [star_names(module) for module in names.stars]
        if None in known:
            return
        starred = {name for found in known if found is not None for name in found}
        for name, line in sorted(names.required().items(), key=lambda item: item[1]):
            if name not in starred and not self._has(name):
                raise ProgramError(self._missing(name, label, line))

    def _missing(self, name: str, label: str, line: int) -> str:
        known = {*self._values, *self._pending, *self._bound, *self._known}
        close = difflib.get_close_matches(name, [n for n in known if n[:1] != "_"], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        written = Cells([*self._scope.cells, *self._scope.pending]).newest(name)
        if written:
            hint = (
                f" {written.cell.label} assigns it, but the notebook does not have it: that cell "
                "ran on ranks or failed before that line, or the name was deleted since."
            )
        advice = "Define or import the name first"
        if name in RANK_NAMES:
            hint, advice = "", "Make it a parameter; only cells without a function have it"
        return (
            f"{label}, line {line}: name '{name}' is not defined in this cell or in the notebook."
            f"{hint} {advice}. No rank was started."
        )

    # Items

    def _from_source(self, name: str, statements: Sequence[Statement]) -> Item:
        nodes = [statement.node for statement in statements]
        names = names_in(nodes, lazy_annotations="annotations" in self.futures)
        for statement in statements:
            self.sources[statement.cell.label] = statement.cell.source
            self.notes += vet(statement.node, statement.cell.label)
        self._check_names(names, statements[-1].cell.label)
        self._paths |= names.paths
        now = set(names.now) - {name}
        return Item(
            name,
            [statement.section for statement in statements],
            is_definition=isinstance(nodes[-1], DEFINITION),
            now=now,
            later={n for n in names.wanted() if self._has(n)} - now - {name},
        )

    def _from_value(self, name: str, value: object) -> Item:
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return Item(name, module=value)
        line = origins.import_line(name, value, self._cells, self._mains)
        if line:
            return Item(name, [generated(line)])
        found = origins.definition(name, value, self._cells, self._mains)
        if found is None:
            return self._shipped(name, value)
        bound = found.node.name if isinstance(found.node, DEFINITION) else name
        if bound == name:
            return self._defined(name, value, found)
        if self._values.get(bound) is value:
            return Item(name, [generated(f"{name} = {bound}")], now={bound})
        return self._shipped(name, value)

    def _defined(self, name: str, value: object, found: Statement) -> Item:
        """A live class or function as its statement and the changes made to it since."""
        bare = origins.without_shipped_decorators(found, value, self._values)
        item = self._from_source(name, [bare, *origins.registered(name, found, self._cells)])
        self.sources[found.cell.label] = found.cell.source
        item.is_definition = True
        item.later |= {self._patch(patch) for patch in patches(name, value, found, self._values)}
        return item

    def _shipped(self, name: str, value: object) -> Item:
        names = reached(value, self._values, self._mains) - {name}
        return Item(name, value=value, is_value=True, now=names)

    def _patch(self, patch: Patch) -> str:
        """Add the item of an attribute set after the definition; returns its name."""
        shown = origins.live_name(patch.value, self._values)
        if shown is None:
            shown = f"{PREFIX}{patch.owner}_{patch.attribute}"
            self._patched[shown] = self._shipped(shown, patch.value)
        target = f"{patch.owner}.{patch.attribute}"
        line = generated(f"{target} = {shown}")
        self._patched[target] = Item(target, [line], now={patch.owner, shown})
        return target


def _by_name(pending: Sequence[Cell]) -> dict[str, list[Statement]]:
    """For each name, the statements of the newest pending cell that define it."""
    found: dict[str, list[Statement]] = {}
    for cell in pending:
        here: dict[str, list[Statement]] = {}
        for node in lasting(parsed(cell)):
            for name in bindings([node]):
                here.setdefault(name, []).append(Statement(cell, node))
        found.update(here)
    return found


def _star_imports(pending: Sequence[Cell]) -> list[Statement]:
    return [
        Statement(cell, node)
        for cell in pending
        for node in parsed(cell).body
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]


def _star_module(statement: Statement) -> str:
    assert isinstance(statement.node, ast.ImportFrom)
    return statement.node.module or ""


def _prefixes(path: str, module: str) -> Iterator[str]:
    """The loaded modules along `a.b.c` below `a`."""
    parts = path.split(".")
    for end in range(module.count(".") + 2, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if prefix not in sys.modules:
            return
        yield prefix
