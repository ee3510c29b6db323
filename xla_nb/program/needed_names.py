"""Collect what a program needs from the notebook: name by name, and what each name needs in turn.

What the notebook holds is packed as it is; source is only the cell itself, if it has no function.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from xla_nb.errors import ShippingError
from xla_nb.live_ranks.sent import Sent
from xla_nb.live_ranks.unit_pickler import LiveUnits
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.pickling import code_facts, pickler, refusals
from xla_nb.pickling.functions_and_classes import Live, Notebook
from xla_nb.pickling.own_modules import Uses
from xla_nb.pickling.parcel import Packed
from xla_nb.program import ipython_syntax, origins
from xla_nb.program.cell_text import Cell, Cells, futures, parsed, span
from xla_nb.program.imports import imported_as, repeated
from xla_nb.program.missing_names import MissingNames
from xla_nb.program.names import Names, newest
from xla_nb.program.origins import star_names
from xla_nb.program.split import RANK_NAMES, CellSplit

#: The name of a function that the notebook has under none.
ENTRY = "_xla_nb_entry"
_BUILTINS = frozenset(vars(builtins)) | {"exit", "quit"}  # which IPython takes away
_MODULE_NAMES = frozenset(
    {
        *("__name__", "__package__", "__spec__", "__loader__"),
        *("__builtins__", "__annotations__", "__dict__", "__class__"),
        *("get_ipython", "display"),
    }
)


@dataclass(frozen=True)
class Scope:
    """What the notebook (or script) contains at this moment.

    `values` are its live globals; `cells` ran before, oldest first. `executed` are the cells that a
    magic has executed. For live ranks, `sent` is what they have been sent, `remote` are the names
    that are theirs, and `lost` those of ranks that have ended, each with a clause on that.
    """

    values: Mapping[str, object]
    cells: Sequence[Cell]
    executed: Sequence[Cell] = ()
    sent: Sent | None = None
    remote: Set[str] = frozenset()
    lost: Mapping[str, str] = field(default_factory=dict)


class Dependencies:
    """Collects, name by name and transitively, what a program needs from the notebook."""

    def __init__(self, scope: Scope) -> None:
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []
        self.once: list[str] = []
        self.restored: tuple[str, ...] = ()
        self.details: dict[str, str] = {}
        self.named: dict[str, object] = {}
        self.futures = {f for c in scope.cells for f in futures(parsed(c))}
        self.script = origins.script(scope.values)
        self._values = scope.values
        self._cells = Cells(scope.cells, scope.executed)
        self._sent = scope.sent
        self._remote = scope.remote
        self._known = _BUILTINS | _MODULE_NAMES | self._remote
        if self._sent is not None:  # each program of live ranks gets them, a call too
            self._known |= RANK_NAMES
        self._names = Names()  # of a cell that ranks run
        self._label = ""
        self._roots: dict[str, object] = {}
        self._calls = False
        self._text = Uses()
        self._lost = scope.lost

    def cell(self, plan: CellSplit) -> None:
        """Take the text of a cell that ranks run, and what it needs."""
        self.futures = plan.futures
        self.notes += plan.notes
        self.notes += [_unknown(star) for star in plan.names.stars if star_names(star) is None]
        self._names, self._label = plan.names, plan.cell.label
        self._known |= RANK_NAMES
        for code in plan.names.code:
            self._text.of_code(code)
            self._text.names.update(code_facts.in_commands(code))
        self._need(plan.names.wanted())
        if self._sent is not None:
            self._sent.awaits(plan.names.later.keys() - self._values.keys() - plan.names.binds)
        self.sources[plan.cell.label] = plan.cell.source

    def callable(self, fn: Callable[..., object]) -> str:
        """Take a live callable; returns its name in the module."""
        own = origins.name_of(fn)
        named = [own] if self._values.get(own) is fn else origins.names_of(fn, self._values)
        name = named[0] if named else ENTRY
        self._roots[name] = fn
        self._calls = True
        return name

    @property
    def both(self) -> dict[str, str]:
        """The names of the ranks' own that a live program reads, itself or in functions, and that
        the notebook has as well, with what is imported under them there."""
        read = self._names.wanted() | (self._sent.reads if self._sent else set())
        both = read & self._remote & self._values.keys()
        return {name: imported_as(self._values[name]) for name in sorted(both)}

    def pack(self, args: tuple[object, ...]) -> Packed:
        """The values that were taken, with all they refer to, and the entry's arguments.

        Raises ProgramError and ShippingError.
        """
        if self._sent is None:
            self._roots |= self._named(args)
        live = self._units() if self._sent else self._live()
        try:
            parcel = self._packed(args, live)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # `__reduce__` may even exit
            raise ShippingError(self._refusal(fault, live, args)) from None
        held = self._known, self._names.binds, self._values
        missing = MissingNames(self._cells, held, self._lost)
        self.notes += missing.told(self._names, self._label, live)
        self.once += missing.shadowed(live, self._shadowed)
        self._vet(live)
        sent = {*self._roots, *live.used, *live.named} - {ARGUMENTS}
        if self._sent is not None:
            self.notes += self._sent.notes
            sent &= self._sent.names
        self._remember(live, args, sent)
        return parcel

    def _named(self, args: tuple[object, ...]) -> dict[str, object]:
        """The lists and dicts among the arguments, by the notebook's names: a rank tells by these
        which it has changed."""
        plain = [value for value in args if type(value) in code_facts.CONTAINERS]
        return {name: one for one in plain for name in origins.names_of(one, self._values)[:1]}

    def _packed(self, args: tuple[object, ...], live: Live) -> Packed:
        if self._sent is None:
            return pickler.pack({**self._roots, ARGUMENTS: args}, live)
        assert isinstance(live, LiveUnits)
        roots = {**self._roots, ARGUMENTS: args} if self._calls else self._roots
        return self._sent.pack(roots, live, self._remote)

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules that ranks import before they have the values."""
        return repeated(self._cells.cells, self._text.names, self._roots.values())

    # Taking

    def _need(self, names: Iterable[str]) -> None:
        """Take what these names refer to."""
        names = set(names) - self._remote
        for name in sorted(names):
            if name in self._values and (name not in self._known or self._shadows(name)):
                self._roots[name] = self._values[name]

    def _shadows(self, name: str) -> bool:
        """Whether the notebook has its own object under the name of a builtin.

        IPython's `open` and `exit` do not count; ranks use Python's.
        """
        if name not in _BUILTINS:
            return False
        if name not in self._values:
            return False
        held, python_s = self._values[name], getattr(builtins, name, None)
        if type(held).__module__.partition(".")[0] == "IPython":
            return False
        return all(part is not python_s for part in origins.unwrapped(held))

    @property
    def _shadowed(self) -> Set[str]:
        """Names of the notebook's that each rank has for itself."""
        return RANK_NAMES & self._known & self._values.keys()

    # Packing

    def _live(self) -> Live:
        return Live(self._notebook(), source=self._follow)

    def _units(self) -> LiveUnits:
        assert self._sent is not None
        return LiveUnits(self._notebook(), self._sent.tokens, self._follow)

    def _follow(self, uses: Uses) -> None:
        uses.take(self._text)

    def _notebook(self) -> Notebook:
        theirs = _MODULE_NAMES | self._remote | self._shadowed
        held = {
            name: value
            for name, value in self._values.items()
            if name not in theirs and (name not in _BUILTINS or self._shadows(name))
        }
        newer = self._names.binds - self._roots.keys()
        return Notebook(held, self._cells.labelled, newer, self._known - self._shadowed)

    def _refusal(self, fault: BaseException, live: Live, args: tuple[object, ...]) -> str:
        """What cannot be packed, and why not."""
        name, value = live.writing
        if name == ARGUMENTS:
            number = next((n for n, one in enumerate(args) if not self._can_be_sent(one)), 0)
            name, value = f"args[{number}]", args[number]
        shown, code, held = origins.in_code(name, value, self._values)
        origin = self._origin(code) if self._values.get(code) is held else ""
        way = refusals.culprit(held, self._can_be_sent)
        told = refusals.refusal(shown, refusals.described(held, origin), fault, way, code)
        return f"{told} Nothing was run on ranks."

    def _can_be_sent(self, value: object) -> bool:
        try:
            pickler.pack({"": value}, self._live())
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False
        return True

    def _origin(self, name: str) -> str:
        """The line of the last statement that binds the name."""
        bound = newest(self._cells, name)
        return f"{bound.cell.label}, line {span(bound.node)[0]}" if bound else ""

    def _remember(self, live: Live, args: tuple[object, ...], sent: Set[str]) -> None:
        self.named = live.named
        self.restored = tuple(sorted(sent))
        known = live.used | self._roots
        data = (
            (n, known[n]) for n in self.restored if n in known and not code_facts.is_ready(known[n])
        )
        self.details = {n: refusals.described(v, self._origin(n)) for n, v in data}
        self.details[ARGUMENTS] = ", ".join(map(refusals.described, args))
        for cell in self._cells.texts():
            if cell.label in live.met.labels:
                self.sources[cell.label] = cell.source
        self.notes += sorted(live.notes)
        for name in sorted(live.outdated):
            self.notes.append(
                f"`{name}` is defined anew; values made before are still of the former `{name}`"
            )

    def _vet(self, live: Live) -> None:
        """Refuse functions of the notebook with magics that do not work on ranks."""
        for code in live.shell:
            found = self._cells.holding(code)
            if found is not None:
                self.notes += ipython_syntax.check(found.node, found.cell.label)


def _unknown(module: str) -> str:
    return (
        f"what `from {module} import *` binds is not known before it is imported: a name that the "
        "notebook has as well keeps its value there"
    )
