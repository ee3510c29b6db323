"""A live rank in this process: its namespace and its table of definitions."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support import echo
from tests.support.notebook_double import Notebook
from xla_nb.live_ranks.sent import Sent
from xla_nb.live_ranks.unit_pickler import OURS, LiveUnits
from xla_nb.pickling.functions_and_classes import Notebook as Names
from xla_nb.pickling.parcel import Packed, Parcel
from xla_nb.pickling.rebuild import Definitions
from xla_nb.program.build import Cell, Program, build
from xla_nb.program.cell_text import Cells
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader


def own_names(values: Mapping[str, object]) -> set[str]:
    """Names that are not internal to xla_nb."""
    return {name for name in values if not name.startswith(OURS)}


_ALWAYS = {"__builtins__", "__name__"}


class LiveRank:
    """`values` is its namespace, `remote` the names that belong to it."""

    def __init__(self) -> None:
        self.sent = Sent()
        self.labelled: Callable[[types.CodeType], types.CodeType | None] = lambda code: None
        self.start_again()

    def start_again(self) -> None:
        """Forget everything, like a restarted rank."""
        self.main = types.ModuleType("__main__")
        self.values: dict[str, Any] = vars(self.main)
        self.table = Definitions()
        self.remote: set[str] = set()
        self.sent.forget()

    def pack(self, held: Mapping[str, object], *names: str) -> Packed:
        """Pack what a cell needs that uses these notebook names."""
        mine = {n: one for n, one in held.items() if n not in self.remote and n[:2] != "__"}
        known = self.remote | set(__builtins__) | _ALWAYS  # type: ignore[arg-type]
        live = LiveUnits(Names(mine, known=known), self.sent.numbers)
        roots = {name: mine[name] for name in names if name in mine}
        return self.sent.pack(roots, live, self.remote)

    def open(self, packed: Packed, held: Mapping[str, object] | None = None) -> set[str]:
        """Open a packed unit and return the names it has values for; `held` are the notebook's
        values, to compare with."""
        fd = packed.to_memfd()
        try:
            here = sys.modules["__main__"]
            sys.modules["__main__"] = self.main
            values = Parcel(fd).open(self.values, table=self.table, but=self.remote)
            if packed.writer is not None and packed.writer._live.held:
                held = None  # the notebook may no longer hold what ranks hold
            names = own_names(values) - self.remote if held is not None else ()
            there = echo.of({n: self.values[n] for n in sorted(names)}, follow=False)
        finally:
            sys.modules["__main__"] = here
            os.close(fd)
        if held is not None:
            sent = echo.of({n: held[n] for n in sorted(names)}, self.labelled, follow=False)
            echo.compare(sent, there)
        return own_names(values)

    def cell(self, held: Mapping[str, object], *names: str) -> set[str]:
        """Send what a cell needs, and return the names whose values were sent."""
        sent = self.open(self.pack(held, *names), held)
        self.sent.confirm()
        return sent

    def run(self, source: str) -> Any:
        """Run statements or an expression as a cell on the rank."""
        try:
            return eval(source, self.values)
        except SyntaxError:
            exec(source, self.values)
            return None


class LiveNotebook(Notebook):
    """A notebook with one live rank, which owns what cells bind.

    sent   the names whose values the last cell sent
    notes  the notes of the last cell
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.rank0 = LiveRank()
        self.sent: set[str] = set()
        self.notes: tuple[str, ...] = ()

    def program(self, source: str) -> Program:
        rank = self.rank0
        scope = replace(self.scope, sent=rank.sent, remote=frozenset(rank.remote))
        cell = Cell(f"Cell In[{len(self.cells) + 1}]", textwrap.dedent(source))
        return build(cell, scope, name="xla_nb_cell")

    def cell(self, source: str) -> Any:
        """Run a cell on the rank, and return the value of its last expression."""
        rank, program = self.rank0, self.program(source)
        rank.labelled = Cells(self.cells).labelled
        self.sent, self.notes = rank.open(program.parcel, self.values), program.notes
        rank.sent.confirm()
        rank.values.update(rank=0, world_size=4, device="xla:0", lock="the lock")
        before = dict(rank.values)
        table = ModuleMap(dict(program.sources), program.label, program.flags, body=program.body)
        value = loader.run_body(table, rank.values)
        rank.remote |= {n for n, v in rank.values.items() if before.get(n, rank) is not v}
        return value

    def act(self, story: str) -> None:
        """Run a script of notebook lines and rank cells (`>>> `), whose last expression must be
        true or None. Below a cell, `sent:` lists all names whose values were sent, and `told:` has
        the notes; an ellipsis at the end stands for any text."""
        lines: list[str] = []
        for line in textwrap.dedent(story).strip().splitlines():
            kind, _, rest = line.partition(" ")
            if kind not in (">>>", "sent:", "told:"):
                lines.append(line)
                continue
            if lines:
                self.run("\n".join(lines))
                lines.clear()
            if kind == ">>>":
                value = self.cell(rest)
                assert value is None or value, line
            elif kind == "sent:":
                assert self.sent == {*rest.split()}, line
            else:
                told, known = "\n".join(self.notes), rest.removesuffix("…")
                assert told.startswith(known) if known != rest else told == rest, told


def opened_live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveNotebook]:
    """For a fixture: an empty notebook with a live rank."""
    before = set(linecache.cache)
    made = LiveNotebook(monkeypatch)
    yield made
    made.rank0.values.clear()  # pytest keeps a reference to it
    made.values.clear()
    made.rank0.sent.forget()
    for name in set(linecache.cache) - before:
        del linecache.cache[name]
