"""From a launched cell, and what it needs of the notebook, to a Program.

The rule: no user code runs here and nothing is pickled. Definitions travel as the source that
is live in the notebook now, checked against the live code objects; everything else travels as
a value. This module knows neither IPython nor torch, nor how a program is carried and run.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import dis
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from xla_nb import escapes
from xla_nb.errors import ProgramError
from xla_nb.source import (
    ASSIGNMENT,
    DEFINITION,
    FUNCTION,
    IMPORT,
    Cell,
    Cells,
    Function,
    Names,
    Section,
    Statement,
    bindings,
    future_flags,
    futures,
    imported_modules,
    is_main_guard,
    names_in,
    parse,
    parsed,
    span,
    star_names,
    without,
)

__all__ = [
    "Cell",
    "Mapped",
    "Program",
    "Restore",
    "Scope",
    "Section",
    "bound",
    "build",
    "build_call",
    "definitions",
    "module_source",
]

RANK_NAMES = frozenset({"rank", "world_size", "device", "lock"})
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__doc__", "__package__", "__spec__"),
        *("__file__", "__loader__", "__builtins__", "__annotations__", "__dict__", "__class__"),
        *("get_ipython", "display"),
    }
)
_BUILTINS = frozenset(vars(builtins))
_GENERATED = "<xla_nb>"
_PREFIX = "_xla_nb_"
_RESTORE = f"{_PREFIX}restore"
_REACH = 20_000  # objects looked at, at most, in search of the classes that a value needs


@dataclass(frozen=True)
class Scope:
    """What the notebook (or script) holds at this moment.

    `values` are its live globals, `cells` ran before, oldest first. `pending` cells were
    launched but their definitions have not been executed in the notebook yet: their source is
    newer than what `values` holds.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    pending: Sequence[Cell] = ()


@dataclass(frozen=True)
class Restore:
    """A step of a module: put the values of group `index` into its namespace."""

    index: int


@dataclass(frozen=True)
class Program:
    """Everything the ranks need to run a cell.

    `label` names what was launched. The module is its `steps`, in order. `body` is what every
    rank then runs in the module's namespace, where the cell is plain statements; else ranks
    call `entry`. `defines` are the names whose functions and classes the module defines from
    source, so that they pickle by reference to it. `futures` are in force for the module and
    the body. `notes` are for the user.
    """

    name: str
    label: str = ""
    steps: tuple[Section | Restore, ...] = ()
    groups: tuple[Mapping[str, object], ...] = ()
    entry: str | None = None
    body: Section | None = None
    takes_lock: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> int:
        """Compiler flags for the sections (pass `dont_inherit=True` beside them)."""
        return future_flags(self.futures)


@dataclass(frozen=True)
class Mapped:
    """Lines `start` to `end` of a module file are the lines of `label` from `first_line`."""

    start: int
    end: int
    label: str
    first_line: int


def build(
    cell: Cell, scope: Scope, *, entry: str | None, args: Sequence[object], name: str
) -> Program:
    """Make a launched cell into a Program.

    The ranks call `entry`: the function named, else the last one defined at the cell's top
    level, also where plain statements follow it. A cell that defines no function and names
    none is itself what the ranks run.
    """
    plan = _plan(cell, scope, entry)
    extraction = _Extraction(scope, plan.names, plan.replaced, plan.futures, plan.has_ranks_names)
    extraction.cell(cell, plan)
    takes_lock = bool(plan.entry) and _check_entry(cell, plan, extraction, args)
    early, late, last = extraction.layout()
    module = [Section(cell.label, 1, plan.text)] if plan.text.strip() else []
    return _assemble(
        extraction,
        [*early, late, *module, last],
        name=name,
        label=cell.label,
        entry=plan.entry,
        body=Section(cell.label, 1, plan.body) if plan.entry is None else None,
        takes_lock=takes_lock,
        sources={cell.label: cell.source},
        binds=tuple(sorted(plan.names.binds)),
        imports=tuple(imported_modules(parse(cell).body)),
        defines=plan.defines,
        notes=plan.notes,
    )


def build_call(
    fn: Callable[..., object], scope: Scope, *, args: Sequence[object], name: str
) -> Program:
    """Make a call of a live function into a Program: by import, from its source, or by value."""
    takes_lock = _check_live(fn, args, "args=({},)")
    known = {f for cell in (*scope.cells, *scope.pending) for f in futures(parsed(cell))}
    extraction = _Extraction(scope, Names(), set(), known, ranks_names=False)
    entry = extraction.callable(fn)
    early, late, _ = extraction.layout()
    label = _name_of(fn) or type(fn).__name__
    return _assemble(
        extraction, [*early, late], name=name, label=label, entry=entry, takes_lock=takes_lock
    )


def _assemble(
    extraction: _Extraction,
    pieces: Sequence[Section | dict[str, object]],
    *,
    sources: Mapping[str, str] | None = None,
    defines: Iterable[str] = (),
    notes: tuple[str, ...] = (),
    **fields: Any,
) -> Program:
    steps: list[Section | Restore] = []
    groups: list[dict[str, object]] = []
    for piece in pieces:
        if isinstance(piece, Section):
            steps.append(piece)
        elif piece:
            steps.append(Restore(len(groups)))
            groups.append(piece)
    return Program(
        steps=tuple(steps),
        groups=tuple(groups),
        sources={**extraction.sources, **(sources or {})},
        origins={name: extraction.origin(name) for group in groups for name in group},
        defines=tuple(sorted({*extraction.defines(), *defines})),
        futures=tuple(sorted(extraction.futures)),
        notes=(*notes, *extraction.notes),
        **fields,
    )


def module_source(program: Program) -> tuple[str, list[Mapped]]:
    """The text of the program's importable module file, and which of its lines are whose."""
    text = f'"""Module {program.name}: what xla_nb took from the notebook for one run."""\n'
    if program.futures:
        text += f"from __future__ import {', '.join(program.futures)}\n"
    if program.groups:
        text += f"from xla_nb.loading import restore as {_RESTORE}\n"
    mapped = []
    for step in program.steps:
        if isinstance(step, Restore):
            text += f"\n{_RESTORE}({step.index}, globals())\n"
            continue
        text += "\n"
        start = text.count("\n") + 1
        text += step.text
        if step.label != _GENERATED:
            mapped.append(Mapped(start, text.count("\n"), step.label, step.first_line))
    return text, mapped


def definitions(cell: Cell) -> str:
    """The part of a launched cell that the notebook itself runs later, at its own lines.

    Imports, functions and classes; of a cell that defines a function at its top level also the
    plain assignments. Of a cell of statements, no definition that needs what they compute.
    """
    tree = parse(cell)
    kept = {id(node) for node in _kept(tree)}
    return without(cell.source, [node for node in tree.body if id(node) not in kept])


def bound(cell: Cell) -> tuple[str, ...]:
    """The names that `definitions` of the cell binds."""
    return tuple(sorted(bindings(_kept(parse(cell)))))


def _kept(tree: ast.Module) -> list[ast.stmt]:
    if _functions(tree):
        return [node for node in tree.body if _only_defines(node)]
    lasting = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    return lasting + _hoisted(_plain(tree), lazy="annotations" in futures(tree))


def _only_defines(node: ast.stmt) -> bool:
    if isinstance(node, (*IMPORT, *DEFINITION, *ASSIGNMENT, ast.Pass)):
        return True
    if type(node).__name__ == "TypeAlias":
        return True
    if isinstance(node, ast.Try):  # try: import a  except ImportError: a = None
        parts = [*node.body, *node.orelse, *node.finalbody]
        parts += [part for handler in node.handlers for part in handler.body]
        return all(_only_defines(part) for part in parts)
    if isinstance(node, ast.If) and not is_main_guard(node):
        return all(_only_defines(part) for part in [*node.body, *node.orelse])
    return False


def _functions(tree: ast.Module) -> list[Function]:
    return [node for node in tree.body if isinstance(node, FUNCTION)]


def _plain(tree: ast.Module) -> list[ast.stmt]:
    """The statements without `from __future__ import`, which a module file has in its head."""
    return [
        n for n in tree.body if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")
    ]


def _hoisted(nodes: Sequence[ast.stmt], *, lazy: bool) -> list[ast.stmt]:
    """The definitions among a cell's statements that may run before all of them.

    One stays among the statements if an earlier statement used or bound its name, or if it
    needs, when it is defined, what a statement computes.
    """
    stays = [n for n in nodes if not isinstance(n, (*IMPORT, *DEFINITION))]
    computed = bindings(stays) | RANK_NAMES
    touched: set[str] = set()
    hoisted = []
    for node in nodes:
        names = names_in([node], lazy_annotations=lazy)
        can = node not in stays and not names.binds & touched and not set(names.now) & computed
        if can:
            hoisted.append(node)
            if {*names.now, *names.later} & computed:  # to call it now would be too early
                computed = computed | names.binds
        else:
            touched |= names.binds | set(names.now)
            computed = computed | names.binds
    return hoisted


# --- the launched cell ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """How a launched cell becomes module text, a body and an entry."""

    tree: ast.Module
    entry: str | None
    text: str  # what the module file has of the cell
    body: str  # what every rank runs of it, where there is no entry
    names: Names
    early: set[str]  # names read while the module's part of the cell runs
    replaced: set[str]  # names that the module's part of the cell binds
    defines: tuple[str, ...]
    futures: set[str]
    notes: tuple[str, ...]

    @property
    def has_ranks_names(self) -> bool:
        return self.entry is None


def _plan(cell: Cell, scope: Scope, entry: str | None) -> _Plan:
    tree = parse(cell)
    _refuse_relative_imports(tree.body, cell.label)
    notes = list(escapes.check(tree, cell.label))
    future = {f for c in (*scope.cells, *scope.pending, cell) for f in futures(parsed(c))}
    lazy = "annotations" in future
    functions = _functions(tree)
    entry = entry or (functions[-1].name if functions else None)
    nodes = _plain(tree)
    if entry is None:
        module = _hoisted(nodes, lazy=lazy)
    else:
        module = [node for node in nodes if not is_main_guard(node)]
        notes += [
            f'{cell.label}, line {node.lineno}: the block under `if __name__ == "__main__":` '
            f"is left out; the ranks call {entry}()"
            for node in nodes
            if is_main_guard(node)
        ]
        nodes = module
    inside = {id(node) for node in module}
    names = names_in(nodes, lazy_annotations=lazy)
    return _Plan(
        tree=tree,
        entry=entry,
        text=without(cell.source, [n for n in tree.body if id(n) not in inside]) if module else "",
        body=without(cell.source, [*module, *(n for n in tree.body if n not in nodes)]),
        names=names,
        early=set(names_in(module, lazy_annotations=lazy).now),
        replaced=bindings(module),
        defines=tuple(node.name for node in module if isinstance(node, DEFINITION)),
        futures=future,
        notes=tuple(notes),
    )


def _refuse_relative_imports(nodes: Iterable[ast.stmt], label: str) -> None:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and part.level:
                raise ProgramError(
                    f"{label}, line {part.lineno}: a relative import has no package to start "
                    "from in a notebook. Write the module's full name."
                )


# --- what a program takes from the notebook ---------------------------------------------------


@dataclass
class _Item:
    """One thing taken along: sections of source that bind `name`, or the value of that name."""

    name: str
    sections: list[Section] = field(default_factory=list)
    value: object = None
    is_value: bool = False
    is_definition: bool = False
    module: ModuleType | None = None
    now: set[str] = field(default_factory=set)  # needed before it can be put in place
    later: set[str] = field(default_factory=set)  # needed when it is used


class _Extraction:
    """Collects, name by name and transitively, what a program takes from the notebook."""

    def __init__(
        self,
        scope: Scope,
        cell: Names,
        replaced: set[str],
        future: set[str],
        ranks_names: bool,
    ) -> None:
        self._scope = scope
        self.values = scope.values
        self.cells = Cells(scope.cells)
        self.sources: dict[str, str] = {}
        self.futures = future
        self.notes: list[str] = []
        self._bound = cell.binds | cell.sets
        self._replaced = replaced
        self._known = _BUILTINS | _MODULE_NAMES | (RANK_NAMES if ranks_names else set())
        self._pending = _by_name(scope.pending)
        self._stars = _star_imports(scope.pending)
        self._items: dict[str, _Item] = {}
        self._early: dict[str, bool] = {}
        self._paths: set[str] = set()
        self._mains = {"__main__", str(scope.values.get("__name__", "__main__"))}

    def cell(self, cell: Cell, plan: _Plan) -> None:
        """Take along what the launched cell needs."""
        self._check_names(plan.names, cell.label)
        self._paths |= plan.names.paths
        for name in sorted(plan.names.wanted()):
            self.need(name, early=name in plan.early, replaced=True)
        if plan.entry is not None:
            self.need(plan.entry)

    def callable(self, fn: Callable[..., object]) -> str:
        """Take along a live callable; answers with the name it will have in the module."""
        own = _name_of(fn)
        named = [own] if self.values.get(own) is fn else _names_of(fn, self.values)
        if named:
            name = named[0]
            self.need(name)
            return str(name)
        name = own if _importable(fn, self._mains) else f"{_PREFIX}entry"
        self._add(self._from_value(name, fn), early=False)
        return name

    def need(self, name: str, *, early: bool = False, replaced: bool = False) -> None:
        """Take along what `name` stands for, before the definitions run if `early`.

        What the launched cell binds itself is left to it, unless `replaced` says that the
        notebook's is wanted all the same.
        """
        if name in self._known and not self._shadows(name):
            return
        if name in self._bound and not early and not replaced:
            return
        item = self._items.get(name) or self._find(name)
        if item is not None:
            self._add(item, early)

    def _shadows(self, name: str) -> bool:
        """Whether the notebook holds something of its own under the name of a builtin.

        IPython puts its own `open` and `exit` there; ranks have Python's.
        """
        if name not in _BUILTINS:
            return False
        if name in self._pending:
            return True
        held = self.values.get(name, getattr(builtins, name))
        python_s = any(part is getattr(builtins, name) for part in _unwrapped(held))
        return not python_s and type(held).__module__.partition(".")[0] != "IPython"

    def _add(self, item: _Item, early: bool) -> None:
        if self._early.get(item.name, False) >= early and item.name in self._early:
            return
        self._items[item.name] = item
        self._early[item.name] = early
        for name in sorted(item.now):
            # A value of a class that the cell defines anew is restored after the cell.
            self.need(name, early=early or not item.is_value)
        for name in sorted(item.later):
            self.need(name, early=early)

    def _find(self, name: str) -> _Item | None:
        if name in self._pending:
            return self._from_source(name, self._pending[name])
        if name in self.values:
            return self._from_value(name, self.values[name])
        stars = [s for s in self._stars if name in (star_names(_star_module(s)) or {name})]
        return self._from_source(name, stars) if stars else None

    def _has(self, name: str) -> bool:
        return (
            name in self._known
            or name in self._bound
            or name in self._pending
            or name in self.values
            or any(name in (star_names(_star_module(s)) or {name}) for s in self._stars)
        )

    def _check_names(self, names: Names, label: str) -> None:
        known = [star_names(module) for module in names.stars]
        if None in known:
            return
        starred = {name for found in known if found is not None for name in found}
        for name, line in sorted(names.required().items(), key=lambda item: item[1]):
            if name not in starred and not self._has(name):
                raise ProgramError(self._missing(name, label, line))

    def _missing(self, name: str, label: str, line: int) -> str:
        known = {*self.values, *self._pending, *self._bound, *self._known}
        close = difflib.get_close_matches(name, [n for n in known if n[:1] != "_"], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        written = self._cell_with(name)
        if written:
            hint = (
                f" {written} binds it, but not in the notebook: it ran on the ranks, failed "
                "before that line, or the name was deleted since."
            )
        if name in RANK_NAMES:
            hint = " Only cells of plain statements have it; make it a parameter of the function."
        return (
            f"{label}, line {line}: the name {name} is defined neither in this cell nor in the "
            f"notebook.{hint} Define or import it first; nothing was started."
        )

    def _cell_with(self, name: str) -> str:
        newest = Cells([*self._scope.cells, *self._scope.pending]).newest(name)
        return newest.cell.label if newest else ""

    # Items

    def _from_source(self, name: str, statements: Sequence[Statement]) -> _Item:
        item = _Item(name)
        nodes = [statement.node for statement in statements]
        names = names_in(nodes, lazy_annotations="annotations" in self.futures)
        for statement in statements:
            label = statement.cell.label
            self.sources[label] = statement.cell.source
            item.sections.append(statement.section)
            _refuse_relative_imports([statement.node], label)
            self.notes += escapes.check(statement.node, label)
        self._check_names(names, statements[-1].cell.label)
        self._paths |= names.paths
        item.is_definition = isinstance(nodes[-1], DEFINITION)
        item.now = set(names.now) - {name}
        item.later = {n for n in names.wanted() if self._has(n)} - item.now - {name}
        return item

    def _from_value(self, name: str, value: object) -> _Item:
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return _Item(name, module=value)
        line = self._import_line(name, value)
        if line:
            return _Item(name, [_generated(line)])
        found = self._definition(name, value)
        if found is None:
            return self._shipped(name, value)
        bound = found.node.name if isinstance(found.node, DEFINITION) else name
        if bound != name:
            if self.values.get(bound) is not value:
                return self._shipped(name, value)
            return _Item(name, [_generated(f"{name} = {bound}")], now={bound})
        bare = _without_shipped_decorators(found, value, self.values)
        item = self._from_source(name, [bare, *self._registered(name, found)])
        self.sources[found.cell.label] = found.cell.source
        item.is_definition = True
        item.later |= {self._patched(patch) for patch in _patches(name, value, found, self.values)}
        return item

    def _shipped(self, name: str, value: object) -> _Item:
        reached = _reached(value, self.values, self._mains)
        return _Item(name, value=value, is_value=True, now=reached - {name})

    def _patched(self, patch: _Patch) -> str:
        """Take along an attribute set after the definition; answers with its item's name."""
        shown = _live_name(patch.value, self.values)
        if shown is None:
            shown = f"{_PREFIX}{patch.owner}_{patch.attribute}"
            self._items[shown] = self._shipped(shown, patch.value)
        target = f"{patch.owner}.{patch.attribute}"
        line = _generated(f"{target} = {shown}")
        self._items[target] = _Item(target, [line], now={patch.owner, shown})
        return target

    def _import_line(self, name: str, value: object) -> str:
        """The import that gives this very object, if a statement or its own name tells one."""
        if not _has_own_name(value):
            return ""
        for statement in self.cells.statements():
            if isinstance(statement.node, ast.ImportFrom) and not statement.node.level:
                for alias in statement.node.names:
                    module = statement.node.module or ""
                    if (alias.asname or alias.name) == name and _gives(module, alias.name, value):
                        return _import_from(module, alias.name, name)
        if _importable(value, self._mains):
            module, attribute = _own_name(value)
            return _import_from(module, attribute, name)
        return ""

    def _definition(self, name: str, value: object) -> Statement | None:
        """The statement that made this object, as far as that can be told for sure."""
        if isinstance(value, type):
            if _module_of(value) not in self._mains or "<locals>" in value.__qualname__:
                return None
            found = _class_statement(value, self.cells) or self._assigned_class(name, value)
        else:
            found = _function_statement(value, self.cells) or self._decorated(name, value)
        if found is None or name in names_in([found.node]).now:  # class Net(Net): ...
            return None
        return found

    def _registered(self, name: str, found: Statement) -> list[Statement]:
        """The functions registered with this one since: `@area.register def _(x: int): ...`."""
        since: list[Statement] = []
        for statement in self.cells.statements():
            if statement.node is found.node:
                since.clear()
            elif any(root == name and deep for _, root, deep in _decorators(statement.node)):
                since.append(statement)
        return since

    def _assigned_class(self, name: str, value: type) -> Statement | None:
        """`Point = namedtuple("Point", "x y")`: made by a call, so the call is the source."""
        newest = self.cells.newest(name)
        made = newest is not None and isinstance(newest.node, ast.Assign)
        return newest if made and value.__qualname__ == name and not _own_code(value) else None

    def _decorated(self, name: str, value: object) -> Statement | None:
        """What a decorator turned into something that no longer shows its function."""
        newest = self.cells.newest(name)
        if newest is None or not isinstance(newest.node, DEFINITION):
            return None
        exact = isinstance(value, FunctionType) and "<locals>" not in value.__qualname__
        return newest if newest.node.decorator_list and not exact else None

    # Order

    def layout(
        self,
    ) -> tuple[list[Section | dict[str, object]], dict[str, object], dict[str, object]]:
        """The pieces before the cell in their order; the values before it; those after it."""
        staged = _staged(self._items, self._early)
        pieces: list[Section | dict[str, object]] = []
        for name in staged:
            item = self._items[name]
            if item.is_value:
                if not (pieces and isinstance(pieces[-1], dict)):
                    pieces.append({})
                group = pieces[-1]
                assert isinstance(group, dict)
                group[name] = item.value
            else:
                pieces += [s for s in self._sections(item) if s not in pieces]
        late: dict[str, object] = {}
        last: dict[str, object] = {}
        for name, early in self._early.items():
            item = self._items[name]
            if item.is_value and not early:
                (last if item.now & self._replaced else late)[name] = item.value
        return pieces, late, last

    def _sections(self, item: _Item) -> list[Section]:
        if item.module is None:
            return item.sections
        return [_generated("\n".join(self._imports(item.name, item.module)))]

    def _imports(self, name: str, module: ModuleType) -> Iterator[str]:
        """`import a.b as name`, and the submodules that the notebook had loaded and uses."""
        full = module.__name__
        yield f"import {full}" if name == full else f"import {full} as {name}"
        asked = {
            f"{full}{path[len(name) :]}" for path in self._paths if path.startswith(f"{name}.")
        }
        if name == full:
            written = imported_modules(statement.node for statement in self.cells.statements())
            asked |= {path for path in written if path.startswith(f"{name}.")}
        for submodule in sorted({part for path in asked for part in _prefixes(path, full)}):
            yield f'__import__("{submodule}")'

    def defines(self) -> set[str]:
        return {name for name in self._early if self._items[name].is_definition}

    def origin(self, name: str) -> str:
        """The label of the cell that bound a shipped name last."""
        newest = self.cells.newest(name)
        return newest.cell.label if newest else ""

    def pending_function(self, name: str) -> Statement | None:
        return self._pending[name][-1] if name in self._pending else None


def _import_from(module: str, attribute: str, name: str) -> str:
    renamed = "" if name == attribute else f" as {name}"
    return f"from {module} import {attribute}{renamed}"


def _generated(text: str) -> Section:
    return Section(_GENERATED, 1, f"{text}\n")


def _by_name(pending: Sequence[Cell]) -> dict[str, list[Statement]]:
    """For each name, the statements of the newest pending cell that define it."""
    found: dict[str, list[Statement]] = {}
    for cell in pending:
        here: dict[str, list[Statement]] = {}
        for node in _kept(parsed(cell)):
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


def _staged(items: Mapping[str, _Item], early: Mapping[str, bool]) -> list[str]:
    """Definitions, and the values they need to be made, so that each finds what it needs.

    Items fall into alternating stages of source and values: as few groups of values as
    possible, because only values of one group keep the objects they share. Names that need
    one another while they are being defined keep the order in which they were met.
    """
    stages: dict[str, int] = {}
    open_: set[str] = set()

    def place(name: str) -> None:
        item = items[name]
        if name in open_ or (item.is_value and not early[name]):
            return
        open_.add(name)
        needed = _settled(item.now, items, early)
        for other in needed:
            place(other)
        least = max((stages.get(other, 0) for other in needed), default=0)
        stages[name] = least + (least % 2 != item.is_value)

    for name in early:
        place(name)
    return sorted(stages, key=lambda name: (stages[name], not _is_import(items[name])))


def _settled(
    names: Iterable[str], items: Mapping[str, _Item], taken: Mapping[str, bool]
) -> list[str]:
    """These names and all that they can reach: what must be there to call one of them."""
    found: dict[str, None] = {}
    queue = deque(sorted(names))
    while queue:
        name = queue.popleft()
        if name in taken and name not in found:
            found[name] = None
            queue.extend(sorted(items[name].now | items[name].later))
    return list(found)


def _is_import(item: _Item) -> bool:
    text = item.sections[0].text if item.sections else ""
    return item.module is not None or text.startswith(("import ", "from "))


# --- live objects and their source ------------------------------------------------------------


def _module_of(value: object) -> str:
    source = vars(value) if isinstance(value, type) else None
    found = source.get("__module__") if source is not None else _static(value, "__module__")
    return found if isinstance(found, str) else ""


def _static(value: object, name: str) -> object:
    """An attribute that the object or its type holds, found without running user code."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


def _own_name(value: object) -> tuple[str, str]:
    module, attribute = _static(value, "__module__"), _static(value, "__qualname__")
    named = isinstance(module, str) and isinstance(attribute, str)
    return (str(module), str(attribute)) if named else ("", "")


def _has_own_name(value: object) -> bool:
    """Whether the object is a piece of code or of typing, rather than data with a state."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return True
    return type(value).__module__ in ("typing", "functools") or bool(_own_name(value)[1])


def _importable(value: object, mains: set[str]) -> bool:
    module, attribute = _own_name(value)
    return module not in mains and _gives(module, attribute, value)


def _gives(module: str, attribute: str, value: object) -> bool:
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, "__spec__", None) is None:
        return False
    return attribute in vars(loaded) and vars(loaded)[attribute] is value


def _names_of(value: object, values: Mapping[str, object]) -> list[str]:
    return [
        name for name, other in list(values.items()) if other is value and not name.startswith("_")
    ]


def _name_of(value: object) -> str:
    name = _static(value, "__name__")
    return name if isinstance(name, str) else ""


def _live_name(value: object, values: Mapping[str, object]) -> str | None:
    """The global name under which the notebook holds this very function or class."""
    name = _name_of(value) if isinstance(value, FunctionType | type) else ""
    return name if name and values.get(name) is value else None


def _unwrapped(value: object) -> Iterator[object]:
    """The object and what it wraps, as functools.wraps notes it."""
    for _ in range(100):
        yield value
        value = _static(value, "__wrapped__") if not isinstance(value, type) else None
        if value is None:
            return


def _decorators(node: ast.stmt) -> Iterator[tuple[ast.expr, str, bool]]:
    """Each decorator with its root name, and whether it is an attribute of it."""
    for decorator in node.decorator_list if isinstance(node, DEFINITION) else []:
        root: ast.expr = decorator
        while isinstance(root, ast.Attribute | ast.Call):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        deep = any(isinstance(part, ast.Attribute) for part in ast.walk(decorator))
        if isinstance(root, ast.Name):
            yield decorator, root.id, deep


def _without_shipped_decorators(
    found: Statement, value: object, values: Mapping[str, object]
) -> Statement:
    """The definition without the decorators that registered it with an object of the notebook.

    `@registry.add` gave the function back as it was and noted it in `registry`, which travels
    as a value with its notes; to run it again would ask for the one before the other.
    """
    if not isinstance(value, type | FunctionType) or "__wrapped__" in vars(value):
        return found
    definitions_ = (type, FunctionType, BuiltinFunctionType, ModuleType)
    dropped = [
        decorator
        for decorator, root, deep in _decorators(found.node)
        if deep and root in values and not isinstance(values[root], definitions_)
    ]
    return found.without_lines(dropped) if dropped else found


def _function_statement(value: object, cells: Cells) -> Statement | None:
    for depth, function in enumerate(_unwrapped(value)):
        if isinstance(function, FunctionType) and "." not in function.__code__.co_qualname:
            found = cells.holding(function.__code__)
            node = found.node if found else None
            own = isinstance(node, FUNCTION) and node.name == function.__code__.co_qualname
            # `f = wrap(f)` leaves a wrapper that the undecorated def alone would not make.
            if own and (depth == 0 or node.decorator_list):  # type: ignore[union-attr]
                return found
    return None


def _class_statement(cls: type, cells: Cells) -> Statement | None:
    own = _own_code(cls)
    for code in own:
        found = cells.holding(code)
        if found and isinstance(found.node, ast.ClassDef) and found.node.name == cls.__name__:
            return found
    if own:
        return None
    line = vars(cls).get("__firstlineno__")  # Python 3.13 and later
    for found in reversed(list(cells.statements())):
        named = isinstance(found.node, ast.ClassDef) and found.node.name == cls.__name__
        if named and line in (None, span(found.node)[0]):
            return found
    return None


def _own_code(cls: type) -> list[CodeType]:
    """The code of the methods written in the class itself."""
    return [
        function.__code__
        for name, value in vars(cls).items()
        for function in _method_functions(value)
        if function.__qualname__ == f"{cls.__qualname__}.{name}" and _is_from(cls, function)
    ]


def _method_functions(value: object) -> Iterator[FunctionType]:
    """The plain functions in a class attribute: a method's, a property's."""
    parts = [value.fget, value.fset] if isinstance(value, property) else [value]
    for part in parts:
        inner = part.__func__ if isinstance(part, staticmethod | classmethod) else part
        yield from [f for f in _unwrapped(inner) if isinstance(f, FunctionType)][-1:]


def _is_from(cls: type, function: FunctionType) -> bool:
    """Whether the function was written where the class was, not made for it by a library."""
    made = function.__code__.co_filename.startswith("<string>")  # as dataclasses do
    return not made and function.__module__ == cls.__module__


# --- what was set on a definition afterwards --------------------------------------------------


@dataclass(frozen=True)
class _Patch:
    """An attribute that was set on a class or function after its definition."""

    owner: str
    attribute: str
    value: object


_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DATA = (*_PLAIN, list, tuple, set, frozenset, dict)


def _patches(
    name: str, value: object, found: Statement, values: Mapping[str, object]
) -> Iterator[_Patch]:
    if isinstance(value, type) and isinstance(found.node, ast.ClassDef):
        yield from _class_patches(name, value, found.node)
    elif isinstance(value, FunctionType) and isinstance(found.node, FUNCTION):
        if not found.node.decorator_list:
            yield from (_Patch(name, attribute, v) for attribute, v in vars(value).items())
        for attribute in _changed_defaults(value, found.node, values):
            yield _Patch(name, attribute, getattr(value, attribute))


def _changed_defaults(
    function: FunctionType, node: Function, values: Mapping[str, object]
) -> Iterator[str]:
    """Where a default that is a plain name has kept a value that the name no longer has."""
    live = function.__kwdefaults__ or {}
    names = [parameter.arg for parameter in node.args.kwonlyargs]
    positional = zip(node.args.defaults, function.__defaults__ or (), strict=False)
    keyword = zip(node.args.kw_defaults, map(live.get, names), strict=False)
    for attribute, pairs in ("__defaults__", positional), ("__kwdefaults__", keyword):
        if any(isinstance(d, ast.Name) and values.get(d.id, v) is not v for d, v in pairs):
            yield attribute


def _class_patches(name: str, cls: type, node: ast.ClassDef) -> Iterator[_Patch]:
    written = bindings(node.body)
    written |= {f"_{node.name.lstrip('_')}{n}" for n in written if n.startswith("__")}
    literals = _literals(node)
    simple = type(cls).__module__ in ("builtins", "abc")  # an enum's members are no literals
    plain = simple and not node.decorator_list and not node.keywords
    plain = plain and getattr(cls.__init_subclass__, "__func__", None) is None
    for attribute, value in vars(cls).items():
        functions = list(_method_functions(value))
        if functions:
            if _is_patched(functions[-1], cls, attribute in written, bool(node.decorator_list)):
                yield _Patch(name, attribute, value)
        elif attribute in literals:
            if simple and isinstance(value, _DATA) and not _equals(value, literals[attribute]):
                yield _Patch(name, attribute, value)
        elif attribute not in written and plain and _is_set_by_hand(attribute, value):
            yield _Patch(name, attribute, value)


def _literals(node: ast.ClassDef) -> dict[str, object]:
    """The class attributes whose value is written out in the class: `lr = 0.1`."""
    found: dict[str, object] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            with contextlib.suppress(ValueError, TypeError):  # it is no literal
                found.update(dict.fromkeys(names, ast.literal_eval(statement.value)))
    return found


def _equals(value: object, literal: object) -> bool:
    """Whether they are equal, without asking an `__eq__` that is not Python's own."""
    parts = deque([value])
    while parts:
        part = parts.popleft()
        if type(part) not in _DATA:
            return False
        if not isinstance(part, _PLAIN):
            parts.extend(_contents(part))
    return value == literal


def _is_patched(function: FunctionType, cls: type, written: bool, decorated: bool) -> bool:
    """Whether a method was set on its class later, by nothing that the class itself does."""
    if not _is_from(cls, function):
        return False
    if function.__qualname__.rpartition(".")[0] == cls.__qualname__:
        return not written  # Net.other = Net.forward
    return not (decorated and "<locals>" in function.__qualname__)


def _is_set_by_hand(attribute: str, value: object) -> bool:
    made = attribute.startswith(("__", "_abc_")) or isinstance(value, MemberDescriptorType)
    return not made


# --- what a value needs -----------------------------------------------------------------------

_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LEAVES = (*_PLAIN, ModuleType, BuiltinFunctionType, CodeType, range, slice, bytearray)


def _reached(value: object, values: Mapping[str, object], mains: set[str]) -> set[str]:
    """The notebook's names of the classes and functions that a value holds, directly or not.

    Looks at attributes and containers alone, never through user code, and at a bounded number
    of objects; what lies beyond is carried by value with the rest.
    """
    names: set[str] = set()
    seen: dict[int, object] = {}
    queue: deque[object] = deque([value])
    while queue and len(seen) < _REACH:
        part = queue.popleft()
        if isinstance(part, _LEAVES) or id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, type | FunctionType):
            if _module_of(part) in mains:
                names |= _named_code(part, values, queue, outermost=part is value)
        else:
            queue.append(type(part))
            queue.extend(islice(_contents(part), _REACH))
    return names


def _named_code(
    part: type | FunctionType, values: Mapping[str, object], queue: deque[object], outermost: bool
) -> set[str]:
    """The root name of a live definition; of any other, the names in it, its parts queued."""
    root, *rest = part.__qualname__.split(".")
    found: object = values.get(root)
    for name in rest:
        found = vars(found).get(name) if isinstance(found, type) else None
    if found is part and not outermost:
        return {root}
    if isinstance(part, type):
        queue.extend(part.__bases__)
        queue.extend(vars(part).values())
        return set()
    queue.extend(_contents(part))
    queue.extend([part.__defaults__, part.__kwdefaults__])
    queue.extend(_cell_contents(part))
    return {name for name in _global_names(part.__code__) if name in values}


def _contents(part: object) -> Iterator[object]:
    if isinstance(part, dict):
        yield from chain.from_iterable(dict.items(part))
    for kind in _SEQUENCES:
        if isinstance(part, kind):
            yield from kind.__iter__(part)
    if isinstance(part, partial):
        yield from (part.func, part.args, part.keywords)
    if isinstance(part, MethodType):
        yield from (part.__self__, part.__func__)
    if isinstance(part, staticmethod | classmethod):
        yield part.__func__
    if isinstance(part, property):
        yield from (part.fget, part.fset, part.fdel)
    with contextlib.suppress(AttributeError):
        yield object.__getattribute__(part, "__dict__")
    yield from _slots(part)


def _slots(part: object) -> Iterator[object]:
    for cls in type(part).__mro__:
        for descriptor in vars(cls).values():
            if isinstance(descriptor, MemberDescriptorType) and descriptor.__objclass__ is cls:
                try:
                    yield descriptor.__get__(part)
                except (AttributeError, TypeError):
                    continue


def _cell_contents(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname:  # not co_names, which has attributes' names too
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


# --- the entry --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """A default as it is written, for signatures read from source."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _check_entry(cell: Cell, plan: _Plan, extraction: _Extraction, args: Sequence[object]) -> bool:
    """Check the entry and its arguments before anything starts; True if it takes the lock."""
    entry = plan.entry or ""
    fix = '--args "({},)"'
    if entry in plan.names.binds:
        return _check_source(_binding(plan.tree.body, entry, cell), cell.label, args, fix, plan)
    pending = extraction.pending_function(entry)
    if pending is not None:
        return _check_source(pending.node, pending.cell.label, args, fix, plan)
    if entry not in extraction.values:
        raise ProgramError(_no_entry(plan, extraction.values, cell.label))
    fn = extraction.values[entry]
    if isinstance(fn, type) or not callable(fn):
        raise ProgramError(
            _not_a_function(entry, f"in the notebook it is of type {type(fn).__name__}", plan)
        )
    return _check_live(fn, args, fix)


def _binding(nodes: Iterable[ast.stmt], name: str, cell: Cell) -> ast.stmt:
    """The last statement that binds the name, looked for inside `if` and `try` too."""
    found: ast.stmt | None = None
    for node in nodes:
        if name in bindings([node]):
            found = node
    assert found is not None, f"{name} is bound in {cell.label}"
    for child in ast.walk(found):
        if isinstance(child, FUNCTION) and child.name == name:
            return child
    return found


def _check_source(
    node: ast.stmt, label: str, args: Sequence[object], fix: str, plan: _Plan
) -> bool:
    entry = plan.entry or ""
    if isinstance(node, FUNCTION):
        where = f"{label}, line {node.lineno}: "
        _refuse_kind(entry, where, isinstance(node, ast.AsyncFunctionDef), _yields(node))
        return _check_call(entry, _signature(node), args, fix, where, bool(node.decorator_list))
    value = getattr(node, "value", None)
    if isinstance(node, IMPORT) or isinstance(
        value, ast.Call | ast.Lambda | ast.Name | ast.Attribute
    ):
        return False
    what = "a class" if isinstance(node, ast.ClassDef) else "no function"
    raise ProgramError(_not_a_function(entry, f"{label}, line {node.lineno} makes it {what}", plan))


def _check_live(fn: Callable[..., object], args: Sequence[object], fix: str) -> bool:
    name = _own_name(fn)[1] or type(fn).__name__
    if not callable(fn):
        raise ProgramError(f"{fn!r} cannot be called; pass the function that the ranks call.")
    _refuse_kind(name, "", inspect.iscoroutinefunction(fn), inspect.isgeneratorfunction(fn))
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some C functions do not tell theirs
        return False
    return _check_call(name, signature, args, fix, "", lenient=False)


def _refuse_kind(name: str, where: str, is_async: bool, is_generator: bool) -> None:
    if is_async:
        raise ProgramError(
            f"{where}{name} is an async function, and ranks call plain ones. Make it a plain "
            "function; inside, asyncio.run(...) runs what is async."
        )
    if is_generator:
        raise ProgramError(
            f"{where}{name} is a generator (it has `yield`), so that calling it would run "
            "nothing. Return a list instead of yielding, or launch a function that loops over it."
        )


def _check_call(
    name: str,
    signature: inspect.Signature,
    args: Sequence[object],
    fix: str,
    where: str,
    lenient: bool,
) -> bool:
    takes_lock = _takes_lock(signature, 1 + len(args))
    try:
        signature.bind(0, *args, **({"lock": None} if takes_lock else {}))
    except TypeError as error:
        if not lenient:  # a decorator may pass arguments of its own
            raise ProgramError(_arity(name, signature, args, fix, where, error)) from None
    return takes_lock


def _takes_lock(signature: inspect.Signature, passed: int) -> bool:
    """Whether a parameter `lock` is left for the shared lock: not among those passed."""
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        if name == "lock":
            open_ = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and position >= passed
            return open_ or parameter.kind is parameter.KEYWORD_ONLY
    return False


def _arity(
    name: str,
    signature: inspect.Signature,
    args: Sequence[object],
    fix: str,
    where: str,
    error: TypeError,
) -> str:
    parameters = list(signature.parameters.values())
    count = f"{len(args)} argument{'' if len(args) == 1 else 's'}"
    message = (
        f"{where}{name}{signature} cannot be called: a rank calls {name}(rank, *args), and "
        f"{count} follow the rank ({error}). "
    )
    if not parameters:
        return f"{message}Give it a first parameter for the rank's index."
    wanted = [
        p.name for p in parameters[1:]
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        and p.name != "lock"
    ]  # fmt: skip
    if not wanted:
        return f"{message}Pass no arguments, or give the function parameters for them."
    return f"{message}Pass them as {fix.format(', '.join(wanted))}."


def _signature(node: Function) -> inspect.Signature:
    """The signature as it is written, without evaluating anything of it."""
    a, kind = node.args, inspect.Parameter
    plain = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    kinds = [kind.POSITIONAL_ONLY] * len(a.posonlyargs) + [kind.POSITIONAL_OR_KEYWORD] * len(a.args)
    found = [_parameter(*each) for each in zip(plain, kinds, defaults, strict=True)]
    if a.vararg:
        found.append(kind(a.vararg.arg, kind.VAR_POSITIONAL))
    for argument, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append(_parameter(argument, kind.KEYWORD_ONLY, default))
    if a.kwarg:
        found.append(kind(a.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else _Written(ast.unparse(default))
    return inspect.Parameter(argument.arg, kind, default=value)


def _yields(function: Function) -> bool:
    queue: deque[ast.AST] = deque(function.body)
    while queue:
        node = queue.popleft()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, (*DEFINITION, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))
    return False


def _no_entry(plan: _Plan, values: Mapping[str, object], label: str) -> str:
    entry = plan.entry or ""
    here = [function.name for function in _functions(plan.tree)]
    held = [n for n, v in values.items() if isinstance(v, FunctionType) and n[:1] != "_"]
    close = difflib.get_close_matches(entry, [*here, *held], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"{label}: there is no function {entry} to launch.{hint} {_candidates(here)}"


def _not_a_function(entry: str, why: str, plan: _Plan) -> str:
    here = [function.name for function in _functions(plan.tree)]
    return f"{entry} cannot be launched: {why}. {_candidates(here)}"


def _candidates(names: Sequence[str]) -> str:
    if not names:
        return "The cell defines no function: define one, or name none to run the cell as it is."
    return f"The cell defines {', '.join(dict.fromkeys(names))}: name one of these."
