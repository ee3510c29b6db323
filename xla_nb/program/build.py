"""Build a Program from a launched cell and what it needs from the notebook.

The notebook's objects travel as they are, in one pickle: the values of names that a cell reads, and
what each needs in turn. Only a launched cell without a function travels as source, which ranks
execute.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import sys
import types
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from xla_nb.errors import Interrupted, ShippingError
from xla_nb.live_ranks.sent import Sent
from xla_nb.live_ranks.unit_pickler import LiveUnits
from xla_nb.messages.orders import ARGUMENTS, ENTRY
from xla_nb.pickling import code_facts, pickler, refusals
from xla_nb.pickling.functions_and_classes import Live, Notebook
from xla_nb.pickling.module_objects import is_own
from xla_nb.pickling.own_modules import Uses
from xla_nb.pickling.parcel import Packed
from xla_nb.program import ipython_syntax, origins
from xla_nb.program.cell_text import (
    Cell,
    Cells,
    future_flags,
    futures,
    imported_from,
    parsed,
    span,
    unread_imports,
    unreadable,
)
from xla_nb.program.entry_check import check_entry, check_live
from xla_nb.program.missing_names import MissingNames
from xla_nb.program.names import Names, bindings, newest
from xla_nb.program.rank_cell import RANK_NAMES, RankCell, functions, rank_cell
from xla_nb.wording import shortened

_BUILTINS = frozenset(vars(builtins)) | {"exit", "quit"}  # which IPython removes
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__package__", "__spec__", "__loader__"),
        *("__builtins__", "__annotations__", "__dict__", "__class__"),
        *("get_ipython", "display"),
    }
)


@dataclass(frozen=True)
class Scope:
    """The contents of the notebook (or script) at this moment.

    `values` are its live globals; `cells` ran before, oldest first. For live ranks, `sent` records
    what was sent to them, `remote` are the names that belong to them, and `lost` the names of ranks
    that have ended, each with a clause about it. The names in `history` are IPython's: `Out` and
    `_`.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    sent: Sent | None = None
    remote: Set[str] = frozenset()
    lost: Mapping[str, str] = field(default_factory=dict)
    history: Set[str] = frozenset()


@dataclass(frozen=True)
class Program:
    """Everything the ranks need to run a cell.

    `label` names what was launched. The module has the values in `parcel`, among them
    `restored` and the entry's arguments. `details` describe
    values that are not code. For a cell of plain statements, `body` is its text, which every rank
    runs in the module's namespace; else ranks call `entry` with their index and the arguments,
    which binds `binds`. Results refer to functions and classes that were sent by their numbers in
    `definitions`. `flags` are compiler flags for the body's `__future__` imports. `script` is a
    script's file and, with `python -m`, the name of its module. `notes` are for the user, `once`
    those to be shown once in a session. `drops`: a result that cannot be sent is replaced by None.
    `remote` are the names that belong to the ranks, `both` those of them that a live cell reads and
    that the notebook has too. `magic` is the one that launches the cell, "" for a function.
    `called` is the text of the call in lists of runs.
    """

    name: str
    parcel: Packed
    label: str = ""
    entry: str | None = None
    body: str | None = None
    takes_lock: bool = False
    restored: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    definitions: Mapping[int, object] = field(default_factory=dict)
    flags: int = 0
    script: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    drops: bool = False
    both: Sequence[str] = ()
    remote: Set[str] = frozenset()
    magic: str = ""
    called: str = ""


def build(cell: Cell, scope: Scope, *, name: str) -> Program:
    """Make a Program of a cell that ranks run as a whole: a launched cell without a function, or a
    cell for live ranks. The latter contains only values that the ranks lack according to
    `scope.sent`; call `Sent.confirm` when they have received it.
    Raises ProgramError and ShippingError."""
    try:
        plan = rank_cell(cell, _futures(scope), live=scope.sent is not None)
        program = _Needs(scope, plan, {}, ()).program(name, cell.label)
        return replace(program, magic=cell.magic, body=cell.source)
    except RecursionError as error:  # Python compiles code a little too deep to analyze
        raise unreadable(cell, error) from None


def build_entry(
    cell: Cell, scope: Scope, *, entry: str | None, args: tuple[object, ...], name: str
) -> Program:
    """Make a Program that calls a launched cell's function, which the notebook has already:
    `entry`, by default the last one defined at the cell's top level. Raises as `build` does."""
    entry = unicodedata.normalize("NFKC", entry) if entry else functions(parsed(cell))[-1].name
    fn = check_entry(entry, args, cell, scope.values)
    program = build_call(fn, scope, args=args, name=name)
    called = f"{entry}{program.called or '()'}"  # the cell's label does not name it
    return replace(program, label=cell.label, magic=cell.magic, called=called)


def build_question(
    question: Callable[..., object], args: tuple[object, ...], *, name: str
) -> Program:
    """A Program that calls a function of xla_nb on ranks; it sends nothing of the notebook."""
    entry = f"{ENTRY}_of_question"  # not ENTRY: a next call may be of ranks' ENTRY
    values = {entry: question, ARGUMENTS: args}
    return Program(name, pickler.pack(values, Live(joins=False)), entry=entry)


def build_call(
    fn: Callable[..., object],
    scope: Scope,
    *,
    args: tuple[object, ...],
    name: str,
    drops: bool = False,
) -> Program:
    """Make a Program that calls a live function; with `drops` it was written for another launcher.
    Raises as `build` does."""
    takes_lock = check_live(fn, args, "args=({},)", defaults=drops)
    label = origins.name_of(getattr(fn, "__func__", fn)) or type(fn).__name__
    own_name = origins.name_of(fn)
    names = [own_name] if scope.values.get(own_name) is fn else origins.names_of(fn, scope.values)
    entry = names[0] if names else ENTRY
    program = _Needs(scope, None, {entry: fn}, args).program(name, label)
    called = f"({', '.join(map(_format_argument, args))})" if args else ""
    return replace(program, entry=entry, takes_lock=takes_lock, drops=drops, called=called)


def _format_argument(value: object) -> str:
    """An argument of an entry for lists of runs: the repr of a number or text, else the class."""
    is_plain = type(value) in (int, float, bool, str, types.NoneType)
    return shortened(repr(value) if is_plain else type(value).__name__, 40)


def build_group(scope: Scope, *, name: str, label: str) -> Program:
    """The program of live ranks: a module that is still empty."""
    return replace(_Needs(scope, None, {}, ()).program(name, label), body="")


class _Needs:
    """The needs of a program from the notebook: one that runs the text of a cell (`plan`), or one
    that calls the function in `called`, by name, with `args`."""

    def __init__(
        self,
        scope: Scope,
        plan: RankCell | None,
        called: Mapping[str, object],
        args: tuple[object, ...],
    ) -> None:
        self._scope = scope
        self._values = scope.values
        self._cells = Cells(scope.cells)
        self._plan = plan
        self._names = plan.names if plan else Names()
        self._args = args
        self._text_uses = Uses()
        for code in self._names.code:
            self._text_uses.of_code(code)
            self._text_uses.names.update(code_facts.in_texts(code))
        for code in self._behind(self._names.wanted())[1]:
            self._text_uses.of_code(code)
        replaced = {name for name in _BUILTINS & self._values.keys() if self._is_replaced(name)}
        self._known = _BUILTINS - replaced | _MODULE_NAMES | scope.remote
        if plan or scope.sent:  # in every program of live ranks, even a call
            self._known |= RANK_NAMES
        self._roots = {**called, **self._read_values(), **self._mutable_arguments()}

    def _is_replaced(self, name: str) -> bool:
        """Whether the notebook has replaced this builtin. IPython's `open` and `exit` do not count:
        ranks have Python's."""
        value: Any = self._values[name]
        is_function = type(value) is types.FunctionType
        module = value.__globals__.get("__name__") if is_function else type(value).__module__
        is_from_ipython = str(module).partition(".")[0] == "IPython"
        return value is not getattr(builtins, name, None) and not is_from_ipython

    def _read_values(self) -> dict[str, object]:
        """The values of the notebook that the cell reads."""
        texts = set[str]().union(*map(code_facts.in_texts, self._names.code)) - self._names.binds
        names = ((self._names.wanted() | texts) & self._values.keys()) - self._known
        return {name: self._values[name] for name in sorted(names)}

    def _mutable_arguments(self) -> dict[str, object]:
        """The containers among the arguments, by the notebook's names, which a rank reports when it
        has changed them. None for live ranks, where they stay changed."""
        containers = [one for one in self._args if type(one) in code_facts.CONTAINERS]
        containers = containers if self._scope.sent is None else []
        return {name: one for one in containers for name in origins.names_of(one, self._values)[:1]}

    def program(self, name: str, label: str) -> Program:
        """The program, without what it runs.

        Raises ProgramError and ShippingError."""
        sent, live = self._scope.sent, self._live()
        try:
            parcel = self._pack(live)
        except KeyboardInterrupt:
            message = (
                f"Interrupted while the values of {label} were packed. Nothing was run on ranks."
            )
            raise Interrupted(message) from None
        except BaseException as fault:  # `__reduce__` may even exit
            raise ShippingError(self._refusal(fault, live)) from None
        parcel = pickler.importing(parcel, self._exporters(parcel.stream))
        available = self._known, self._names.binds, self._values
        missing = MissingNames(self._cells, available, self._scope.lost, self._scope.history)
        notes = [
            *(self._plan.notes if self._plan else ()),
            *missing.told(self._names, label, live),
            *self._magic_notes(live),
            *(sent.notes if sent else ()),
            *sorted(live.notes),
        ]
        restored = parcel.writer.names - {ARGUMENTS}
        active_futures = self._plan.futures if self._plan else _futures(self._scope)
        return Program(
            name,
            parcel,
            label,
            restored=tuple(sorted(restored)),
            details=self._details(restored, live),
            sources=self._sources(live),
            definitions=live.definitions,
            flags=future_flags(active_futures),
            script=origins.script(self._values),
            notes=tuple(notes),
            once=(
                *missing.shadowed(live, self._shadowed),
                *missing.looked_up(self._names, label, live),
            ),
            both=self._both(),
            remote=self._scope.remote,
        )

    # Packing

    def _pack(self, live: Live) -> Packed:
        sent = self._scope.sent
        values = {**self._roots, ARGUMENTS: self._args}
        if sent is None:
            return pickler.pack(values, live)
        assert isinstance(live, LiveUnits)
        if self._plan:  # a cell has no arguments, and ranks may lack nothing
            del values[ARGUMENTS]
        made: dict[str, dict[types.CodeType, Set[str]]] = {}
        for code in self._names.code:
            bound = bindings(code)
            for name in bound:
                made.setdefault(name, {})[code] = code_facts.names_in(code) - bound
        for name, codes in made.items():  # a value made from the former one has that behind it too
            former = sent.made.get(name, {}) if name in self._names.wanted() else {}
            sent.made[name] = former | codes
        sent.awaits(self._names.later.keys() - self._values.keys() - self._names.binds)
        return sent.pack(values, live, self._scope.remote)

    def _live(self) -> Live:
        sent, notebook = self._scope.sent, self._notebook()
        live = Live(notebook) if sent is None else LiveUnits(notebook, sent.numbers)
        live.met.uses.take(self._text_uses)
        live.imports |= unread_imports([cell.source for cell in self._cells.cells])
        return live

    def _exporters(self, stream: memoryview) -> set[str]:
        """The installed modules from which cells import what others define, if this pickle names
        the latter: Lightning's import sets up a function of another package, say."""
        modules, exporters = dict[str, str](), dict[str, set[str]]()
        for cell in self._cells.cells:
            modules |= imported_from(cell.source)
        for name in modules.keys() & self._values.keys():
            module, value = modules[name], self._values[name]
            is_definition = issubclass(type(value), types.FunctionType | type)
            home = str(getattr(value, "__module__", module)) if is_definition else module
            is_elsewhere = home != "__main__" and not f"{home}.".startswith(f"{module}.")
            if is_elsewhere and module in sys.modules and not is_own(sys.modules[module]):
                exporters.setdefault(home, set()).add(module)
        named = (home for home in exporters if re.search(re.escape(home.encode()), stream))
        return set[str]().union(*map(exporters.__getitem__, named))

    def _notebook(self) -> Notebook:
        values = {name: value for name, value in self._values.items() if name not in self._known}
        newer = self._names.binds - self._roots.keys()
        return Notebook(values, self._cells.labelled, newer, self._known - self._shadowed)

    @property
    def _shadowed(self) -> Set[str]:
        """Names in the notebook that are predefined on each rank."""
        return RANK_NAMES & self._known & self._values.keys()

    # Refusing

    def _refusal(self, fault: BaseException, live: Live) -> str:
        """The error text: what cannot be packed, and why."""
        name, value = live.writing
        if name == ARGUMENTS:
            _, *parts = refusals.culprit(self._args, live.trail)
            place, value = parts[0] if parts else ("[0]", self._args[0])
            name = f"args{place}"
        label, code_name, holder = origins.in_code(name, value, self._values)
        origin = self._origin(code_name) if self._values.get(code_name) is holder else ""
        path = refusals.culprit(holder, live.trail)
        text = refusals.refusal(label, refusals.described(holder, origin), fault, path, code_name)
        return f"{text} Nothing was run on ranks."

    def _origin(self, name: str) -> str:
        """The line of the last statement that binds the name; "" if none has bound its value, such
        as the run of `-o`."""
        statement, value = newest(self._cells, name), self._values.get(name)
        node = statement and statement.node
        is_plain = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list
        if statement is None or (is_plain and not isinstance(value, types.FunctionType | type)):
            return ""
        return f"{statement.cell.label}, line {span(statement.node)[0]}"

    # Reporting

    def _magic_notes(self, live: Live) -> Iterator[str]:
        """Notes on magics in functions of the notebook. Raises ProgramError for those that do not
        work on ranks."""
        for code in live.met.names.get("get_ipython", ()):
            if statement := self._cells.holding(code):
                yield from ipython_syntax.check(statement.node, statement.cell.label)

    def _details(self, restored: Set[str], live: Live) -> dict[str, str]:
        values = {**live.notebook.values, **self._roots}
        data = {n: values[n] for n in sorted(restored & values.keys())}
        details = {
            name: refusals.described(value, self._origin(name))
            for name, value in data.items()
            if not code_facts.is_ready(value)
        }
        return {**details, ARGUMENTS: ", ".join(map(refusals.described, self._args))}

    def _sources(self, live: Live) -> dict[str, str]:
        """The sources of cells that tracebacks may show, by label."""
        cells = [cell for cell in self._cells.cells if cell.label in live.met.labels]
        cells += [self._plan.cell] if self._plan else []
        return {cell.label: cell.source for cell in cells}

    def _both(self) -> list[str]:
        """The names of the ranks that a live program reads, directly or through what ranks have
        made with them, and that the notebook has as well."""
        sent = self._scope.sent
        names, _ = self._behind({*self._names.wanted(), *(sent.reads if sent else ())})
        return sorted(names & self._scope.remote & self._values.keys())

    def _behind(self, names: Iterable[str]) -> tuple[set[str], set[types.CodeType]]:
        """These names and those with which ranks have made their values, and the code that did."""
        sent, todo = self._scope.sent, list(names)
        found, codes = set[str](), set[types.CodeType]()
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                made = sent.made.get(name, {}) if sent else {}
                codes |= made.keys()
                todo += itertools.chain.from_iterable(made.values())
        return found, codes


def _futures(scope: Scope) -> frozenset[str]:
    """The names that the notebook's cells have imported from `__future__`."""
    return frozenset[str]().union(*(futures(cell.source) for cell in scope.cells))
