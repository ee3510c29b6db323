"""The imports that ranks repeat."""

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
    """The loaded modules that ranks import before values are made: those that cells `import a.b`
    and none reads, which register something, and those for which source has `names`, inside
    packages among the `values` that it uses. What importing changes, the notebook's values have
    already."""
    texts = [cell.source for cell in cells]
    plain = set[str]().union(*map(_plain, texts))
    unread = {name for name in plain if not any(name in _read(text) for text in texts)}
    inside = {one.__name__ for one in code_facts.submodules(names, values)}
    return tuple(sorted(name for name in unread | inside if name in sys.modules))


@functools.cache  # as futures() is
def _plain(source: str) -> frozenset[str]:
    """What a cell imports at its top level as `import a.b`, under no other name."""
    imports = (one for one in parsed(Cell("", source)).body if isinstance(one, ast.Import))
    aliases = (alias for one in imports for alias in one.names)
    return frozenset(one.name for one in aliases if "." in one.name and not one.asname)


@functools.cache
def _read(source: str) -> frozenset[str]:
    """What a cell reads as `a.b`, and what that begins with."""
    parts = ast.walk(parsed(Cell("", source)))
    return frozenset(ast.unparse(one) for one in parts if _is_path(one))


def _is_path(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def imported_as(value: Any) -> str:
    """What both sides have where they import the same: a module's name, or that of a function or
    class with its module's; empty for anything else."""
    if type(value) is ModuleType:
        return value.__name__ if sys.modules.get(value.__name__) is value else ""
    is_code = type(value) in (FunctionType, BuiltinFunctionType, type)
    is_there = is_code and code_facts.importable(value)
    return f"{value.__module__}.{value.__qualname__}" if is_there else ""
