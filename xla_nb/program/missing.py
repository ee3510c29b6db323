"""Names that a program reads and nothing binds.

They are noted while source is taken, and refused once it is known what travels: a function among it
may bind one with `global` when it runs. One that the program may never get to is told, no more.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from types import FunctionType
from typing import Any

from xla_nb.errors import ProgramError
from xla_nb.program import surely
from xla_nb.program.cells import Cells
from xla_nb.program.names import Names, names_in
from xla_nb.program.origins import star_names
from xla_nb.program.split import RANK_NAMES
from xla_nb.protocol.live import Live
from xla_nb.wording import meant


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
    called  the names that the ranks' processes call, to begin with: the entry's
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
        self._sources: list[tuple[Sequence[ast.stmt], str]] = []
        self.called: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is such a name to take, or every module has it."""
        return any(name in names for names in self._held())

    def note(self, names: Names, nodes: Sequence[ast.stmt], label: str) -> None:
        """Note what statements of the cell `label` read and is not there."""
        self._sources.append((nodes, label))
        known = [star_names(module) for module in names.stars]
        if None in known:
            return
        starred = {name for found in known if found is not None for name in found}
        for name, line in sorted(names.required().items(), key=lambda item: item[1]):
            if name not in starred and not self.has(name) and not self._is_guarded(name):
                self._noted.setdefault(name, (label, line))

    def check(self, live: Live, sets: Set[str]) -> Iterator[str]:
        """What to tell of names that were noted, and of those that functions of the notebook read,
        if no function binds them: neither what `live` has pickled nor source, which binds `sets`.
        Raises ProgramError for those that the program surely reads."""
        bound = live.assigned | sets
        missing = {name: place for name, place in self._noted.items() if name not in bound}
        read = list(self._sources)
        for name, code in live.absent.items():
            if name in bound or name in missing or self.has(name) or self._is_guarded(name):
                continue
            found = self._cells.holding(code)
            line = names_in([found.node]).required().get(name) if found else None
            if found is not None and line is not None:
                missing[name] = found.cell.label, line
                read.append(([found.node], found.cell.label))
        nodes = [node for each, _ in read for node in each]
        if not missing or surely.binds_any_name(nodes):
            return
        needed = dict(self._needed())
        for name in missing:
            if name in needed:
                raise ProgramError(self._message(name, *needed[name]))
        asked = surely.asked_for(nodes)
        for name, (label, line) in missing.items():
            if name not in asked:
                own = (node for each, cell in read if cell == label for node in each)
                yield self._told(name, label, line, surely.place(own, line))

    def _needed(self) -> Iterator[tuple[str, tuple[str, int]]]:
        """The names that the program surely reads, each with where: the last one counts."""
        own: dict[str, tuple[surely.Definition, str]] = {}
        todo, seen = set(self.called), set[str]()
        found: list[tuple[surely.Surely, str]] = []
        for nodes, label in self._sources:
            own |= {name: (node, label) for name, node in surely.definitions(nodes)}
            found.append((surely.by_statements(nodes), label))
        while found or todo:
            for one, label in found:
                yield from ((name, (label, line)) for name, line in one.reads.items())
                todo |= one.calls
            called = [own.get(name) or self._defined(name) for name in sorted(todo - seen)]
            seen |= todo
            todo.clear()
            found = [(surely.by_calling(node), label) for node, label in filter(None, called)]

    def _defined(self, name: str) -> tuple[surely.Definition, str] | None:
        """The definition of a function or class of the notebook, and its cell."""
        value: Any = self._value(name)
        if isinstance(value, type):
            value = vars(value).get("__init__")
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        found = self._cells.holding(value.__code__) if isinstance(value, FunctionType) else None
        if found is None or not isinstance(found.node, surely.Definition):
            return None
        return found.node, found.cell.label

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

    def _told(self, name: str, label: str, line: int, function: str) -> str:
        inside = f" of `{function}`" if function else ""
        why = f"name '{name}' is not defined in this cell or in the notebook;"
        if name in self._lost:
            why = f"{self._lost[name]}, or"
        return f"{label}, line {line}{inside}: {why} a rank that gets to that line raises NameError"
