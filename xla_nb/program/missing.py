"""Names that a program reads and nothing binds.

They are noted while source is taken, and told once it is known what travels: a function among it
may bind one with `global` when it runs. One that the launched cell or function surely reads,
behind no `if` or such, is refused.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TypeAlias, get_args

from xla_nb.errors import ProgramError
from xla_nb.program.bindings import Comprehension
from xla_nb.program.cells import DEFINITION, FUNCTION, Cells
from xla_nb.program.names import Names, names_in
from xla_nb.program.origins import star_names, unwrapped
from xla_nb.program.split import RANK_NAMES
from xla_nb.protocol.live import Live
from xla_nb.protocol.parts import names_in as names_in_code
from xla_nb.wording import meant

#: What code uses that binds names, or looks for them, which its text does not show.
_NAMESPACES = {"globals", "locals", "vars", "exec"}
#: Statements, the label of their cell, and the names that are local to them.
_Source: TypeAlias = tuple[Sequence[ast.stmt], str, set[str]]
_MAY_NOT_RUN = (ast.Try, ast.TryStar, ast.Match, ast.Lambda, *DEFINITION, *get_args(Comprehension))


def lost(remote: Mapping[str, str], ended: float | None) -> dict[str, tuple[str, str]]:
    """What is to be said of the names of live ranks that have ended, and what new live ranks need:
    `remote` has the label of what had set each."""
    at = time.strftime("%H:%M", time.localtime(ended))
    return {
        name: (
            f"`{name}` was set on the ranks that ended at {at} ({label})",
            "run that cell again" if label.startswith("Cell ") else "set it again",
        )
        for name, label in remote.items()
    }


class MissingNames:
    """What is missing, of what runs on ranks.

    cells   those that ran
    held    all names that there are
    value   what the notebook has under a name; None if nothing
    lost    the names of ranks that have ended, each with a clause on that
    entry   the function that ranks call, if they call one
    """

    def __init__(
        self,
        cells: Cells,
        held: Callable[[], Iterable[Collection[str]]],
        value: Callable[[str], object],
        lost: Mapping[str, str],
    ) -> None:
        self._cells = cells
        self._held = held
        self._value = value
        self._lost = lost
        self._noted: dict[str, tuple[str, int]] = {}
        self._sources: list[_Source] = []
        self._binds_any = False
        self.entry: object = None

    def has(self, name: str) -> bool:
        """Whether there is such a name to take, or every module has it."""
        return any(name in names for names in self._held())

    def note(self, names: Names, nodes: Sequence[ast.stmt], label: str) -> None:
        """Note what statements of the cell `label` read and is not there."""
        self._binds_any |= not _NAMESPACES.isdisjoint({*names.now, *names.later})
        self._sources.append((nodes, label, set()))
        known = [star_names(module) for module in names.stars]
        if None in known:
            return
        starred = {name for found in known if found is not None for name in found}
        for name, line in sorted(names.required().items(), key=lambda item: item[1]):
            if name not in starred and not self.has(name) and not self._is_guarded(name):
                self._noted.setdefault(name, (label, line))

    def check(self, live: Live) -> Iterator[str]:
        """What to tell of names that were noted, and of those that functions of the notebook read,
        if no function that `live` has pickled binds them.
        Raises ProgramError for those that the cell or the entry surely reads."""
        missing = {n: (*place, "") for n, place in self._noted.items() if n not in live.assigned}
        for name, code in live.absent.items():
            if name in live.assigned or name in missing or self.has(name) or self._is_guarded(name):
                continue
            found = self._cells.holding(code)
            line = names_in([found.node]).required().get(name) if found else None
            if found is not None and line is not None:
                missing[name] = found.cell.label, line, f" of `{code.co_qualname}`"
                self._binds_any |= not {"globals", "exec"}.isdisjoint(names_in_code(code))
        if self._binds_any:
            return
        read = self._surely_read() if missing else {}
        for name in missing:
            if name in read:
                raise ProgramError(self._message(name, *read[name]))
        for name, (label, line, where) in missing.items():
            yield self._told(name, label, line, where)

    def _surely_read(self) -> dict[str, tuple[str, int]]:
        """The names that the cell or the entry surely reads, or a function of the notebook that
        these call by its name, each with where."""
        found: dict[str, tuple[str, int]] = {}
        todo, seen = [*self._sources, *self._body(self.entry)], set[str]()
        while todo:
            nodes, label, local = todo.pop()
            for part in _surely_run(nodes):
                called = part.func if isinstance(part, ast.Call) else None
                if isinstance(part, ast.Name) and part.id not in local:
                    found.setdefault(part.id, (label, part.lineno))
                elif isinstance(called, ast.Name) and called.id not in seen | local:
                    seen.add(called.id)
                    todo += self._body(self._value(called.id))
        return found

    def _body(self, function: object) -> list[_Source]:
        """That of a function of the notebook."""
        codes = [one.__code__ for one in unwrapped(function) if isinstance(one, FunctionType)]
        found = self._cells.holding(codes[-1]) if codes else None
        if found is None or not isinstance(found.node, FUNCTION):
            return []
        own = codes[-1]
        if own.co_qualname != found.node.name:  # it was made inside
            return []
        local = {*own.co_varnames, *own.co_cellvars, *own.co_freevars}
        return [(found.node.body, found.cell.label, local)]

    def _is_guarded(self, name: str) -> bool:
        """Whether it is bound where a condition holds that did not: `try: import m …`."""
        written = self._cells.newest(name)
        if written is None or isinstance(written.node, ast.Delete):
            return False
        return name not in names_in([written.node]).certain

    def _message(self, name: str, label: str, line: int) -> str:
        if name in self._lost:
            return f"{label}, line {line}: {self._lost[name]}. Nothing was run on ranks."
        public = {n for names in self._held() for n in names if n[:1] != "_"}
        hint = meant(name, public)
        written = self._cells.newest(name)
        if written is not None and isinstance(written.node, ast.Delete):
            hint = f" {written.cell.label} deleted it."
        elif written is not None:
            hint = (
                f" {written.cell.label} assigns it, but the notebook does not have it: that cell "
                "ran on ranks or failed before that line, or the name was deleted since."
            )
        advice = "Define or import the name first"
        if name in RANK_NAMES:
            hint, advice = "", "Make it a parameter; only cells without a function have it"
        return (
            f"{label}, line {line}: name '{name}' is not defined in this cell or in the notebook."
            f"{hint} {advice}. Nothing was run on ranks."
        )

    def _told(self, name: str, label: str, line: int, where: str) -> str:
        why = f"name '{name}' is not defined in this cell or in the notebook;"
        if name in self._lost:
            why = f"{self._lost[name]}, or"
        return f"{label}, line {line}{where}: {why} a rank that gets to that line raises NameError"


def _surely_run(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The parts of statements that are behind no `if`, `try` and such."""
    todo = [*nodes][::-1]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If | ast.IfExp):
            todo.append(node.test)
        elif isinstance(node, ast.BoolOp):
            todo.append(node.values[0])
        elif not isinstance(node, _MAY_NOT_RUN):
            todo += [*ast.iter_child_nodes(node)][::-1]
