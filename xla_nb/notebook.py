"""What a live notebook holds for a launch: its names, its cells, and definitions still pending.

A launched cell is not executed in the notebook, so that a launch never waits for an import: its
definitions are kept as source and executed when a later cell, or a result, names one of them.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import types
from collections.abc import Iterable
from typing import Any

from xla_nb.program.build import Cell, Scope, bound, definitions
from xla_nb.program.cells import DEFINITION

_WORD = re.compile(r"[^\W\d]\w*")


class Notebook:
    """One IPython shell, given and never imported. `launched` are cells run on ranks, by number."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, Cell] = {}
        self._pending: dict[int, Cell] = {}

    @property
    def number(self) -> int:
        """The number at the prompt of the cell that runs now.

        Not `execution_count`: IPython 9 counts on before it runs a cell, 7 and 8 after.
        """
        return len(self.shell.history_manager.input_hist_parsed) - 1

    @property
    def parent(self) -> dict[str, Any]:
        """The message of the page that the current cell runs for; {} outside a kernel."""
        get_parent = getattr(self.shell, "get_parent", dict)
        return dict(get_parent())

    def cell(self, line: str, body: str) -> Cell:
        """The cell that %%xla_spawn was called with, as a user sees it: the magic's own line
        stays, as a comment, so that lines count from it."""
        source: str = self.shell.transform_cell(f"#%%xla_spawn {line}\n{body}")
        return Cell(label=f"Cell In[{self.number}]", source=source)

    def scope(self, launching: bool) -> Scope:
        """What the notebook holds now, its cells oldest first; without the one that runs now
        where that is the one being launched."""
        history = self.shell.history_manager
        before = zip(history.input_hist_raw, history.input_hist_parsed, strict=True)
        cells = [
            self.launched.get(number) or self._executed(number, raw, source)
            for number, (raw, source) in enumerate(before)
            if 0 < number < self.number + (not launching)
        ]
        # What IPython itself put there (`open`, `exit`, `get_ipython`, In, Out) is not the user's.
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        values = {k: v for k, v in names.items() if k not in hidden or hidden[k] is not v}
        return Scope(values=values, cells=cells, pending=list(self._pending.values()))

    def begun(self, cell: Cell) -> None:
        """The cell that runs now has been launched."""
        self.launched[self.number] = self._pending[self.number] = cell

    def before_cell(self, info: Any = None) -> None:
        """Execute what launched cells define, if the cell that is about to run names it."""
        text = getattr(info, "raw_cell", None) or ""
        if self._pending and not text.lstrip().startswith("%%xla_spawn"):
            self.define_for(self.shell.transform_cell(text))

    def define_for(self, source: str) -> None:
        """Execute what launched cells define and this code names."""
        self._materialise(_names_in(source))

    def resolve(self, name: str) -> object:
        """A name of the notebook, for a result that refers to it. Raises KeyError."""
        self._materialise({name})
        return self.shell.user_ns[name]

    def _executed(self, number: int, raw: str, source: str) -> Cell:
        return Cell(
            label=f"Cell In[{number}]",
            source=source,
            filename=self.shell.compile.get_code_name(raw, source, number),
        )

    def _materialise(self, names: set[str]) -> None:
        """Execute the pending cells that bind one of the names, with all that these involve."""
        wanted: set[int] = set()
        fresh = {-1}
        while fresh:
            names = names | _used_by(self.shell.user_ns, names)
            fresh = {
                number
                for number, cell in self._pending.items()
                if number not in wanted and names & set(bound(cell))
            }
            for cell in map(self._pending.__getitem__, fresh):
                # What it binds as well: an older cell that binds it too must come before.
                names = names | _names_in(cell.source) | set(bound(cell))
            wanted |= fresh
        for number, cell in [(number, self._pending.pop(number)) for number in sorted(wanted)]:
            self._execute(number, cell)

    def _execute(self, number: int, cell: Cell) -> None:
        name = self.shell.compile.cache(cell.source, number)
        self.launched[number] = Cell(cell.label, cell.source, name)
        try:
            code = compile(definitions(cell), name, "exec", dont_inherit=True)
            exec(code, self.shell.user_ns)
        except Exception as problem:
            print(
                f"{cell.label} was launched, but its definitions cannot be executed in the "
                f"notebook: {type(problem).__name__}: {problem}",
                file=sys.stderr,
            )


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


def _names_in(source: str) -> set[str]:
    """The names that code mentions or defines; of IPython's lines (`f?`, `%time f()`), any word."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set(_WORD.findall(source))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # What is defined anew must come after what a launched cell left to do, or that would win.
    names.update(node.name for node in ast.walk(tree) if isinstance(node, DEFINITION))
    if "get_ipython" in names:
        names.update(_WORD.findall(source))
    return names


def _used_by(namespace: dict[str, Any], names: Iterable[str]) -> set[str]:
    """Names that the notebook's own functions among `names` use, through each other."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        function = namespace.get(todo.pop())
        if isinstance(function, types.FunctionType) and function.__module__ == "__main__":
            fresh = _globals_of(function.__code__) - seen
            seen |= fresh
            todo += fresh
    return seen


def _globals_of(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_globals_of, inner))
