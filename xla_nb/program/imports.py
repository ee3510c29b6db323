"""Imports that ranks repeat."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Collection, Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from xla_nb.pickling import code_facts
from xla_nb.program.cell_text import Cell, parsed


def repeated(
    cells: Iterable[Cell], names: Collection[str], values: Iterable[object]
) -> tuple[str, ...]:
    """The loaded modules that ranks import before values are unpickled: those that cells
    `import a.b` but never read, since importing may register something, and submodules that source
    mentions in `names`, of packages among the `values` that it uses. Imported before, because the
    notebook's values already contain what importing changes."""
    texts = [cell.source for cell in cells]
    plain = set[str]().union(*map(_plain_imports, texts))
    unread = {name for name in plain if not any(name in _read_names(text) for text in texts)}
    submodules = {module.__name__ for module in code_facts.submodules(names, values)}
    return tuple(sorted(name for name in unread | submodules if name in sys.modules))


@functools.cache  # unbounded, as for futures()
def _plain_imports(source: str) -> frozenset[str]:
    """The modules that a cell imports at top level as `import a.b`, without `as`."""
    imports = (node for node in parsed(Cell("", source)).body if isinstance(node, ast.Import))
    aliases = (alias for node in imports for alias in node.names)
    return frozenset(alias.name for alias in aliases if "." in alias.name and not alias.asname)


@functools.cache
def _read_names(source: str) -> frozenset[str]:
    """The dotted names `a.b` that a cell reads, and their prefixes."""
    nodes = ast.walk(parsed(Cell("", source)))
    return frozenset(ast.unparse(node) for node in nodes if _is_path(node))


def _is_path(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def imported_as(value: Any) -> str:
    """A name by which both sides can import the value: a module's name, or a function's or class's
    with its module; empty for anything else."""
    if type(value) is ModuleType:
        return value.__name__ if sys.modules.get(value.__name__) is value else ""
    is_code = type(value) in (FunctionType, BuiltinFunctionType, type)
    is_importable = is_code and code_facts.importable(value)
    return f"{value.__module__}.{value.__qualname__}" if is_importable else ""
