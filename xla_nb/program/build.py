"""Build a Program from a launched cell and what it needs from the notebook.

What the notebook holds travels as it is, in one pickle. What it has not executed (a launched cell
without a function) travels as source, which is executed on top.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xla_nb.messages.orders import ARGUMENTS
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Packed
from xla_nb.pickling.pickler import pack
from xla_nb.program.cell_text import Cell, future_flags, parsed, unreadable
from xla_nb.program.entry_check import check_entry, check_live
from xla_nb.program.needed_names import ENTRY, Dependencies, Scope
from xla_nb.program.origins import name_of
from xla_nb.program.split import RANK_NAMES, functions, live_cell, split_cell

__all__ = [
    "RANK_NAMES",
    "Cell",
    "Program",
    "Scope",
    "build",
    "build_call",
    "build_entry",
    "build_group",
    "build_live",
    "build_question",
]


@dataclass(frozen=True)
class Program:
    """Everything the ranks need to run a cell.

    `label` names what was launched. The module imports `imports`, for what that does, and has the
    values in `parcel`, among them `restored` and the entry's arguments; then the cell's text in
    `module` is executed. `details` describe those values that are no code. `body` is the text that
    every rank then runs in the module's namespace, where the cell is plain statements; else ranks
    call `entry` with their index and the arguments, and have bound `binds` by that. `named` are the
    functions and classes that the notebook has as well, by the names by which results refer to
    them. `futures` are in force for the module and the body. `script` is a script's file and, if
    `python -m` was given one, the name of its module. `notes` are for the user, `once` those to be
    told once in a session. `drops`: None takes the place of a result that cannot be sent. `both`
    are the names of a live cell that are the ranks', and that the notebook has too, with what it
    has imported under them. `magic` is the one that launches the cell, "" for a function.
    """

    name: str
    parcel: Packed
    label: str = ""
    imports: tuple[str, ...] = ()
    module: str = ""
    entry: str | None = None
    body: str | None = None
    takes_lock: bool = False
    restored: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)
    futures: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    drops: bool = False
    both: Mapping[str, str] = field(default_factory=dict)
    magic: str = ""

    @property
    def flags(self) -> int:
        """Compiler flags for its text; pass them with `dont_inherit=True`."""
        return future_flags(self.futures)


def build(cell: Cell, scope: Scope, *, name: str) -> Program:
    """Make a launched cell without a function, which is itself what the ranks run, into a Program.
    Raises ProgramError and ShippingError."""
    try:
        needs = Dependencies(scope)
        plan = split_cell(cell, needs.futures)
        needs.cell(plan)
        return _assembled(
            needs,
            (),
            name=name,
            label=cell.label,
            magic=cell.magic,
            module=plan.module,
            body=plan.body,
        )
    except RecursionError as error:  # Python compiles what is a little too deep to be analyzed
        raise unreadable(cell, error) from None


def build_entry(
    cell: Cell, scope: Scope, *, entry: str | None, args: tuple[object, ...], name: str
) -> Program:
    """Make the call of a launched cell's function, which the notebook has by now, into a Program:
    of `entry`, else of the last one defined at the cell's top level. Raises as `build` does."""
    entry = unicodedata.normalize("NFKC", entry) if entry else functions(parsed(cell))[-1].name
    fn = check_entry(entry, args, cell, scope.values)
    return replace(build_call(fn, scope, args=args, name=name), label=cell.label, magic=cell.magic)


def build_question(
    question: Callable[..., object], args: tuple[object, ...], *, name: str
) -> Program:
    """A call of what ranks have themselves, which takes nothing of the notebook's along."""
    entry = f"{ENTRY}_of_question"  # the next call may be of what ranks have been sent as ENTRY
    values = {entry: question, ARGUMENTS: args}
    return Program(name, pack(values, Live(joins=False)), entry=entry)


def build_live(cell: Cell, scope: Scope, *, name: str) -> Program:
    """Make a cell for live ranks into a Program, which has what they lack: `scope.sent` knows what
    they have, and is to be told once they have got it (`Sent.confirm`). Raises as `build` does.
    """
    try:
        needs = Dependencies(scope)
        plan = live_cell(cell, needs.futures)
        needs.cell(plan)
        made = _assembled(needs, (), name=name, label=cell.label, body=plan.body)
        return replace(made, magic=cell.magic)
    except RecursionError as error:
        raise unreadable(cell, error) from None


def build_call(
    fn: Callable[..., object],
    scope: Scope,
    *,
    args: tuple[object, ...],
    name: str,
) -> Program:
    """Make a call of a live function into a Program. Raises as `build` does."""
    takes_lock = check_live(fn, args, "args=({},)")
    label = name_of(getattr(fn, "__func__", fn)) or type(fn).__name__
    needs = Dependencies(scope)
    entry = needs.callable(fn)
    return _assembled(needs, args, name=name, label=label, entry=entry, takes_lock=takes_lock)


def build_group(scope: Scope, *, name: str, label: str) -> Program:
    """The program of live ranks: a module that has nothing yet."""
    return _assembled(Dependencies(scope), (), name=name, label=label, body="")


def _assembled(needs: Dependencies, args: tuple[object, ...], **fields: Any) -> Program:
    return Program(
        parcel=needs.pack(args),
        imports=needs.imports,
        restored=needs.restored,
        details=needs.details,
        sources=needs.sources,
        named=needs.named,
        futures=tuple(sorted(needs.futures)),
        script=needs.script,
        notes=tuple(needs.notes),
        once=tuple(needs.once),
        both=needs.both,
        **fields,
    )
