"""A test double for a notebook, which compiles and executes cells like ipykernel.

Programs are built and run as by a launch and a rank, but in this process.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import echo
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.pickling import multiprocess
from xla_nb.program import module_file
from xla_nb.program.build import Cell, Program, Scope, build, build_call, build_entry
from xla_nb.program.cell_text import Cells, parse
from xla_nb.program.module_file import ModuleMap
from xla_nb.program.rank_cell import functions
from xla_nb.rank import loader


class Notebook:
    """Executes cells statement by statement, under file names that linecache knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = types.ModuleType("__main__")
        self.values = vars(self.main)
        self.cells: list[Cell] = []
        self._sent: dict[int, dict[str, bytes]] = {}
        self._patch = monkeypatch

    def run(self, source: str, label: str | None = None) -> None:
        source = textwrap.dedent(source)
        filename = f"/tmp/ipykernel_test/{abs(hash(source))}.py"  # by content, as in ipykernel
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self.cells.append(Cell(label or f"Cell In[{len(self.cells) + 1}]", source, filename))
        self._patch.setitem(sys.modules, "__main__", self.main)
        flags = 0
        for node in ast.parse(source).body:
            module = ast.Module([node], [])
            code = compile(module, filename, "exec", flags, dont_inherit=True)
            flags |= code.co_flags & 0x1000000  # from __future__ import annotations
            exec(code, self.values)

    @property
    def scope(self) -> Scope:
        return Scope(self.values, tuple(self.cells))

    def build(self, source: str, entry: str | None = None, args: tuple[Any, ...] = ()) -> Program:
        cell = Cell(f"Cell In[{len(self.cells) + 1}]", textwrap.dedent(source))
        if not entry and not functions(parse(cell)):
            return self._noted(build(cell, self.scope, name="xla_nb_cell"))
        self.run(source)
        made = build_entry(cell, self.scope, entry=entry, args=args, name="xla_nb_cell")
        return self._noted(made)

    def _noted(self, program: Program) -> Program:
        """Record what is sent, to compare it with what is opened."""
        values = {name: self.values[name] for name in self._names(program)}
        self._sent[id(program)] = echo.of(values, Cells(self.cells).labelled)
        return program

    def _names(self, program: Program) -> list[str]:
        return [name for name in program.restored if name in self.values]

    def launch(self, source: str, *args: Any, entry: str | None = None) -> Any:
        return self.rank(self.build(source, entry, args))

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        program = build_call(fn, self.scope, args=args, name="xla_nb_call")
        return self.rank(self._noted(program))

    def rank(self, program: Program) -> Any:
        """The result of the program on rank 0."""
        main, table = self._loaded(program)
        if program.body is None:
            lock = {"lock": "the lock"} if program.takes_lock else {}
            return vars(main)[program.entry](0, *vars(main)[ARGUMENTS], **lock)
        vars(main).update(rank=0, world_size=4, device="xla:0", lock="the lock")
        return loader.run_body(table, vars(main))

    def load(self, program: Program) -> types.ModuleType:
        return self._loaded(program)[0]

    def _loaded(self, program: Program) -> tuple[types.ModuleType, ModuleMap]:
        """Send, write and load the program with the functions of a launch and a rank. Their changes
        to this process are undone: modules and path by monkeypatch, linecache by `opened`."""
        for name in ("__main__", "__mp_main__", program.name):
            self._patch.setitem(sys.modules, name, self.main)
        self._patch.setattr(sys, "path", [*sys.path])
        fd = program.parcel.to_memfd()
        try:
            self._patch.setenv(loader.PARCEL, loader.parcel_path(fd))
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{program.name}.py"
                module_file.write(program, path)
                main = loader.load(path)
                if (sent := self._sent.pop(id(program), None)) is not None:
                    names = self._names(program)
                    echo.compare(sent, echo.of({name: vars(main)[name] for name in names}))
                return main, ModuleMap.open(path)
        finally:
            os.close(fd)
            loader.parcel.cache_clear()  # cached by path, which the next parcel may reuse


def shipped(program: Program) -> set[str]:
    return set(program.restored)


def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """For a fixture: an empty notebook; linecache forgets its cells afterwards."""
    before = set(linecache.cache)
    multiprocess.named().turn_on()  # as `%load_ext xla_nb` does
    yield Notebook(monkeypatch)
    multiprocess.named().turn_off()
    for name in set(linecache.cache) - before:
        del linecache.cache[name]


def importable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For a fixture: a folder on sys.path; its modules are unloaded afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
