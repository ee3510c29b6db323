"""The imports that ranks repeat: of what a program uses, and of what registers itself."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import ModuleType

from xla_nb.program.cells import Cells, imported_modules
from xla_nb.program.names import names_in
from xla_nb.protocol import replaced


class Imports:
    """Collects `modules`, by the names that the notebook has for them, and the dotted `paths` that
    a program reads."""

    def __init__(self, cells: Cells) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.paths: set[str] = set()
        self._cells = cells

    def lines(self) -> list[str]:
        """The import statements."""
        used = [line for name in sorted(self.modules) for line in self._of(name)]
        return used + [f'__import__("{module}")' for module in self._for_their_effect()]

    def notes(self) -> set[str]:
        """What of these modules ranks do not have as the notebook has set it."""
        used = list(self.modules.values())
        for path in self.paths:
            name, _, rest = path.partition(".")
            if name in self.modules:
                full = self.modules[name].__name__
                used += (sys.modules[part] for part in _prefixes(f"{full}.{rest}", full))
        return {note for module in used for note in replaced.notes(module)}

    def _of(self, name: str) -> Iterator[str]:
        """`import a.b as name`, and imports of the loaded submodules that the notebook uses."""
        full = self.modules[name].__name__
        yield f"import {full}" if name == full else f"import {full} as {name}"
        asked = {f"{full}{path[len(name) :]}" for path in self.paths if path.startswith(f"{name}.")}
        if name == full:
            written = imported_modules(statement.node for statement in self._cells.statements())
            asked |= {path for path in written if path.startswith(f"{name}.")}
        for submodule in sorted({part for path in asked for part in _prefixes(path, full)}):
            yield f'__import__("{submodule}")'

    def _for_their_effect(self) -> Iterator[str]:
        """`import a.b.c` in a cell, where nothing reads `a.b.c`: it registers something."""
        imports = [s.node for s in self._cells.statements() if isinstance(s.node, ast.Import)]
        plain = [alias.name for node in imports for alias in node.names if not alias.asname]
        dotted = {name for name in plain if "." in name and name in sys.modules}
        if dotted:
            cells = [names_in([statement.node]).paths for statement in self._cells.statements()]
            read = self.paths.union(*cells)
            unread = (n for n in dotted if not any(f"{p}.".startswith(f"{n}.") for p in read))
            yield from sorted(unread)


def _prefixes(path: str, module: str) -> Iterator[str]:
    """The loaded modules along `a.b.c` below `a`."""
    parts = path.split(".")
    for end in range(module.count(".") + 2, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if prefix not in sys.modules:
            return
        yield prefix
