"""The cells that IPython has executed, as it has them in its history."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xla_nb.program.cells import CALL, Cell, own_text

_LAUNCHES = re.compile(r"%%xla(_spawn)?(\s|$)")
#: IPython's file names for what `%%time` executes: statements, or one expression.
_TIMED, _TIMED_VALUE = "<timed exec>", "<timed eval>"


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
