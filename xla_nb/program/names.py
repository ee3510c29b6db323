"""Which global names statements read and bind, as Python's compiler has them.

Their code tells scopes, class-private names, `global` and type parameters. Only what it does not
have is taken from the tree.
"""

from __future__ import annotations

import ast
import dis
import inspect
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from xla_nb.program import ipython_syntax
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
_NAMED = _READS | _BINDS
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_GOES = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_LEAVES = {"RAISE_VARARGS", "RERAISE"} | _GOES | _RETURNS
_JUMPS = frozenset(dis.hasjrel)
_CACHE = bytes([dis.opmap["CACHE"]])
_WITH = bytes([dis.opmap["WITH_EXCEPT_START"]])
#: What Python calls the functions that it makes of expressions and type parameters, and runs there.
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters of ")
#: What the code of classes, annotations and docstrings names.
_IMPLICIT = {"__name__", "__annotations__", "__doc__"}
#: The parts of a tree that tell more than code does.
_TELLING = (ast.Call, *FUNCTION, ast.arg, ast.AnnAssign, ast.ImportFrom, ast.Try, ast.TryStar)


@dataclass
class Names:
    """The global names of some statements, those read with the line of their first use.

    `now` are read while the statements run, maybe before they bind them; `later` by functions of
    theirs that may be called before. `hints` may be missing (annotations that are text, names under
    `except NameError`). `binds` are bound or deleted, also by their functions through `global`.
    `stars` are the modules of `from m import *`, `code` is what was read.
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
        for node in (part for one in nodes for part in ipython_syntax.steps(one)):
            with suppress(SyntaxError):  # of `%time return`, which raises that where it runs
                reader.take(node, _compiled(node, lazy_annotations))
    return reader.finished()


def bindings(code: CodeType) -> set[str]:
    """The names that the code of statements binds or deletes, conditionally or not, and that of
    classes there which say `global`."""
    found = set()
    for step in _steps(code):
        if _binds(step, code):
            found.add(step.about)
        elif isinstance(step.about, CodeType) and _runs_at_once(step.about):
            found |= bindings(step.about)
    return found


def newest(cells: Cells, name: str) -> Statement | None:
    """The last top-level statement that binds the name."""
    for cell in reversed(cells.cells):
        if node := _binding(cell.source).get(name):
            return Statement(cell, node)
    return None


@lru_cache(maxsize=512)
def _binding(source: str) -> dict[str, ast.stmt]:
    """The names that a cell binds, each with the last statement that does."""
    found = {}
    with quiet():
        for node in parsed(Cell("", source)).body:
            with suppress(*UNREADABLE):
                found.update(dict.fromkeys(bindings(_compiled(node)), node))
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
        self._bound = State()
        self._later: dict[str, int] = {}  # read by functions that nothing can have called yet
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
        """The names of all that was taken."""
        self._call(self._bound)
        self._names.hints.update(dict.fromkeys(self._hints - self._bound, 0))
        return self._names

    def _call(self, bound: State) -> None:
        """Any function may be called when these names are bound."""
        for name in self._later.keys() - bound:
            self._names.later.setdefault(name, self._later[name])
        self._later.clear()

    def _read(self, code: CodeType, bound: State, called: bool, around: State) -> State:
        """Read code with the global names that are bound before it and those of the class `around`
        it, in a function that is `called` or not; returns the names that are bound after it."""
        ends = []
        for step, state in _states(code, bound):
            known = state if _is_module(code) else bound  # what a class binds is its own
            binds = _binds(step, code)
            if binds:
                self._names.binds.add(step.about)
            if step.op in _READS or (binds and step.op in _DELETES):
                seen = {"LOAD_GLOBAL": known, "LOAD_FROM_DICT_OR_GLOBALS": bound | around}
                if step.about not in seen.get(step.op, state):
                    self._add(step.about, _line(code, step.place), called)
            elif isinstance(step.about, CodeType):
                is_called = called or not _runs_at_once(step.about)
                self._read(step.about, known, is_called, around | state)
            elif step.op in _RETURNS:
                ends.append(state)
        return State.intersection(*ends) if ends else bound

    def _add(self, name: str, line: int, called: bool) -> None:
        read = self._later if called else self._names.now
        read = self._names.hints if line in self._guarded else read
        read.setdefault(name, line)

    def _text(self, node: ast.AST) -> None:
        """Take what only the text tells."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call())):  # get_ipython()
                self._hints.update(ipython_syntax.expanded(node))
                if timed := ipython_syntax.timed(node):
                    inside = names_in(timed.body)
                    self._hints |= inside.wanted()
                    self._names.binds |= inside.binds
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
    """The names in an annotation, and those in its texts."""
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            with suppress(*UNREADABLE):
                yield from compile(part.value.strip(), "", "eval").co_names


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type is not None else ()
    return any(isinstance(node, ast.Name) and node.id == "NameError" for node in caught)


# --- code -------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """An operation at a place in code: about a name, code that it makes, or where it may go to."""

    place: int
    op: str
    about: Any = None


def _steps(code: CodeType) -> Iterator[_Step]:
    """The steps of code that are about global names or other code, or lead elsewhere.

    `dis` finds them as well, but takes longer than all else here.
    """
    handlers = _handlers(code) if code.co_exceptiontable else {}
    places = range(0, len(code.co_code), 2)
    wide = 0
    for place, op, low in zip(places, code.co_code[::2], code.co_code[1::2], strict=True):
        name, arg = dis.opname[op], wide << 8 | low
        wide = arg if name == "EXTENDED_ARG" else 0
        if place in handlers:
            yield _Step(place, "may raise", handlers[place])
        if name in _NAMED:
            # The lowest bit of LOAD_GLOBAL's says that a call follows.
            about = code.co_names[arg >> 1 if name == "LOAD_GLOBAL" else arg]
            if about not in _IMPLICIT:
                yield _Step(place, name, about)
        elif op in _JUMPS:
            yield _Step(place, name, _target(code, place, arg))
        elif name in _LEAVES:
            yield _Step(place, name)
        elif name == "LOAD_CONST" and isinstance(code.co_consts[arg], CodeType):
            yield _Step(place, name, code.co_consts[arg])


def _handlers(code: CodeType) -> dict[int, int]:
    """Where code goes on that raises, by the place from which on it may."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return {
        entry.start: entry.target
        for entry in entries
        if "suppress" in code.co_names or not code.co_code.startswith(_WITH, entry.target + 2)
    }


def _target(code: CodeType, place: int, distance: int) -> int:
    """Where a jump leads to: its distance is from the next operation, caches left out."""
    back = "BACKWARD" in dis.opname[code.co_code[place]]
    place += 2
    while code.co_code.startswith(_CACHE, place):
        place += 2
    return place - 2 * distance if back else place + 2 * distance


def _states(code: CodeType, bound: State) -> list[tuple[_Step, State]]:
    """Each step that code may reach, with the names that are bound before it on all ways there."""
    steps = list(_steps(code))
    if code.co_flags & inspect.CO_OPTIMIZED:  # a function's, whose own names are others
        return [(step, bound) for step in steps]
    places = [step.place for step in steps]
    found = {0: bound}
    todo = [0]
    while todo:
        n = todo.pop()
        step, state = steps[n], found[n]
        if step.op in _STORES:
            state = state | {step.about}
        elif step.op in _DELETES:
            state = state - {step.about}
        ways = [n + 1] if step.op not in _LEAVES else []
        if isinstance(step.about, int):
            ways.append(bisect_left(places, step.about))
        for way in ways:
            before = found.get(way, state)
            if way not in found or not before <= state:
                found[way] = before & state
                todo.append(way)
    return [(steps[n], state) for n, state in sorted(found.items())]


def _line(code: CodeType, place: int) -> int:
    return next(line or 0 for start, end, line in code.co_lines() if start <= place < end)


def _is_module(code: CodeType) -> bool:
    return code.co_name == "<module>"


def _runs_at_once(code: CodeType) -> bool:
    """Whether code runs where it is made: a class's body, a comprehension, type parameters."""
    return not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith(_AT_ONCE)


def _binds(step: _Step, code: CodeType) -> bool:
    """Whether a step of code binds or deletes a global name."""
    return step.op in _BINDS and (_is_module(code) or step.op.endswith("_GLOBAL"))
