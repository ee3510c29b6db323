"""Global names that statements read and bind, as Python's compiler resolves them.

Bytecode shows scopes, class-private names, `global` and type parameters. Only what it lacks is
taken from the syntax tree.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dis import Instruction
from types import CodeType
from typing import TypeAlias

from xla_nb.program.cell_text import (
    DEFINITION,
    FUNCTION,
    UNREADABLE,
    Cell,
    Cells,
    Statement,
    future_flags,
    parsed,
    quiet,
)

State: TypeAlias = frozenset[str]
_READS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_STORES = {"STORE_NAME", "STORE_GLOBAL"}
_DELETES = {"DELETE_NAME", "DELETE_GLOBAL"}
_BINDS = _STORES | _DELETES
_BINDING = frozenset(dis.opmap[name] for name in _BINDS)
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_GOES = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_LEAVES = {"RAISE_VARARGS", "RERAISE"} | _GOES | _RETURNS
_WITH = bytes([dis.opmap["WITH_EXCEPT_START"]])
#: Names of the code that Python makes of expressions and type parameters, and runs at once.
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters of ")
#: Names used implicitly by the code of classes, annotations and docstrings.
_IMPLICIT = State({"__name__", "__annotations__", "__doc__"})
#: Nodes of the tree with information that code lacks.
_TELLING = (ast.Call, *FUNCTION, ast.arg, ast.AnnAssign, ast.ImportFrom, ast.Try, ast.TryStar)


@dataclass
class Names:
    """The global names of some statements; names read have the line of their first use.

    `now` are read while the statements run, perhaps before they bind them; `later` by functions of
    theirs that may be called before that. `hints` may be missing (annotations that are text, names
    under `except NameError`). `binds` are bound or deleted, also in functions through `global`.
    `stars` are the modules of `from m import *`, `code` is the code that was read.
    """

    now: dict[str, int] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    binds: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    code: list[CodeType] = field(default_factory=list)

    def required(self) -> dict[str, int]:
        """Names that must come from outside, since nothing here binds them."""
        read = {**self.later, **self.now}
        return {name: line for name, line in read.items() if name not in self.binds}

    def wanted(self) -> set[str]:
        """Names to take from outside if they exist."""
        return {*self.now, *self.later, *self.hints}


def names_in(nodes: Sequence[ast.stmt], *, lazy_annotations: bool = False) -> Names:
    """The global names that these top-level statements bind and read."""
    reader = _Reader()
    with quiet():
        for node in nodes:
            reader.take(node, _compiled(node, lazy_annotations))
    return reader.finished()


def bindings(code: CodeType) -> set[str]:
    """The names that the code of statements binds or deletes, conditionally or not, including
    `global` names of classes in it."""
    steps = () if _BINDING.isdisjoint(code.co_code) else dis.get_instructions(code)  # dis is slow
    found = {step.argval for step in steps if _binds(step, code)}
    inner = (one for one in code.co_consts if isinstance(one, CodeType) and _runs_at_once(one))
    return found.union(*map(bindings, inner))


def newest(cells: Cells, name: str) -> Statement | None:
    """The last top-level statement that binds the name."""
    for cell in reversed(cells.cells):
        if (number := _binding(cell.source).get(name)) is not None:
            return Statement(cell, parsed(cell).body[number])
    return None


@functools.cache  # unbounded, as for futures()
def _binding(source: str) -> dict[str, int]:
    """The names that a cell binds, each with the index of the last statement that does."""
    found = {}
    with quiet():
        for number, node in enumerate(parsed(Cell("", source)).body):
            with suppress(*UNREADABLE):
                found.update(dict.fromkeys(bindings(_compiled(node)), number))
    return found


def _compiled(node: ast.stmt, lazy_annotations: bool = False) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    flags |= future_flags(["annotations"]) if lazy_annotations else 0
    code: CodeType = compile(ast.Module([node], []), "", "exec", flags, dont_inherit=True)
    return code


class _Reader:
    """Collects the names of statements, in the order in which they run."""

    def __init__(self) -> None:
        self._names = Names()
        self._bound = _IMPLICIT
        self._later: dict[str, int] = {}  # read by functions that cannot have been called yet
        self._hints: set[str] = set()
        self._guarded: set[int] = set()  # lines

    def take(self, node: ast.stmt, code: CodeType) -> None:
        """Take a statement and its code."""
        self._names.code.append(code)
        telling = [part for part in ast.walk(node) if isinstance(part, _TELLING)]
        for part in telling:
            self._text(part)
        before, self._bound = self._bound, self._read(code, self._bound, False, State())
        if not isinstance(node, DEFINITION) and any(isinstance(p, ast.Call) for p in telling):
            self._call(before)

    def finished(self) -> Names:
        """The names of all statements taken."""
        self._call(self._bound)
        self._names.hints.update(dict.fromkeys(self._hints - self._bound, 0))
        return self._names

    def _call(self, bound: State) -> None:
        """Note that any function may be called now, with these names bound."""
        for name in self._later.keys() - bound:
            self._names.later.setdefault(name, self._later[name])
        self._later.clear()

    def _read(self, code: CodeType, bound: State, called: bool, around: State) -> State:
        """Read code, given the global names bound before it and those of the class `around` it;
        `called`: it is in a function, to be called later. Returns the names bound after it."""
        ends = []
        for step, state in _states(code, bound):
            known = state if _is_module(code) else bound  # a class binds its own names
            op, about = step.opname, step.argval
            binds = _binds(step, code)
            if binds:
                self._names.binds.add(about)
            if op in _READS or (binds and op in _DELETES):
                seen = {"LOAD_GLOBAL": known, "LOAD_FROM_DICT_OR_GLOBALS": bound | around}
                if about not in seen.get(op, state):
                    self._add(about, step, called)
            elif isinstance(about, CodeType):
                is_called = called or not _runs_at_once(about)
                self._read(about, known, is_called, around | state)
            elif op in _RETURNS:
                ends.append(state)
        return State.intersection(*ends) if ends else bound

    def _add(self, name: str, step: Instruction, called: bool) -> None:
        line = (step.positions and step.positions.lineno) or 0
        read = self._later if called else self._names.now
        read = self._names.hints if line in self._guarded else read
        read.setdefault(name, line)

    def _text(self, node: ast.AST) -> None:
        """Take names that only the tree shows."""
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                self._names.stars.append(node.module or "")
            case ast.Try() | ast.TryStar() if any(map(_catches_name_error, node.handlers)):
                last = node.body[-1]
                self._guarded.update(range(node.body[0].lineno, (last.end_lineno or 0) + 1))
            case ast.arg() | ast.AnnAssign():
                self._hints.update(_annotated(node.annotation))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._hints.update(_annotated(node.returns))


def _annotated(node: ast.expr | None) -> Iterator[str]:
    """Words in an annotation, and in its strings, that may be names."""
    yield from re.findall(r"[^\W\d]\w*", ast.unparse(node)) if node is not None else ()


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type is not None else ()
    return any(isinstance(node, ast.Name) and node.id == "NameError" for node in caught)


# --- code -------------------------------------------------------------------------------------


def _handlers(code: CodeType) -> dict[int, int]:
    """The offset at which code continues after an exception, by the start of the guarded range."""
    entries = dis.Bytecode(code).exception_entries if code.co_exceptiontable else ()  # type: ignore[attr-defined]
    return {
        entry.start: entry.target
        for entry in entries
        if "suppress" in code.co_names or not code.co_code.startswith(_WITH, entry.target + 2)
    }


def _states(code: CodeType, bound: State) -> list[tuple[Instruction, State]]:
    """Each instruction that code may reach, with the names bound before it on all paths."""
    steps = list(dis.get_instructions(code))
    if code.co_flags & inspect.CO_OPTIMIZED:  # a function, whose locals are other names
        return [(step, bound) for step in steps]
    numbers = {step.offset: n for n, step in enumerate(steps)}
    handlers = _handlers(code)
    found = {0: bound}
    todo = [0]
    while todo:
        n = todo.pop()
        step, state = steps[n], found[n]
        ways = [(numbers[handlers[step.offset]], state)] if step.offset in handlers else []
        if step.opname in _STORES:
            state = state | {step.argval}
        elif step.opname in _DELETES:
            state = state - {step.argval}
        if step.opcode in dis.hasjrel:
            ways.append((numbers[step.argval], state))
        if step.opname not in _LEAVES:
            ways.append((n + 1, state))
        for way, there in ways:
            before = found.get(way, there)
            if way not in found or not before <= there:
                found[way] = before & there
                todo.append(way)
    return [(steps[n], state) for n, state in sorted(found.items())]


def _is_module(code: CodeType) -> bool:
    return code.co_name == "<module>"


def _runs_at_once(code: CodeType) -> bool:
    """Whether code runs where it is created: a class body, a comprehension, type parameters."""
    return not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith(_AT_ONCE)


def _binds(step: Instruction, code: CodeType) -> bool:
    """Whether an instruction binds or deletes a global name."""
    is_global = _is_module(code) or step.opname.endswith("_GLOBAL")
    return is_global and step.opname in _BINDS and step.argval not in _IMPLICIT
