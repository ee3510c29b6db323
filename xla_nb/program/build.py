"""Build a Program from a launched cell and what it needs from the notebook.

No user code runs here and nothing is pickled, so that a refusal has no side effects. Definitions
are sent as the source that is live in the notebook, checked against the live code objects;
everything else is sent as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xla_nb.program.cells import Cell, Section, future_flags, parse
from xla_nb.program.dependencies import Extraction, Scope
from xla_nb.program.entry import check_live, check_planned
from xla_nb.program.names import bindings
from xla_nb.program.ordering import Group
from xla_nb.program.origins import name_of
from xla_nb.program.split import RANK_NAMES, lasting, only, split_cell

__all__ = [
    "RANK_NAMES",
    "Cell",
    "Program",
    "Restore",
    "Scope",
    "Section",
    "bound",
    "build",
    "build_call",
    "definitions",
]


@dataclass(frozen=True)
class Restore:
    """A step of a module that puts the values of group `index` into its namespace."""

    index: int


@dataclass(frozen=True)
class Program:
    """Everything the ranks need to run a cell.

    `label` names what was launched. The module is its `steps`, in order. `body` is what every
    rank then runs in the module's namespace, where the cell is plain statements; else ranks
    call `entry` with their index and `args`. `defines` are the names whose functions and classes
    the module defines from source, so that they pickle by reference to it. `futures` are in force
    for the module and the body. `notes` are for the user.
    """

    name: str
    label: str = ""
    steps: tuple[Section | Restore, ...] = ()
    groups: tuple[Mapping[str, object], ...] = ()
    entry: str | None = None
    args: tuple[object, ...] = ()
    body: Section | None = None
    takes_lock: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> int:
        """Compiler flags for the sections; pass them with `dont_inherit=True`."""
        return future_flags(self.futures)


def build(
    cell: Cell, scope: Scope, *, entry: str | None, args: tuple[object, ...], name: str
) -> Program:
    """Make a launched cell into a Program.

    The ranks call `entry`: the function named, else the last one defined at the cell's top
    level, also where plain statements follow it. A cell that defines no function and names
    none is itself what the ranks run.
    """
    extraction = Extraction(scope)
    plan = split_cell(cell, entry, extraction.futures)
    extraction.cell(plan)
    takes_lock = False
    if plan.entry is not None:
        pending = extraction.pending(plan.entry)
        takes_lock = check_planned(plan, args, scope.values, pending)
    early, late, last = extraction.layout()
    return _assemble(
        extraction,
        [*early, late, *([plan.module] if plan.module else []), last],
        name=name,
        label=cell.label,
        entry=plan.entry,
        args=args,
        body=plan.body,
        takes_lock=takes_lock,
        binds=tuple(sorted(plan.names.binds)),
    )


def build_call(
    fn: Callable[..., object], scope: Scope, *, args: tuple[object, ...], name: str
) -> Program:
    """Make a call of a live function into a Program: by import, from its source, or by value."""
    takes_lock = check_live(fn, args, "args=({},)")
    extraction = Extraction(scope)
    entry = extraction.callable(fn)
    early, late, _ = extraction.layout()
    return _assemble(
        extraction,
        [*early, late],
        name=name,
        label=name_of(fn) or type(fn).__name__,
        entry=entry,
        args=args,
        takes_lock=takes_lock,
    )


def _assemble(extraction: Extraction, pieces: Sequence[Section | Group], **fields: Any) -> Program:
    steps: list[Section | Restore] = []
    groups: list[Group] = []
    for piece in pieces:
        if isinstance(piece, Section):
            steps.append(piece)
        elif piece:
            steps.append(Restore(len(groups)))
            groups.append(piece)
    return Program(
        steps=tuple(steps),
        groups=tuple(groups),
        sources=extraction.sources,
        origins={name: extraction.origin(name) for group in groups for name in group},
        defines=tuple(sorted(extraction.defines)),
        futures=tuple(sorted(extraction.futures)),
        notes=tuple(extraction.notes),
        **fields,
    )


def definitions(cell: Cell) -> str:
    """The part of a launched cell that the notebook itself runs later, at its own lines.

    These are imports, functions and classes, and also assignments if the cell defines a function
    at its top level. Otherwise definitions that need what its statements compute are left out.
    """
    tree = parse(cell)
    return only(tree, lasting(tree), cell.source)


def bound(cell: Cell) -> tuple[str, ...]:
    """The names that `definitions` of the cell binds."""
    return tuple(sorted(bindings(lasting(parse(cell)))))
