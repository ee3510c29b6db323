"""Build a Program from a launched cell and what it needs from the notebook.

What the notebook holds travels as it is, in one pickle. What it has not executed (the launched
cell, and definitions of cells launched before) travels as source, which is executed on top.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xla_nb.program.cells import Cell, Pending, Section, future_flags, unreadable
from xla_nb.program.dependencies import ENTRY, Dependencies
from xla_nb.program.entry import check_launches, check_live, check_planned
from xla_nb.program.names import Names
from xla_nb.program.origins import name_of, star_names
from xla_nb.program.scope import OnlyTheRunHas, Scope
from xla_nb.program.split import RANK_NAMES, live_cell, split_cell
from xla_nb.protocol.live import Live
from xla_nb.protocol.order import ARGUMENTS
from xla_nb.protocol.parcel import Packed
from xla_nb.protocol.pickling import pack

__all__ = [
    "RANK_NAMES",
    "Cell",
    "OnlyTheRunHas",
    "Pending",
    "Program",
    "Scope",
    "Section",
    "build",
    "build_call",
    "build_group",
    "build_live",
    "build_question",
]


@dataclass(frozen=True)
class Program:
    """Everything the ranks need to run a cell.

    `label` names what was launched. The module imports `imports`, for what that does, and has the
    values in `parcel`, among them `restored` and the entry's arguments; then its `sections` are
    executed, the last of which is the cell's own `module`, if it has one. `details` describe those
    values that are no code, for errors. `body` is what every rank then runs in the module's
    namespace, where the cell is plain statements; else ranks call `entry` with their index and the
    arguments. `defines` are the names whose functions and classes the notebook has as well, so that
    results refer to them by name; `named` are those that travel as they are. `keeps` are names that
    the notebook takes from the run, and `as_source` those of earlier cells that it has not executed
    either. `futures` are in force for the module and the body. `script` is a script's file and, if
    `python -m` was given one, the name of its module. `notes` are for the user. `drops`: None takes
    the place of a result that cannot be sent. `both` are the names of a live cell that are the
    ranks', and that the notebook has too, with what it has imported under them. `magic` is the one
    that launches the cell, "" for a function.
    """

    name: str
    parcel: Packed
    label: str = ""
    imports: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    module: Section | None = None
    entry: str | None = None
    body: Section | None = None
    takes_lock: bool = False
    restored: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    as_source: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    drops: bool = False
    both: Mapping[str, str] = field(default_factory=dict)
    magic: str = ""

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
    none is itself what the ranks run. Raises ProgramError and ShippingError; OnlyTheRunHas where
    the notebook must take names from earlier runs first.
    """
    try:
        return _built(cell, scope, entry, args, name)
    except RecursionError as error:  # Python compiles what is a little too deep to be analyzed
        raise unreadable(cell, error) from None


def _built(
    cell: Cell, scope: Scope, entry: str | None, args: tuple[object, ...], name: str
) -> Program:
    needs = Dependencies(scope)
    entry = unicodedata.normalize("NFKC", entry) if entry else None  # as Python reads names
    plan = split_cell(cell, entry, needs.futures)
    check_launches(plan, scope.values)
    needs.cell(plan)
    keeps = needs.only_the_run_tells(plan.module)
    takes_lock = False
    if plan.entry is not None:
        takes_lock = check_planned(plan, args, scope.values, needs.pending(plan.entry))
    return _assembled(
        needs,
        args,
        plan.module,
        name=name,
        label=cell.label,
        magic=cell.magic,
        entry=plan.entry,
        body=plan.body,
        takes_lock=takes_lock,
        binds=tuple(sorted(keeps | _bound(plan.names))),
        keeps=tuple(sorted(keeps)),
    )


def build_question(
    question: Callable[..., object], args: tuple[object, ...], *, name: str
) -> Program:
    """A call of what ranks have themselves, which takes nothing of the notebook's along."""
    entry = f"{ENTRY}_of_question"  # the next call may be of what ranks have been sent as ENTRY
    values = {entry: question, ARGUMENTS: args}
    return Program(name, pack(values, Live({}, lambda code: None, joins=False)), entry=entry)


def build_live(cell: Cell, scope: Scope, *, name: str) -> Program:
    """Make a cell for live ranks into a Program, which has what they lack: `scope.sent` knows what
    they have, and is to be told once they have got it (`Sent.confirm`). Raises as `build` does.
    """
    try:
        needs = Dependencies(scope)
        plan = live_cell(cell, needs.futures)
        needs.cell(plan)
        binds = tuple(sorted(_bound(plan.names)))
        made = _assembled(needs, (), name=name, label=cell.label, body=plan.body, binds=binds)
        return replace(made, magic=cell.magic)
    except RecursionError as error:
        raise unreadable(cell, error) from None


def _bound(names: Names) -> set[str]:
    """What the top level's own statements bind."""
    return names.binds.union(*(star_names(module) or () for module in names.stars))


def build_call(
    fn: Callable[..., object],
    scope: Scope,
    *,
    args: tuple[object, ...],
    name: str,
) -> Program:
    """Make a call of a live function into a Program. Raises as `build` does."""
    takes_lock = check_live(fn, args, "args=({},)")
    needs = Dependencies(scope)
    entry = needs.callable(fn)
    label = name_of(getattr(fn, "__func__", fn)) or type(fn).__name__
    return _assembled(needs, args, name=name, label=label, entry=entry, takes_lock=takes_lock)


def build_group(scope: Scope, *, name: str, label: str) -> Program:
    """The program of live ranks: a module that has nothing yet."""
    return _assembled(Dependencies(scope), (), name=name, label=label, body=Section(label, 1, ""))


def _assembled(
    needs: Dependencies, args: tuple[object, ...], module: Section | None = None, **fields: Any
) -> Program:
    parcel = needs.pack(args)  # which decides what else travels as source
    return Program(
        parcel=parcel,
        imports=tuple(needs.imports()),
        sections=(*needs.sections(), *([module] if module else [])),
        module=module,
        restored=needs.restored,
        details=needs.details,
        sources=needs.sources,
        defines=tuple(sorted(needs.defines)),
        named=needs.named,
        as_source=tuple(sorted(needs.as_source())),
        futures=tuple(sorted(needs.futures)),
        script=needs.script,
        notes=tuple(needs.notes),
        both=needs.both,
        **fields,
    )
