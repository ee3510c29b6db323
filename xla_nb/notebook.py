"""A live notebook: its scope for a launch, the cells that IPython has executed, and which of them
were launched."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_stack
from typing import Any

from xla_nb.pickling import module_objects
from xla_nb.program.build import Scope
from xla_nb.program.cell_text import CALL, Cell, own_text, unreadable
from xla_nb.run.options import DEFAULTS

_LAUNCHES = re.compile(r"%%xla(_spawn)?(\s|$)")
#: IPython's file names for what `%%time` executes: statements, or one expression.
_TIMED, _TIMED_VALUE = "<timed exec>", "<timed eval>"


@dataclass
class TopLevel:
    """The top level of a launched cell, while the notebook runs it. `options` are those on the
    magic's line, which apply to launches by the cell itself; `begun` is called with that Run;
    `launches`: it has launched; `refused`: why it must not, an error that it may have caught."""

    options: Mapping[str, Any]
    begun: Callable[[Any], None] = lambda run: None
    launches: bool = False
    refused: Exception | None = None


@functools.cache
def lost() -> dict[str, dict[str, tuple[str, str]]]:
    """The names of this process's ended live ranks, as `missing_names.lost` gives them, by the name
    of the ranks."""
    return {}


def advice_on_lost() -> dict[str, str]:
    """The advice on lost names for a launch, which sees only the notebook's names."""
    fix = "define it in the notebook"
    return {name: f"{why}; {fix}" for names in lost().values() for name, (why, _) in names.items()}


class Notebook:
    """One IPython shell, passed in and never imported. `launched` are the cells missing from
    IPython's history, because they ran only on ranks, by the number of the launching cell;
    `top_level` is that of the launched cell now running, until its function is called. `settings`
    are shown by `%xla_config`."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, list[Cell]] = {}
        self.top_level: TopLevel | None = None
        self.settings: dict[str, Any] = dict(DEFAULTS)
        self.executed = Executed(shell)
        module_objects.of_this_process()  # starts recording imports
        self._read_times: dict[str, float] = {}  # modification times of files read by %autoreload

    @property
    def number(self) -> int:
        """The prompt number of the cell now running.

        Not `execution_count`: IPython 9 increments it before running a cell, 7 and 8 after.
        """
        return len(self.shell.history_manager.input_hist_parsed) - 1

    @property
    def parent(self) -> dict[str, Any]:
        """The message from the page that runs the current cell; {} outside a kernel."""
        get_parent = getattr(self.shell, "get_parent", dict)
        return dict(get_parent())

    @property
    def runs_a_cell(self) -> bool:
        """True if called from a cell, not from a thread or a callback, which outlast cells."""
        code = type(self.shell).run_code.__code__
        return any(frame.f_code is code for frame, _ in walk_stack(None))

    @property
    def runs_a_script(self) -> bool:
        """True while `%run` executes a file, in a separate `__main__` module."""
        return sys.modules["__main__"] in self.shell._main_mod_cache.values()

    def cell(self, line: str, body: str, magic: str = "%%xla_spawn") -> Cell:
        """The cell that a magic was called with, as the user sees it: the magic's line stays as a
        comment, so that line numbers count from it or from a magic above it (`%%time`).

        Raises ProgramError if IPython cannot read it."""
        above = lines_above_magic(self.shell.history_manager.input_hist_raw[-1])
        blank = "#\n" * (above or 0)
        label = f"Cell In[{self.number}]"
        if above is None:
            label += f", launch {len(self.launched.get(self.number, ())) + 1}"
        text = f"{blank}#{magic} {line}\n{plain_line_ends(body)}"
        try:
            return Cell(label, self.shell.transform_cell(text), magic=magic)
        except SyntaxError as problem:  # from IPython's tokenizer
            raise unreadable(Cell(label, text), problem) from None

    def scope(self) -> Scope:
        """The notebook's current values and cells, oldest first."""
        self.follow_reloads()
        # Names that IPython adds (`open`, `exit`, `get_ipython`, In, Out) are not the user's.
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        return Scope(
            values={k: v for k, v in names.items() if k not in hidden or hidden[k] is not v},
            cells=self.executed.cells(self.launched),
            lost=advice_on_lost(),
            history=hidden.keys(),
        )

    def follow_reloads(self) -> None:
        """Record which modules %autoreload has successfully changed in place since the last call.
        Called after each cell, so that the first change after loading %autoreload is not missed."""
        module_objects.of_this_process().note_imports()
        magics = self.shell.magics_manager.registry.get("AutoreloadMagics")
        reloader = getattr(magics, "_reloader", None)
        times: dict[str, float] = dict(getattr(reloader, "modules_mtimes", {}))
        failed: dict[str, float] = dict(getattr(reloader, "failed", {}))  # by files
        previous, self._read_times = self._read_times, times
        for name, time in times.items():
            file = getattr(sys.modules.get(name), "__file__", "")
            if previous.get(name, time) != time and failed.get(file) != time:
                module_objects.of_this_process().changed_in_place(name)

    def label(self, filename: str) -> str:
        """The label, in errors, of the cell whose code has this file name."""
        numbers = getattr(self.shell.compile, "_filename_map", {})  # since IPython 8
        if filename in numbers:
            return f"Cell In[{numbers[filename]}]"
        cells = reversed(self.executed.cells(self.launched))
        return next((cell.label for cell in cells if cell.filename == filename), "A cell")

    def begun(self, cell: Cell) -> None:
        """Record a cell launched by the running one, since IPython's history lacks it."""
        self.launched.setdefault(self.number, []).append(cell)


@functools.cache
def of(shell: Any) -> Notebook:
    """The Notebook of a shell, always the same."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook in which this code runs, if any."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


def settings() -> Mapping[str, Any]:
    """The settings of the current notebook; in a script the defaults."""
    notebook = current()
    return notebook.settings if notebook else DEFAULTS


# ---------------------------------------------------------------- executed cells


class Executed:
    """The executed cells of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # For the file name of a cell, ipykernel hashes the text in Python.
        self._cell = functools.cache(self._make_cell)
        self._cell_below = functools.cache(self._make_cell_below)

    def cells(self, launched: Mapping[int, Sequence[Cell]]) -> list[Cell]:
        """All executed cells, oldest first, including those `launched`, by the number of the
        launching cell."""
        cells: list[Cell] = []
        history = self._shell.history_manager
        # The text typed, and the Python code that IPython made of it.
        texts = zip(history.input_hist_raw, history.input_hist_parsed, strict=True)
        for number, (raw, source) in enumerate(texts):
            # IPython compiles a cell below `%%time` or `%%capture` without that line.
            is_below = raw.split(maxsplit=1)[:1] in (["%%time"], ["%%capture"])
            if number > 0 and (is_below or lines_above_magic(raw) is None or CALL in source):
                with contextlib.suppress(SyntaxError):  # reported by IPython
                    make = self._cell_below if is_below else self._cell
                    cells.append(make(number, raw, source))
            cells += launched.get(number, ())
        return cells

    def _make_cell(self, number: int, raw: str, source: str) -> Cell:
        return Cell(
            label=f"Cell In[{number}]",
            source=own_text(plain_line_ends(source)),
            filename=self._shell.compile.get_code_name(raw, source, number),
        )

    def _make_cell_below(self, number: int, raw: str, parsed: str) -> Cell:
        """The cell below `%%time` or `%%capture`. Raises SyntaxError."""
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
    """The number of lines (such as `%%time`) above %%xla_spawn or %%xla in a cell launched with it;
    None for other cells, even if they call `run_cell_magic`."""
    for number, line in enumerate(raw.split("\n")):
        if _LAUNCHES.match(line):
            return number
        if line.strip() and not line.startswith(("%%", "#")):
            return None
    return None


def plain_line_ends(text: str) -> str:
    """The text with each line ending as `\\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _body(source: str) -> str:
    """The body of a cell magic in `get_ipython().run_cell_magic('time', '', 'x = 1')`."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return next((str(ast.literal_eval(call.args[2])) for call in calls if len(call.args) == 3), "")


def _is_expression(source: str) -> bool:
    body = ast.parse(source).body
    return len(body) == 1 and isinstance(body[0], ast.Expr)
