"""Write a program as a module file, with a map of the notebook's cells beside it.

The file is plain, importable Python: a DataLoader's spawned worker simply imports it.
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
    """The map beside a program's file: the cells' sources by label.

    `flags` are compiler flags for the ``__future__`` imports in force. `body` is the text of the
    cell `label` that every rank runs, if it has no entry. `details` are `Program.details`.
    """

    sources: dict[str, str]
    label: str = ""
    flags: int = 0
    body: str | None = None
    details: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> ModuleMap:
        """The map of a program; live ranks need no file."""
        sources, details = dict(program.sources), dict(program.details)
        return cls(sources, program.label, program.flags, program.body, details)

    def text(self) -> str:
        """The map as text for `parse`."""
        return json.dumps(vars(self))

    @classmethod
    def open(cls, module: Path) -> ModuleMap:
        """Read the map beside a module's file. Raises OSError."""
        return cls.parse(lines(module).read_text())

    @classmethod
    def parse(cls, text: str) -> ModuleMap:
        return cls(**json.loads(text))


def source(program: Program) -> str:
    """The text of the program's module file."""
    arguments = "".join(f", {part!r}" for part in program.script)
    return (
        f'"""Module {program.name}: notebook values for one xla_nb run."""\n'
        f"from {_LOADER} import restore as {_RESTORE}\n\n"
        f"{_RESTORE}(globals(){arguments})  # {', '.join(program.restored)}\n"
    )


def write(program: Program, path: Path) -> None:
    """Write the module's file, and the map of cells beside it. Raises OSError."""
    path.parent.mkdir(0o700, exist_ok=True)
    private.write(path, source(program).encode())
    private.write(lines(path), ModuleMap.of(program).text().encode())
