"""Names that a program reads and nothing binds.

They are noted while source is taken, and refused once it is known what travels: a function among it
may bind one with `global` when it runs.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Collection, Iterable, Set

from xla_nb.errors import ProgramError
from xla_nb.program.cells import Cells, Statement
from xla_nb.program.names import Names, names_in
from xla_nb.program.origins import star_names
from xla_nb.program.split import RANK_NAMES
from xla_nb.protocol.live import Live


class MissingNames:
    """What is missing, of what runs on ranks.

    cells, launched  the cells that ran, and those that were launched
    held             all names that there are, in the notebook or in source that it has not executed
    is_starred       whether source that it has not executed may bind a name by `from m import *`
    """

    def __init__(
        self,
        cells: Cells,
        launched: Cells,
        held: Callable[[], Iterable[Collection[str]]],
        is_starred: Callable[[str], bool],
    ) -> None:
        self._cells = cells
        self._launched = launched
        self._held = held
        self._is_starred = is_starred
        self._noted: dict[str, tuple[str, int]] = {}

    def has(self, name: str) -> bool:
        """Whether there is such a name to take, or every module has it."""
        return any(name in names for names in self._held()) or self._is_starred(name)

    def note(self, names: Names, label: str) -> None:
        """Note what source of the cell `label` reads and is not there."""
        known = [star_names(module) for module in names.stars]
        if None in known:
            return
        starred = {name for found in known if found is not None for name in found}
        for name, line in sorted(names.required().items(), key=lambda item: item[1]):
            if name not in starred and not self.has(name) and not self._is_guarded(name):
                self._noted.setdefault(name, (label, line))

    def refuse(self, live: Live, sets: Set[str]) -> None:
        """Raise ProgramError for what was noted, and for what functions of the notebook read, if no
        function binds it: neither what `live` has pickled nor source, which binds `sets`."""
        bound = live.assigned | sets
        for name, place in self._noted.items():
            if name not in bound:
                raise ProgramError(self._message(name, *place))
        for name, code in live.absent.items():
            if name in bound or self.has(name) or self._is_guarded(name):
                continue
            found = self._cells.holding(code)
            line = names_in([found.node]).required().get(name) if found else None
            if found is not None and line is not None:
                raise ProgramError(self._message(name, found.cell.label, line))

    def _is_guarded(self, name: str) -> bool:
        """Whether it is bound where a condition holds that did not: `try: import m …`."""
        written = self._newest(name)
        if written is None or isinstance(written.node, ast.Delete):
            return False
        return name not in names_in([written.node]).certain

    def _newest(self, name: str) -> Statement | None:
        return self._launched.newest(name) or self._cells.newest(name)

    def _message(self, name: str, label: str, line: int) -> str:
        public = {n for names in self._held() for n in names if n[:1] != "_"}
        close = difflib.get_close_matches(name, public, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        if written := self._newest(name):
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
