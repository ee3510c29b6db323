"""What a live notebook holds for a launch: its names, its cells, and definitions still pending.

A launched cell is not executed in the notebook, so that a launch never waits for an import: its
definitions are kept as source and executed when a later cell, or a result, names one of them.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from typing import Any

from xla_nb.program.build import Cell, Scope
from xla_nb.program.deferred import Deferred, Taken
from xla_nb.program.names import Names, names_in

_WORD = re.compile(r"[^\W\d]\w*")
_MARK = "_xla_nb_mark"  # gone from the namespace after a `%reset`


class Notebook:
    """One IPython shell, given and never imported. `launched` are cells run on ranks, by number."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, Cell] = {}
        self._deferred = Deferred()
        self._binds: set[str] = set()

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
        stays, as a comment, so that lines count from it or from a magic above it (`%%time`)."""
        raw = self.shell.history_manager.input_hist_raw[-1].split("\n")
        magics = [n for n, text in enumerate(raw) if text.startswith("%%xla_spawn")]
        above = "#\n" * magics[0] if len(magics) == 1 else ""
        source: str = self.shell.transform_cell(f"{above}#%%xla_spawn {line}\n{body}")
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
        return Scope(values=values, cells=cells, pending=self._deferred.pending(values))

    def begun(self, cell: Cell) -> None:
        """The cell that runs now has been launched."""
        self.launched[self.number] = cell
        self._deferred.add(cell, self.shell.user_ns)

    def before_cell(self, info: Any = None) -> None:
        """Execute what launched cells define, if the cell that is about to run uses it."""
        text = getattr(info, "raw_cell", None) or ""
        self._forget_after_a_reset()
        self._binds = set()
        if self._deferred and not text.lstrip().startswith("%%xla_spawn"):
            source = self.shell.transform_cell(text)
            self.define_for(source)
            self._binds = _names(source).certain

    def after_cell(self, result: Any) -> None:
        """What the cell has bound is newer than what launched cells define."""
        if getattr(result, "success", False):
            self._deferred.close(self._binds)

    def define_for(self, source: str) -> None:
        """Execute what launched cells define and this code uses."""
        names = _names(source).wanted()
        if "get_ipython" in names:  # of IPython's lines (`f?`, `%time f()`) any word
            names |= set(_WORD.findall(source))
        self._define(names)

    def resolve(self, name: str) -> object:
        """A name of the notebook, for a result that refers to it. Raises KeyError."""
        self._define({name})
        return self.shell.user_ns[name]

    def _executed(self, number: int, raw: str, source: str) -> Cell:
        return Cell(
            label=f"Cell In[{number}]",
            source=source,
            filename=self.shell.compile.get_code_name(raw, source, number),
        )

    def _forget_after_a_reset(self) -> None:
        """`%reset` empties the namespace, and what launched cells define is gone with it."""
        if _MARK not in self.shell.user_ns:
            self._deferred.clear()
            self.shell.user_ns[_MARK] = self.shell.user_ns_hidden[_MARK] = True

    def _define(self, names: set[str]) -> None:
        """Execute what launched cells bind to these names, with all that it needs."""
        for taken in self._deferred.take(names, self.shell.user_ns):
            self._execute(taken)

    def _execute(self, taken: Taken) -> None:
        cell = taken.cell
        number = next(n for n, one in self.launched.items() if one.label == cell.label)
        name = self.shell.compile.cache(cell.source, number)
        self.launched[number] = Cell(cell.label, cell.source, name)
        try:
            code = compile(taken.text.source, name, "exec", dont_inherit=True)
            exec(code, self.shell.user_ns)
        except Exception as problem:
            print(
                f"{cell.label} was launched, but its definitions cannot be executed in the "
                f"notebook: {type(problem).__name__}: {problem}",
                file=sys.stderr,
            )
        self.shell.user_ns.update(taken.newer)
        for sentence in taken.again:
            print(sentence, file=sys.stderr)


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


def _names(source: str) -> Names:
    """The names that code uses and binds; of what is no Python, any word is used."""
    try:
        return names_in(ast.parse(source).body)
    except SyntaxError:
        return Names(now=dict.fromkeys(_WORD.findall(source), 1))
