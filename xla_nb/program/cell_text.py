"""The notebook's cells as text: parse them, cut out statements, find the source of live code."""

from __future__ import annotations
import __future__

import ast
import functools
import itertools
import linecache
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import TypeAlias, TypeGuard

from xla_nb.errors import ProgramError
from xla_nb.pickling.code_facts import codes

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
IMPORT = (ast.Import, ast.ImportFrom)
#: Errors that Python raises for text that it cannot compile: ValueError for a NUL character or half
#: a character, the last two for deep nesting.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Cell:
    """A cell (or script) as text.

    `label` is its file name in tracebacks; `source` is Python after IPython's transformation,
    with the cell's line numbers; `filename` is the name under which the notebook compiled it,
    without the first `above` lines. `magic` is the one that launches it.
    """

    label: str
    source: str
    filename: str | None = None
    above: int = 0
    magic: str = ""


#: Start of the line added to a launched cell that runs in the notebook: it calls the function.
CALL = "get_ipython().run_cell_magic('xla_call', "


def own_text(source: str) -> str:
    """The part of a cell's source that the user wrote."""
    return source.partition(CALL)[0]


@dataclass(frozen=True)
class Statement:
    """A top-level statement and its cell."""

    cell: Cell
    node: ast.stmt


def parse(cell: Cell) -> ast.Module:
    """The cell's syntax tree. Raises ProgramError, which shows the line and the column."""
    try:
        with quiet():  # finds errors that parsing does not: `return` at top level
            compile(cell.source, cell.label, "exec", dont_inherit=True)
        return _parse(cell.source)
    except UNREADABLE as error:
        raise unreadable(cell, error) from None


def parsed(cell: Cell) -> ast.Module:
    """The tree of a cell that ran before; empty if the text does not parse."""
    try:
        return _parse(cell.source)
    except UNREADABLE:
        return ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=512)
def _parse(source: str) -> ast.Module:
    with quiet():
        return ast.parse(source)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress compiler warnings, which the notebook showed when it ran the cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def unreadable(cell: Cell, error: Exception) -> ProgramError:
    """The error for a cell that Python cannot compile: one of UNREADABLE."""
    line, problem, excerpt = 1, str(error), ""
    if "\0" in cell.source:  # for which messages differ between releases, without a line
        line, problem = cell.source.count("\n", 0, cell.source.index("\0")) + 1, "a NUL character"
    elif isinstance(error, SyntaxError):
        line, problem, excerpt = error.lineno or 1, error.msg, _mark_column(error)
    elif isinstance(error, UnicodeEncodeError):
        line, problem = cell.source.count("\n", 0, error.start) + 1, "half a character"
    elif isinstance(error, RecursionError | MemoryError):
        return ProgramError(
            f"{cell.label}: a statement is nested too deeply for Python. Split it into several. "
            "Nothing was run."
        )
    return ProgramError(
        f"{cell.label}, line {line}: {problem}. Correct the line. Nothing was run.{excerpt}"
    )


def _mark_column(error: SyntaxError) -> str:
    """The line with a mark below its column; a long line is cut around it."""
    text, column = (error.text or "").rstrip("\n"), max((error.offset or 1) - 1, 0)
    start = max(0, column - 60) if len(text) > 120 else 0
    excerpt = text[start : start + 120]
    return f"\n    {excerpt}\n    {' ' * (column - start)}^" if text else ""


def span(node: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, decorators included."""
    decorators = node.decorator_list if isinstance(node, DEFINITION) else []
    return min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno or node.lineno


@functools.cache  # unbounded: cells are read in turn, which would evict all of a bounded one
def futures(source: str) -> frozenset[str]:
    """The names that the text imports from `__future__`."""
    imports = filter(is_future, parsed(Cell("", source)).body)
    return frozenset(alias.name for node in imports for alias in node.names)


def is_future(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    """Whether a statement imports from `__future__`."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def unread_imports(texts: Sequence[str]) -> set[str]:
    """The modules that texts import as `import a.b` but never read: importing may register
    something."""
    names = set[str]().union(*map(_dotted_imports, texts))
    return {name for name in names if not any(f"{name}." in text for text in texts)}


@functools.cache  # unbounded, as for futures()
def _dotted_imports(source: str) -> frozenset[str]:
    """The modules that a text imports at top level as `import a.b`, without `as`."""
    imports = (node for node in parsed(Cell("", source)).body if isinstance(node, ast.Import))
    aliases = (alias for node in imports for alias in node.names)
    return frozenset(alias.name for alias in aliases if "." in alias.name and not alias.asname)


@functools.cache  # unbounded, as for futures()
def imported_from(source: str) -> Mapping[str, str]:
    """The names that a text imports from modules at top level, each with its module."""
    imports = (node for node in parsed(Cell("", source)).body if isinstance(node, ast.ImportFrom))
    modules = ((node.module, node.names) for node in imports if node.module and not node.level)
    return {alias.asname or alias.name: module for module, names in modules for alias in names}


def future_flags(names: Iterable[str]) -> int:
    """The compiler flags for these `__future__` names."""
    flags = 0
    for name in names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


_ALL_FUTURES = future_flags(__future__.all_feature_names)


# --- the source of live objects ---------------------------------------------------------------


class Cells:
    """The cells that ran, oldest first, with searches."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = list(cells)

    def labelled(self, code: CodeType) -> CodeType | None:
        """The code with its cell's label and line numbers; None if no cell is found."""
        cell = self._find_cell(code)
        if cell is None:
            return None
        first_line = code.co_firstlineno + cell.above
        return code.replace(co_filename=cell.label, co_firstlineno=first_line)

    def holding(self, code: CodeType) -> Statement | None:
        """The top-level statement that contains the code."""
        cell = self._find_cell(code)
        for node in parsed(cell).body if cell else ():
            first, last = span(node)
            if cell and first <= code.co_firstlineno + cell.above <= last:
                return Statement(cell, node)
        return None

    def _find_cell(self, code: CodeType) -> Cell | None:
        """The cell that was compiled under the code's file name, or that has the same text. Cells
        that `%%time` executed may share a file name."""
        name = code.co_filename
        named = (cell for cell in reversed(self.cells) if cell.filename == name)
        matching = (cell for cell in named if not cell.above or _holds(cell, code))
        return next(itertools.chain(matching, self._with_text(name)), None)

    def _with_text(self, filename: str) -> Iterator[Cell]:
        text = own_text("".join(linecache.getlines(filename))).rstrip()
        yield from (cell for cell in reversed(self.cells) if text and cell.source.rstrip() == text)


def _holds(cell: Cell, code: CodeType) -> bool:
    """Whether the text, recompiled without the lines above, contains an equal code object."""
    text = "\n".join(cell.source.split("\n")[cell.above :])
    return code in _codes(text, code.co_filename, code.co_flags & _ALL_FUTURES)


@functools.lru_cache(maxsize=64)
def _codes(source: str, filename: str, flags: int) -> list[CodeType]:
    """The code objects of all definitions in a text."""
    try:
        with quiet():
            return [*codes(compile(source, filename, "exec", flags, dont_inherit=True))][1:]
    except UNREADABLE:
        return []
