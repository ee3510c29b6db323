"""A program as a module file, with a map of its lines to the notebook's cells beside it.

The file must stay plain, importable Python: a rank executes it statement by statement under the
cells' names, but a DataLoader's spawned worker simply imports it.
"""

from __future__ import annotations

import ast
import bisect
import json
from dataclasses import dataclass, field
from pathlib import Path

from xla_nb.program.build import Program
from xla_nb.program.cell_text import GENERATED
from xla_nb.record import private
from xla_nb.record.files import lines

_LOADER = "xla_nb.rank.loader"  # the module of `restore`, which this layer must not import
_RESTORE = "_xla_nb_restore"


@dataclass(frozen=True)
class Span:
    """Lines `start`..`end` of the module's file are lines of `label`, from `first_line` on."""

    start: int
    end: int
    label: str
    first_line: int


@dataclass(frozen=True)
class ModuleMap:
    """The map beside a program's file: where its lines come from, and the cells' sources.

    `flags` are compiler flags for the ``__future__`` imports in force. `body` is the label, first
    line and text that every rank runs, if the cell has no entry. `details` are `Program.details`.
    `bare`: the file has nothing below the values that it restores. `imports` are
    `Program.imports`.
    """

    spans: tuple[Span, ...]
    sources: dict[str, str]
    flags: int = 0
    body: tuple[str, int, str] | None = None
    details: dict[str, str] = field(default_factory=dict)
    bare: bool = False
    imports: tuple[str, ...] = ()

    def save(self, module: Path) -> str:
        """Write it beside the module's file; gives what it has written, for `parse`. Raises
        OSError."""
        spans = [(p.start, p.end, p.label, p.first_line) for p in self.spans]
        text = json.dumps({**vars(self), "spans": spans})
        private.write(lines(module), text.encode())
        return text

    @classmethod
    def open(cls, module: Path) -> ModuleMap:
        """Read the map beside a module's file. Raises OSError."""
        return cls.parse(lines(module).read_text())

    @classmethod
    def parse(cls, text: str) -> ModuleMap:
        data = json.loads(text)
        spans = tuple(Span(*span) for span in data["spans"])
        body = tuple(data["body"]) if data["body"] else None
        made = {"spans": spans, "body": body, "imports": tuple(data["imports"])}
        return cls(**{**data, **made})

    def cell(self, line: int) -> tuple[str, int] | None:
        """The cell's label and line for a line of the file; None outside cells."""
        at = bisect.bisect([span.start for span in self.spans], line) - 1
        if at < 0 or line > self.spans[at].end:
            return None
        span = self.spans[at]
        return span.label, line - span.start + span.first_line


def source(program: Program) -> tuple[str, list[Span]]:
    """The text of the program's module file, and the spans of its lines."""
    text = f'"""Module {program.name}: what xla_nb took from the notebook for one run."""\n'
    if program.futures:
        text += f"from __future__ import {', '.join(program.futures)}\n"
    text += f"from {_LOADER} import restore as {_RESTORE}\n\n"
    more = "".join(f", {part!r}" for part in program.script)
    more += f", imports={program.imports!r}" if program.imports else ""
    text += f"{_RESTORE}(globals(){more})  # {', '.join(program.restored)}\n"
    spans = []
    for section in program.sections:
        text += "\n"
        start = text.count("\n") + 1
        text += section.text
        if section.label != GENERATED:
            spans.append(Span(start, text.count("\n"), section.label, section.first_line))
    return text, spans


def is_restoring(statement: ast.stmt) -> bool:
    """Whether a statement of such a file is the one that restores the notebook's values."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == _RESTORE


def write(program: Program, path: Path) -> str:
    """Write the module's file, and its map beside it; gives what the map's file has. Raises
    OSError."""
    text, spans = source(program)
    private.write(path, text.encode())
    body = program.body
    return ModuleMap(
        tuple(spans),
        dict(program.sources),
        program.flags,
        (body.label, body.first_line, body.text) if body else None,
        dict(program.details),
        not program.sections,
        program.imports,
    ).save(path)
