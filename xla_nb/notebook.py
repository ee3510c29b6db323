"""What a live notebook holds for a launch: its names, its cells, and what launched cells bind.

A launched cell is not executed in the notebook, so that a launch never waits for an import. When a
later cell, or a result, uses one of its names, its definitions are executed from source, and what
it computed is taken from its run.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from xla_nb.errors import ProgramError
from xla_nb.program.bindings import bindings
from xla_nb.program.build import Cell, OnlyTheRunHas, Program, Scope
from xla_nb.program.cells import future_flags, futures, parsed
from xla_nb.program.deferred import Deferred, Launched, Taken
from xla_nb.program.names import Names, names_in
from xla_nb.run.kept import Kept
from xla_nb.run.run import Run

_WORD = re.compile(r"[^\W\d]\w*")
_MARK = "_xla_nb_mark"  # gone from the namespace after a `%reset`


class Notebook:
    """One IPython shell, given and never imported. `launched` are the cells run on ranks, by the
    number of the cell that launched them: itself, or several through `run_cell_magic`."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, list[Cell]] = {}
        self._deferred = Deferred()
        self._kept: dict[Launched, Kept] = {}
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
        above = _lines_above_magic(self.shell.history_manager.input_hist_raw[-1])
        blank = "#\n" * (above or 0)
        source: str = self.shell.transform_cell(f"{blank}#%%xla_spawn {line}\n{body}")
        label = f"Cell In[{self.number}]"
        if above is None:
            label += f", launch {len(self.launched.get(self.number, ())) + 1}"
        return Cell(label, source)

    def scope(self) -> Scope:
        """What the notebook holds now, its cells oldest first."""
        history = self.shell.history_manager
        cells: list[Cell] = []
        texts = zip(history.input_hist_raw, history.input_hist_parsed, strict=True)
        for number, (raw, source) in enumerate(texts):
            if number > 0 and _lines_above_magic(raw) is None:
                cells.append(self._executed(number, raw, source))
            cells += self.launched.get(number, ())
        # What IPython itself put there (`open`, `exit`, `get_ipython`, In, Out) is not the user's.
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        values = {k: v for k, v in names.items() if k not in hidden or hidden[k] is not v}
        return Scope(
            values=values,
            cells=cells,
            pending=self._deferred.pending(values),
            computed=self._deferred.computed(values),
        )

    def program(self, make: Callable[[Scope], Program]) -> Program:
        """What `make` builds of what the notebook holds, with what it needs of earlier runs.

        Raises ProgramError where that cannot be had, and what `make` raises.
        """
        while True:
            try:
                return make(self.scope())
            except OnlyTheRunHas as wanted:
                for taken in self._deferred.take_computed(wanted.names, self.shell.user_ns):
                    if problem := self._take_computed(taken):
                        raise ProgramError(f"{problem} No rank was started.") from None

    def begun(self, cell: Cell, program: Program, run: Run) -> None:
        """The cell that runs now has been launched."""
        self.launched.setdefault(self.number, []).append(cell)
        found = {name: self._deferred.of(name, self.shell.user_ns) for name in program.as_source}
        sources = {name: launched for name, launched in found.items() if launched is not None}
        if program.module is not None:
            text = Cell(cell.label, program.module.text)
            flags = future_flags(futures(parsed(cell)))
            launched = self._deferred.add(text, self.shell.user_ns, program.keeps, flags)
            if program.keeps:
                self._kept[launched] = Kept(run, program.parcel.objects(), sources)

    def before_cell(self, info: Any = None) -> None:
        """Execute what launched cells define, if the cell that is about to run uses it."""
        text = getattr(info, "raw_cell", None) or ""
        self._forget_after_a_reset()
        for launched, kept in list(self._kept.items()):
            if launched.held:
                kept.trim()
            else:
                self._kept.pop(launched).discard()
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
        """Bind these names of launched cells, with all that they need."""
        for taken in self._deferred.take(names, self.shell.user_ns):
            if taken.text is not None:
                self._execute(taken, taken.text)
            if taken.computed and (problem := self._take_computed(taken)):
                print(problem, file=sys.stderr)

    def _execute(self, taken: Taken, text: Cell) -> None:
        name = self._file(text.label)
        try:
            code = compile(text.source, name, "exec", taken.launched.flags, dont_inherit=True)
            exec(code, self.shell.user_ns)
        except Exception as problem:
            print(
                f"{text.label} was launched, but its definitions cannot be executed in the "
                f"notebook: {type(problem).__name__}: {problem}",
                file=sys.stderr,
            )
        names = bindings(ast.parse(text.source).body) & self.shell.user_ns.keys()
        taken.launched.made.update({name: self.shell.user_ns[name] for name in names})
        self.shell.user_ns.update(taken.newer)

    def _take_computed(self, taken: Taken) -> str:
        """Bind names to what a run has kept; gives a sentence on those that cannot be had."""
        launched = taken.launched
        kept = self._kept[launched]
        values, problem = kept.take(taken.computed, self.shell.user_ns, self._made)
        counting = launched.names(self.shell.user_ns)
        self.shell.user_ns.update({n: value for n, value in values.items() if n in counting})
        for name in values:
            launched.held.pop(name, None)
        if values:
            self._show_source(launched.cell.label)
        return problem

    def _made(self, name: str, launched: Launched) -> object:
        """What a launched cell's source binds to a name, executed now if it was not before."""
        if name not in launched.made:
            self._define({name})
        return launched.made[name]

    def _file(self, label: str) -> str:
        """The file name that a launched cell's source is executed under."""
        number, cell = self._numbered(label)
        name: str = self.shell.compile.cache(cell.source, number)
        self._name_file(number, cell, name)
        return name

    def _show_source(self, label: str) -> None:
        """Let tracebacks and `inspect` find the source of functions that a run has kept: their
        file is the cell's label, as on ranks."""
        number, cell = self._numbered(label)
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[label] = len(cell.source), None, lines, label
        self._name_file(number, cell, label)

    def _numbered(self, label: str) -> tuple[int, Cell]:
        each = ((n, cell) for n, cells in self.launched.items() for cell in cells)
        return next((n, cell) for n, cell in each if cell.label == label)

    def _name_file(self, number: int, cell: Cell, name: str) -> None:
        cells = self.launched[number]
        cells[cells.index(cell)] = replace(cell, filename=name)


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


def _lines_above_magic(raw: str) -> int | None:
    """The number of lines above %%xla_spawn (`%%time`) in a cell that is launched with it; None
    for other cells, though they may call `run_cell_magic`."""
    lines = raw.split("\n")
    magics = [number for number, text in enumerate(lines) if text.startswith("%%xla_spawn")]
    return magics[0] if len(magics) == 1 else None


def _names(source: str) -> Names:
    """The names that code uses and binds; of what is no Python, any word is used."""
    try:
        return names_in(ast.parse(source).body)
    except SyntaxError:
        return Names(now=dict.fromkeys(_WORD.findall(source), 1))
