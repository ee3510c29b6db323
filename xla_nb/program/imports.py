"""The imports that ranks repeat: of what a program uses, and of what registers itself."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from xla_nb.pickling.own_modules import Uses
from xla_nb.program import ipython_syntax
from xla_nb.program.cell_text import Cell, Cells, imported_modules, parsed


class Imports:
    """Collects `modules`, by the names that the notebook has for them, and the dotted `paths` that
    a program reads."""

    def __init__(self, cells: Cells) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.paths: set[str] = set()
        self._cells = cells
        self._text = Uses()

    def read(self, code: ast.AST) -> None:
        """Take what source that ranks execute reads of modules."""
        names, imports = self._text.names, self._text.imports
        for node in ast.walk(code):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    names.add(name)
                    self.paths.add(_dotted(node))
                case ast.Call() if timed := ipython_syntax.timed(node):
                    self.read(timed)
                case ast.Constant(value=str(text)):
                    names.add(text)
                case ast.Import(names=aliases):
                    imports |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=module, names=aliases):
                    imports |= {module or "", *(alias.name for alias in aliases)}
                    names |= {alias.name for alias in aliases}

    def lines(self) -> list[str]:
        """The statements that bind the modules."""
        full = {name: self.modules[name].__name__ for name in sorted(self.modules)}
        return [
            f"import {one}" if name == one else f"import {one} as {name}"
            for name, one in full.items()
        ]

    def first(self) -> list[str]:
        """What is to be imported before values are made: loaded submodules that the notebook uses,
        and what registers itself. What that changes, the notebook's values have already."""
        used = {module for name in self.modules for module in self._below(name)}
        return sorted(used.union(self._for_their_effect()))

    def follow(self, uses: Uses) -> None:
        """What the program's source leads to in modules."""
        uses.take(self._text)
        for module in self.modules.values():
            uses.add(module)

    @functools.cached_property
    def _written_in_cells(self) -> list[str]:
        """The modules that the notebook's cells import."""
        return imported_modules(statement.node for statement in self._cells.statements())

    def _below(self, name: str) -> set[str]:
        """The loaded submodules of a module that the notebook uses."""
        full = self.modules[name].__name__
        asked = {f"{full}{path[len(name) :]}" for path in self.paths if path.startswith(f"{name}.")}
        if name == full:
            asked |= {path for path in self._written_in_cells if path.startswith(f"{name}.")}
        return {part for path in asked for part in _prefixes(path, full)}

    def _for_their_effect(self) -> Iterator[str]:
        """`import a.b.c` in a cell, where nothing reads `a.b.c`: it registers something."""
        plain = self._cells.modules_imported()
        dotted = {name for name in plain if "." in name and name in sys.modules}
        if dotted:
            read = self.paths.union(*(_paths(cell.source) for cell in self._cells.cells))
            unread = (n for n in dotted if not any(f"{p}.".startswith(f"{n}.") for p in read))
            yield from sorted(unread)


@functools.lru_cache(maxsize=512)
def _paths(source: str) -> frozenset[str]:
    """The dotted names that a cell reads, as "torch.utils.data", and what each begins with."""
    parts = ast.walk(parsed(Cell("", source)))
    return frozenset(_dotted(part) for part in parts if isinstance(part, ast.Name | ast.Attribute))


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of attributes of a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _prefixes(path: str, module: str) -> Iterator[str]:
    """The loaded modules along `a.b.c` below `a`."""
    parts = path.split(".")
    for end in range(module.count(".") + 2, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if prefix not in sys.modules:
            return
        yield prefix


def imported_as(value: Any) -> str:
    """What both sides have where they import the same: a module's name, or that of a function or
    class with its module's; empty for anything else."""
    if type(value) is ModuleType:
        name = vars(value).get("__name__")
        return name if isinstance(name, str) and sys.modules.get(name) is value else ""
    if type(value) not in (FunctionType, BuiltinFunctionType, type):
        return ""
    module, name = value.__module__, value.__qualname__
    found = sys.modules.get(module) if isinstance(module, str) and module != "__main__" else None
    is_there = isinstance(found, ModuleType) and vars(found).get(name) is value
    return f"{module}.{name}" if is_there else ""
