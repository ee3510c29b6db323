"""A notebook's double, which compiles and executes cells as ipykernel does.

A program is tried on it by pickling the program's values as they travel and executing its
module's text in a fresh module.
"""

from __future__ import annotations

import ast
import io
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from xla_nb.program import module_file
from xla_nb.program.build import Cell, Program, Scope, build, build_call


class Notebook:
    """Executes cells statement by statement, under file names that linecache knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = types.ModuleType("__main__")
        self.values = vars(self.main)
        self.cells: list[Cell] = []
        self.pending: list[Cell] = []
        self._patch = monkeypatch

    def run(self, source: str, label: str | None = None) -> None:
        source = textwrap.dedent(source)
        filename = f"/tmp/ipykernel_test/{abs(hash(source))}.py"  # by content, as ipykernel's
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
        return Scope(self.values, tuple(self.cells), tuple(self.pending))

    def build(self, source: str, entry: str | None = None, args: tuple[Any, ...] = ()) -> Program:
        cell = Cell(f"Cell In[{len(self.cells) + 1}]", textwrap.dedent(source))
        return build(cell, self.scope, entry=entry, args=args, name="xla_nb_cell")

    def launch(self, source: str, *args: Any, entry: str | None = None) -> Any:
        return self.rank(self.build(source, entry, args), *args)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        program = build_call(fn, self.scope, args=args, name="xla_nb_call")
        return self.rank(program, *args)

    def rank(self, program: Program, *args: Any) -> Any:
        """What rank 0 computes."""
        main = self.load(program)
        if program.body is None:
            lock = {"lock": "the lock"} if program.takes_lock else {}
            return vars(main)[program.entry](0, *args, **lock)
        vars(main).update(rank=0, world_size=4, device="xla:0", lock="the lock")
        *nodes, last = ast.parse(program.body.text).body
        exec(compile(ast.Module(nodes, []), "body", "exec", program.flags, True), vars(main))
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "body", "exec", program.flags, True), vars(main))
            return None
        code = compile(ast.Expression(last.value), "body", "eval", program.flags, True)
        return eval(code, vars(main))

    def load(self, program: Program) -> types.ModuleType:
        self._patch.setitem(sys.modules, "__main__", self.main)
        groups = [_dump(group, program.defines) for group in program.groups]
        fresh = types.ModuleType("__main__")
        fresh.get_ipython = lambda: None  # type: ignore[attr-defined]
        self._patch.setitem(sys.modules, "__main__", fresh)
        loading = types.ModuleType("xla_nb.rank.loader")
        loading.restore = lambda index, names: names.update(  # type: ignore[attr-defined]
            cloudpickle.loads(groups[index])
        )
        self._patch.setitem(sys.modules, "xla_nb.rank.loader", loading)
        text, _ = module_file.source(program)
        exec(compile(text, "xla_nb_cell.py", "exec", dont_inherit=True), vars(fresh))
        return fresh


def _dump(group: Any, defines: tuple[str, ...]) -> bytes:
    """As the real way out: what the program defines goes by name, the rest by value."""

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            named = isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__"
            if named and obj.__qualname__.split(".")[0] in defines:
                found: Any = sys.modules["__main__"]
                for part in obj.__qualname__.split("."):
                    found = getattr(found, part, None)
                if found is obj:
                    return obj.__qualname__
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(dict(group))
    return file.getvalue()


def shipped(program: Program) -> set[str]:
    return {name for group in program.groups for name in group}


def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """For a fixture: an empty notebook, its cells forgotten afterwards."""
    before = set(linecache.cache)
    yield Notebook(monkeypatch)
    for name in set(linecache.cache) - before:
        del linecache.cache[name]


def importable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For a fixture: a folder on sys.path; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
