"""A program as a module file, with a map of its lines to the notebook's cells beside it.

The file must stay plain, importable Python: a rank executes it statement by statement under the
cells' names, but a DataLoader's spawned worker simply imports it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from xla_nb.program.build import Program
from xla_nb.record import private
from xla_nb.record.files import lines

_LOADER = "xla_nb.rank.loader"  # the module of `restore`, which this layer must not import
_RESTORE = "_xla_nb_restore"


@dataclass(frozen=True)
class ModuleMap:
    """The map beside a program's file: where its lines come from, and the cells' sources.

    `flags` are compiler flags for the ``__future__`` imports in force. The lines of the file from
    `start` on are those of the cell `label`; 0 if there are none. `body` is the cell's text that
    every rank runs, if it has no entry. `details` are `Program.details`. `imports` are
    `Program.imports`.
    """

    sources: dict[str, str]
    label: str = ""
    flags: int = 0
    start: int = 0
    body: str | None = None
    details: dict[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: Program, start: int = 0) -> ModuleMap:
        """That of a program; live ranks need no file."""
        sources, details = dict(program.sources), dict(program.details)
        own = program.label, program.flags, start, program.body
        return cls(sources, *own, details, program.imports)

    def text(self) -> str:
        """What `parse` reads."""
        return json.dumps(vars(self))

    @classmethod
    def open(cls, module: Path) -> ModuleMap:
        """Read the map beside a module's file. Raises OSError."""
        return cls.parse(lines(module).read_text())

    @classmethod
    def parse(cls, text: str) -> ModuleMap:
        data = json.loads(text)
        return cls(**{**data, "imports": tuple(data["imports"])})

    def cell(self, line: int) -> tuple[str, int] | None:
        """The cell's label and line for a line of the file; None for those of xla_nb."""
        return (self.label, line - self.start + 1) if 0 < self.start <= line else None


def source(program: Program) -> tuple[str, int]:
    """The text of the program's module file, and in which line the cell's text begins, or 0."""
    text = f'"""Module {program.name}: what xla_nb took from the notebook for one run."""\n'
    if program.futures:
        text += f"from __future__ import {', '.join(program.futures)}\n"
    text += f"from {_LOADER} import restore as {_RESTORE}\n\n"
    more = "".join(f", {part!r}" for part in program.script)
    more += f", imports={program.imports!r}" if program.imports else ""
    text += f"{_RESTORE}(globals(){more})  # {', '.join(program.restored)}\n\n"
    return text + program.module, text.count("\n") + 1 if program.module else 0


def write(program: Program, path: Path) -> None:
    """Write the module's file, and its map beside it. Raises OSError."""
    text, start = source(program)
    path.parent.mkdir(0o700, exist_ok=True)
    private.write(path, text.encode())
    private.write(lines(path), ModuleMap.of(program, start).text().encode())
