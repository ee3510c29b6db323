"""Find names that a program reads and nothing binds.

They are reported after packing, when it is known which functions are sent: one may bind a name with
`global`. Only running the program shows whether a rank reaches the line.
"""

from __future__ import annotations

import ast
import keyword
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from xla_nb.errors import ProgramError
from xla_nb.pickling.code_facts import looks_up_any
from xla_nb.pickling.code_facts import names_in as names_in_code
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.program.cell_text import Cells
from xla_nb.program.names import Names, names_in, newest
from xla_nb.program.origins import star_names
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.wording import meant

#: Statements that bind names only under a condition.
_CONDITIONAL = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.TryStar | ast.Match
#: Functions that may bind or look up names which do not appear in the code.
_NAMESPACES = {"globals", "locals", "vars", "exec"}


def lost(remote: Mapping[str, str], ended: float | None) -> dict[str, tuple[str, str]]:
    """For each name of live ranks that have ended, clauses on what was lost and on how to set it on
    new ranks; `remote` has the label of the cell or call that had set it."""
    ended_at = time.strftime("%H:%M", time.localtime(ended))
    return {
        name: (
            f"`{name}` was set on the ranks that ended at {ended_at} ({label})",
            "run that cell again" if label.startswith("Cell ") else "set it again",
        )
        for name, label in remote.items()
    }


@dataclass(frozen=True)
class MissingNames:
    """Finds missing names in code that runs on ranks.

    cells    the cells that ran
    held     collections of all available names, and of names that every module has
    lost     the names of ranks that have ended, each with a clause about it
    history  the names of IPython's history
    """

    cells: Cells
    held: Sequence[Collection[str]]
    lost: Mapping[str, str]
    history: Collection[str]

    def told(self, names: Names, label: str, live: Live) -> Iterator[str]:
        """Notes on missing `names` that the cell `label` reads, and on those that functions of the
        notebook read, if no function that `live` has pickled binds them.
        Raises ProgramError for names of ranks that have ended."""
        assigned, absent = live.assigned, live.absent
        star_bindings = [star_names(module) for module in names.stars]
        required = {} if None in star_bindings else names.required()
        available = assigned.union(*self.held, *filter(None, star_bindings))
        binds_any = not _NAMESPACES.isdisjoint({*names.now, *names.later})
        missing = {
            name: f"{label}, line {line}"
            for name, line in sorted(required.items(), key=lambda item: item[1])
            if name not in available and not self._is_guarded(name)
        }
        for name, code in absent.items():
            if name in available or name in missing or self._is_guarded(name):
                continue
            if place := self._place(name, code):
                missing[name] = place
                binds_any |= not {"globals", "exec"}.isdisjoint(names_in_code(code))
        if binds_any:
            return
        for name, place in missing.items():
            if name in self.lost:
                raise ProgramError(f"{place}: {self.lost[name]}. Nothing was run on ranks.")
            why = f"`{name}` is not defined in this cell or in the notebook.{self._hint(name)}"
            if name in self.history:
                why = f"`{name}` is IPython history, which ranks do not get. Name the value."
            yield f"{place}: {why} A rank that reaches that line raises NameError"

    def shadowed(self, live: Live, names: Iterable[str]) -> Iterator[str]:
        """Notes on functions of the notebook that read its globals of these names."""
        for name in sorted(live.absent.keys() & names):
            if place := self._place(name, live.absent[name]):
                yield (
                    f"{place}: here `{name}` is each rank's own variable, not the notebook's. To "
                    "use the notebook's, pass it to the function as an argument"
                )

    def looked_up(self, names: Names, label: str, live: Live) -> Iterator[str]:
        """Notes on code that looks up more than the names it mentions."""
        for by, has in (("globals", "`globals()` has"), ("eval", "`eval` finds")):
            places = [label for code in names.code if looks_up_any(code, by)]
            functions = live.met.names.get(by, ())
            places += [self._place(by, code) for code in functions if looks_up_any(code, by)]
            for place in places:
                yield (
                    f"{place or label}: on ranks {has} only notebook variables whose names appear "
                    "in code. Pass other values to the function, for example in a dict"
                )

    def _place(self, name: str, code: CodeType) -> str:
        """The line where code of the notebook reads a name; empty if unknown."""
        statement = self.cells.holding(code)
        line = names_in([statement.node]).required().get(name) if statement else None
        if statement is None or line is None:
            return ""
        return f"{statement.cell.label}, line {line} of `{code.co_qualname}`"

    def _is_guarded(self, name: str) -> bool:
        """Whether it is bound only under a condition, which did not hold: `try: import m …`."""
        statement = newest(self.cells, name)
        return statement is not None and isinstance(statement.node, _CONDITIONAL)

    def _hint(self, name: str) -> str:
        if name in RANK_NAMES:
            return " Make it a parameter: it is predefined only in cells without a function."
        statement = newest(self.cells, name)
        if statement is None:
            public = {n for names in self.held for n in names if n[:1] != "_"}
            return meant(name, public.difference(keyword.kwlist))
        if isinstance(statement.node, ast.Delete):
            return f" {statement.cell.label} deleted it."
        return (
            f" {statement.cell.label} assigns it, but the notebook does not have it: that cell ran "
            "on ranks or did not reach that line, or the name was deleted since."
        )
