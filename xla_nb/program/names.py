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
_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_NO_FALLTHROUGH = {"RAISE_VARARGS", "RERAISE"} | _JUMPS | _RETURNS
_WITH = bytes([dis.opmap["WITH_EXCEPT_START"]])
#: Names of the code that Python makes of expressions and type parameters, and runs at once.
_IMMEDIATE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters of ")
#: Names used implicitly by the code of classes, annotations and docstrings.
_IMPLICIT = State({"__name__", "__annotations__", "__doc__"})
#: Nodes of the tree with information that code lacks.
_INFORMATIVE = (ast.Call, *FUNCTION, ast.arg, ast.AnnAssign, ast.ImportFrom, ast.Try, ast.TryStar)


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
            reader.take(node, _compile(node, lazy_annotations))
    return reader.finished()


def bindings(code: CodeType) -> set[str]:
    """The names that the code of statements binds or deletes, conditionally or not, including
    `global` names of classes in it."""
    instructions = () if _BINDING.isdisjoint(code.co_code) else dis.get_instructions(code)  # slow
    names = {instruction.argval for instruction in instructions if _binds(instruction, code)}
    inner = (one for one in code.co_consts if isinstance(one, CodeType) and _runs_at_once(one))
    return names.union(*map(bindings, inner))


def newest(cells: Cells, name: str) -> Statement | None:
    """The last top-level statement that binds the name."""
    for cell in reversed(cells.cells):
        if (index := _binding(cell.source).get(name)) is not None:
            return Statement(cell, parsed(cell).body[index])
    return None


@functools.cache  # unbounded, as for futures()
def _binding(source: str) -> dict[str, int]:
    """The names that a cell binds, each with the index of the last statement that does."""
    indices = {}
    with quiet():
        for index, node in enumerate(parsed(Cell("", source)).body):
            with suppress(*UNREADABLE):
                indices.update(dict.fromkeys(bindings(_compile(node)), index))
    return indices


def _compile(node: ast.stmt, lazy_annotations: bool = False) -> CodeType:
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
        nodes = [part for part in ast.walk(node) if isinstance(part, _INFORMATIVE)]
        for part in nodes:
            self._read_node(part)
        before, self._bound = self._bound, self._read_code(code, self._bound, False, State())
        if not isinstance(node, DEFINITION) and any(isinstance(p, ast.Call) for p in nodes):
            self._note_call(before)

    def finished(self) -> Names:
        """The names of all statements taken."""
        self._note_call(self._bound)
        self._names.hints.update(dict.fromkeys(self._hints - self._bound, 0))
        return self._names

    def _note_call(self, bound: State) -> None:
        """Note that any function may be called now, with these names bound."""
        for name in self._later.keys() - bound:
            self._names.later.setdefault(name, self._later[name])
        self._later.clear()

    def _read_code(self, code: CodeType, bound: State, in_function: bool, around: State) -> State:
        """Read code, given the global names bound before it and those of the class `around` it;
        `in_function`: it is in a function, to be called later. Returns the names bound after it."""
        end_states = []
        for instruction, state in _states(code, bound):
            known = state if _is_module(code) else bound  # a class binds its own names
            op, argument = instruction.opname, instruction.argval
            binds = _binds(instruction, code)
            if binds:
                self._names.binds.add(argument)
            if op in _READS or (binds and op in _DELETES):
                visible = {"LOAD_GLOBAL": known, "LOAD_FROM_DICT_OR_GLOBALS": bound | around}
                if argument not in visible.get(op, state):
                    self._add_read(argument, instruction, in_function)
            elif isinstance(argument, CodeType):
                is_called = in_function or not _runs_at_once(argument)
                self._read_code(argument, known, is_called, around | state)
            elif op in _RETURNS:
                end_states.append(state)
        return State.intersection(*end_states) if end_states else bound

    def _add_read(self, name: str, instruction: Instruction, in_function: bool) -> None:
        line = (instruction.positions and instruction.positions.lineno) or 0
        target = self._later if in_function else self._names.now
        target = self._names.hints if line in self._guarded else target
        target.setdefault(name, line)

    def _read_node(self, node: ast.AST) -> None:
        """Take names that only the tree shows."""
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                self._names.stars.append(node.module or "")
            case ast.Try() | ast.TryStar() if any(map(_catches_name_error, node.handlers)):
                last = node.body[-1]
                self._guarded.update(range(node.body[0].lineno, (last.end_lineno or 0) + 1))
            case ast.arg() | ast.AnnAssign():
                self._hints.update(_annotation_words(node.annotation))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._hints.update(_annotation_words(node.returns))


def _annotation_words(node: ast.expr | None) -> Iterator[str]:
    """Words in an annotation, and in its strings, that may be names."""
    yield from re.findall(r"[^\W\d]\w*", ast.unparse(node)) if node is not None else ()


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    nodes = ast.walk(handler.type) if handler.type is not None else ()
    return any(isinstance(node, ast.Name) and node.id == "NameError" for node in nodes)


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
    instructions = list(dis.get_instructions(code))
    if code.co_flags & inspect.CO_OPTIMIZED:  # a function, whose locals are other names
        return [(instruction, bound) for instruction in instructions]
    indices = {instruction.offset: index for index, instruction in enumerate(instructions)}
    handlers = _handlers(code)
    states = {0: bound}
    todo = [0]
    while todo:
        index = todo.pop()
        instruction, state = instructions[index], states[index]
        successors = (
            [(indices[handlers[instruction.offset]], state)]
            if instruction.offset in handlers
            else []
        )
        if instruction.opname in _STORES:
            state = state | {instruction.argval}
        elif instruction.opname in _DELETES:
            state = state - {instruction.argval}
        if instruction.opcode in dis.hasjrel:
            successors.append((indices[instruction.argval], state))
        if instruction.opname not in _NO_FALLTHROUGH:
            successors.append((index + 1, state))
        for target, target_state in successors:
            before = states.get(target, target_state)
            if target not in states or not before <= target_state:
                states[target] = before & target_state
                todo.append(target)
    return [(instructions[index], state) for index, state in sorted(states.items())]


def _is_module(code: CodeType) -> bool:
    return code.co_name == "<module>"


def _runs_at_once(code: CodeType) -> bool:
    """Whether code runs where it is created: a class body, a comprehension, type parameters."""
    return not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith(_IMMEDIATE)


def _binds(instruction: Instruction, code: CodeType) -> bool:
    """Whether an instruction binds or deletes a global name."""
    is_global = _is_module(code) or instruction.opname.endswith("_GLOBAL")
    return is_global and instruction.opname in _BINDS and instruction.argval not in _IMPLICIT
