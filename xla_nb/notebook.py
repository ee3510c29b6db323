"""A live notebook: what it holds for a launch, and which of its cells were launched."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xla_nb.autoreloaded import Autoreloaded
from xla_nb.executed import Executed, lines_above_magic, plain_line_ends
from xla_nb.program.build import Cell, Program, Scope
from xla_nb.program.cells import unreadable
from xla_nb.protocol import modules


@dataclass
class TopLevel:
    """The top level of a launched cell, while the notebook runs it. `options` are those on the
    magic's line, for what the cell launches itself; `launches`: that it has done so; `refused`: why
    it must not, which it may have caught."""

    options: Mapping[str, Any]
    launches: bool = False
    refused: Exception | None = None


@functools.cache
def lost() -> dict[str, dict[str, tuple[str, str]]]:
    """The names of live ranks of this process that have ended, as `missing.lost` has them, by the
    ranks' name."""
    return {}


def told_of_lost() -> dict[str, str]:
    """What a launch is told of them, which has the notebook's names alone."""
    fix = "define it in the notebook"
    return {name: f"{told}; {fix}" for each in lost().values() for name, (told, _) in each.items()}


class Notebook:
    """One IPython shell, given and never imported. `launched` are the cells that IPython's
    history lacks, as they ran on ranks alone or a program has launched them by `run_cell_magic`, by
    the number of the cell that did so; `top_level` is that of the launched cell that runs now,
    until its function is called. `settings` are the options of launches that `%xla_config` has
    set, `own` those of the notebook itself."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, list[Cell]] = {}
        self.top_level: TopLevel | None = None
        self.settings: dict[str, Any] = {}
        self.own: dict[str, Any] = {}
        self.executed = Executed(shell)
        self._autoreloaded = Autoreloaded(shell)

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

    @property
    def runs_a_script(self) -> bool:
        """Whether `%run` is executing a file, which has a module of its own meanwhile."""
        return sys.modules["__main__"] in self.shell._main_mod_cache.values()

    def cell(self, line: str, body: str, magic: str = "%%xla_spawn") -> Cell:
        """The cell that a magic was called with, as a user sees it: the magic's own line
        stays, as a comment, so that lines count from it or from a magic above it (`%%time`).

        Raises ProgramError where IPython cannot read it."""
        above = lines_above_magic(self.shell.history_manager.input_hist_raw[-1])
        blank = "#\n" * (above or 0)
        label = f"Cell In[{self.number}]"
        if above is None:
            label += f", launch {len(self.launched.get(self.number, ())) + 1}"
        text = f"{blank}#{magic} {line}\n{plain_line_ends(body)}"
        try:
            return Cell(label, self.shell.transform_cell(text), magic=magic)
        except SyntaxError as problem:  # of its own tokenizer
            raise unreadable(Cell(label, text), problem) from None

    def scope(self) -> Scope:
        """What the notebook holds now, its cells oldest first."""
        # What IPython itself put there (`open`, `exit`, `get_ipython`, In, Out) is not the user's.
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        return Scope(
            values={k: v for k, v in names.items() if k not in hidden or hidden[k] is not v},
            cells=self.executed.cells(self.launched),
            executed=list(self.executed.by_magics()),
            lost=told_of_lost(),
        )

    def program(self, make: Callable[[Scope], Program]) -> Program:
        """What `make` builds of what the notebook holds. Raises what that raises."""
        for name in self._autoreloaded.look():
            modules.of_this_process().changed_in_place(name)
        return make(self.scope())

    def begun(self, cell: Cell) -> None:
        """The cell that runs now has launched this one, which IPython's history lacks."""
        self.launched.setdefault(self.number, []).append(cell)

    def resolve(self, name: str) -> object:
        """A name of the notebook, for a result that refers to it. Raises KeyError."""
        return self.shell.user_ns[name]


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)
