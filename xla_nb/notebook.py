"""A live notebook: what it holds for a launch, the cells that IPython has executed, and which of
them were launched."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_stack
from typing import Any

from xla_nb.pickling import module_objects
from xla_nb.program.build import Program, Scope
from xla_nb.program.cell_text import CALL, Cell, own_text, unreadable
from xla_nb.run.options import DEFAULTS

_LAUNCHES = re.compile(r"%%xla(_spawn)?(\s|$)")
#: IPython's file names for what `%%time` executes: statements, or one expression.
_TIMED, _TIMED_VALUE = "<timed exec>", "<timed eval>"


@dataclass
class TopLevel:
    """The top level of a launched cell, while the notebook runs it. `options` are those on the
    magic's line, for what the cell launches itself, and `begun` is called with that Run;
    `launches`: that it has done so; `refused`: why it must not, which it may have caught."""

    options: Mapping[str, Any]
    begun: Callable[[Any], None] = lambda run: None
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
    until its function is called. `settings` are what `%xla_config` shows."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, list[Cell]] = {}
        self.top_level: TopLevel | None = None
        self.settings: dict[str, Any] = dict(DEFAULTS)
        self.executed = Executed(shell)
        module_objects.of_this_process()  # which notes imports from here on
        self._read: dict[str, float] = {}  # when files were written that %autoreload has read

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
    def runs_a_cell(self) -> bool:
        """Whether a cell has called this: not a thread or a callback, which outlast theirs."""
        code = type(self.shell).run_code.__code__
        return any(frame.f_code is code for frame, _ in walk_stack(None))

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
            history=hidden.keys(),
        )

    def program(self, make: Callable[[Scope], Program]) -> Program:
        """What `make` builds of what the notebook holds. Raises what that raises."""
        self.follow_reloads()
        return make(self.scope())

    def follow_reloads(self) -> None:
        """Note which modules %autoreload has changed in place since the last look, and did not fail
        to: after each cell, or the first change after the cell that loads it would be missed."""
        magics = self.shell.magics_manager.registry.get("AutoreloadMagics")
        reloader = getattr(magics, "_reloader", None)
        times: dict[str, float] = dict(getattr(reloader, "modules_mtimes", {}))
        failed: dict[str, float] = dict(getattr(reloader, "failed", {}))  # by files
        before, self._read = self._read, times
        for name, time in times.items():
            file = getattr(sys.modules.get(name), "__file__", "")
            if before.get(name, time) != time and failed.get(file) != time:
                module_objects.of_this_process().changed_in_place(name)

    def begun(self, cell: Cell) -> None:
        """The cell that runs now has launched this one, which IPython's history lacks."""
        self.launched.setdefault(self.number, []).append(cell)


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


def settings() -> Mapping[str, Any]:
    """The settings of that notebook; in a script the defaults."""
    here = current()
    return here.settings if here else DEFAULTS


# ---------------------------------------------------------------- executed cells


class Executed:
    """The executed cells of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._known: dict[tuple[int, bool], tuple[tuple[str, str], Cell]] = {}

    def cells(self, launched: Mapping[int, Sequence[Cell]]) -> list[Cell]:
        """All of them, oldest first, with those that were `launched`, by the number of the cell
        that launched them."""
        cells: list[Cell] = []
        for number, (raw, source) in enumerate(self._texts()):
            if number > 0 and (lines_above_magic(raw) is None or CALL in source):
                cells.append(self._once(number, raw, source, self._cell))
            cells += launched.get(number, ())
        return cells

    def by_magics(self) -> Iterator[Cell]:
        """Cells below `%%time` and `%%capture`, which IPython compiles without that line."""
        for number, (raw, parsed) in enumerate(self._texts()):
            magic = raw.split(maxsplit=1)[0] if raw.strip() else ""
            if magic in ("%%time", "%%capture"):
                with contextlib.suppress(SyntaxError):  # which IPython has told
                    yield self._once(number, raw, parsed, self._below)

    def label(self, filename: str) -> str:
        """What errors call the cell whose code has this file name."""
        known = getattr(self._shell.compile, "_filename_map", {})  # since IPython 8
        if filename in known:
            return f"Cell In[{known[filename]}]"
        texts = list(enumerate(self._texts()))
        cells = (
            self._once(number, *both, self._cell) for number, both in reversed(texts) if number
        )
        return next((cell.label for cell in cells if cell.filename == filename), "A cell")

    def _texts(self) -> Iterator[tuple[str, str]]:
        """What was typed in each, and what IPython made Python of it."""
        history = self._shell.history_manager
        return zip(history.input_hist_raw, history.input_hist_parsed, strict=True)

    def _once(
        self, number: int, raw: str, source: str, make: Callable[[int, str, str], Cell]
    ) -> Cell:
        """What is made of a cell, made once: for the file's name ipykernel hashes the text, in
        Python."""
        key = number, make == self._below
        if key not in self._known or self._known[key][0] != (raw, source):
            self._known[key] = (raw, source), make(number, raw, source)
        return self._known[key][1]

    def _cell(self, number: int, raw: str, source: str) -> Cell:
        return Cell(
            label=f"Cell In[{number}]",
            source=own_text(plain_line_ends(source)),
            filename=self._shell.compile.get_code_name(raw, source, number),
        )

    def _below(self, number: int, raw: str, parsed: str) -> Cell:
        """What is below `%%time` or `%%capture`. Raises SyntaxError."""
        body = _body(parsed)
        source = self._shell.transform_cell(body)
        name = self._shell.compile.get_code_name(body, source, number)
        above = raw.count("\n", 0, raw.index("%%")) + 1
        if raw.split(maxsplit=1)[0] == "%%time":
            name = _TIMED_VALUE if _is_expression(source) else _TIMED
        return Cell(
            f"Cell In[{number}]", "#\n" * above + own_text(plain_line_ends(source)), name, above
        )


def lines_above_magic(raw: str) -> int | None:
    """The number of lines above %%xla_spawn or %%xla (`%%time`) in a cell that is launched with it;
    None for other cells, though they may call `run_cell_magic`."""
    for number, line in enumerate(raw.split("\n")):
        if _LAUNCHES.match(line):
            return number
        if line.strip() and not line.startswith(("%%", "#")):
            return None
    return None


def plain_line_ends(text: str) -> str:
    """The text with line ends as Python reads them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _body(source: str) -> str:
    """What a cell magic gets, of `get_ipython().run_cell_magic('time', '', 'x = 1')`."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return next((str(ast.literal_eval(call.args[2])) for call in calls if len(call.args) == 3), "")


def _is_expression(source: str) -> bool:
    body = ast.parse(source).body
    return len(body) == 1 and isinstance(body[0], ast.Expr)
