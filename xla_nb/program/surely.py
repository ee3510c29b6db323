"""Which global names code reads whenever it runs, and which functions it calls by their names.

It surely gets to what is behind no `if`, `and`, `or`, `case` and `except`; to bodies of loops too,
as almost always. A function's inner functions count as its own text, and of a class `__init__`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xla_nb.program.bindings import Function, bindings, room
from xla_nb.program.names import DEFINED, names_in

Definition: TypeAlias = Function | ast.ClassDef | ast.Assign

_NAMESPACES = {"globals", "locals", "vars"}
_PUTS = {"update", "setdefault", "__setitem__"}


@dataclass
class Surely:
    """The global names that code reads, each with a line, and the names that it calls."""

    reads: dict[str, int] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)


def by_statements(nodes: Sequence[ast.stmt]) -> Surely:
    """What happens when these top-level statements run."""
    kept = _pruned(nodes)
    return Surely(names_in(kept).now, _called(_executed(kept)))


def by_calling(definition: Definition) -> Surely:
    """What happens when what a statement defines is called."""
    kept = _pruned([definition])
    return Surely(names_in(kept).later, _called(part for one in kept for part in ast.walk(one)))


def definitions(nodes: Iterable[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """What can be called of what statements define, by its name."""
    for node in _executed(nodes):
        if isinstance(node, DEFINED):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((one.id, node) for one in node.targets if isinstance(one, ast.Name))


def asked_for(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of tests such as `"x" in globals()`."""
    tests = (part for one in nodes for part in ast.walk(one) if isinstance(part, ast.Compare))
    return {
        test.left.value
        for test in tests
        if isinstance(test.left, ast.Constant)
        and isinstance(test.left.value, str)
        and isinstance(test.ops[0], ast.In | ast.NotIn)
    }


def binds_any_name(nodes: Iterable[ast.AST]) -> bool:
    """Whether code binds names that its text does not show: `globals().update(cfg)`, `exec`."""
    parts = [part for one in nodes for part in ast.walk(one)]
    if any(isinstance(part, ast.Call) and _name(part.func) == "exec" for part in parts):
        return True
    used = (part.value for part in parts if isinstance(part, ast.Attribute) and part.attr in _PUTS)
    put = (
        part.value
        for part in parts
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store)
    )
    return any(
        isinstance(one, ast.Call) and _name(one.func) in _NAMESPACES for one in (*used, *put)
    )


def place(nodes: Iterable[ast.AST], line: int) -> str:
    """The function that a line of these statements is in (`Net.forward`), or an empty string."""
    for node in nodes:
        if getattr(node, "lineno", line) <= line <= getattr(node, "end_lineno", line):
            inner = place(ast.iter_child_nodes(node), line)
            if isinstance(node, DEFINED):
                return f"{node.name}.{inner}" if inner else node.name
            if inner:
                return inner
    return ""


def _called(parts: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Call):
            found.add(_name(part.func))
        elif isinstance(part, DEFINED):
            found.update(map(_name, part.decorator_list))
    return found - {""}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _pruned(nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    with room():
        return [_Pruner().visit(copy.deepcopy(node)) for node in nodes]


class _Pruner(ast.NodeTransformer):
    """Takes away what may not run; the names that it binds stay bound."""

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self.visit(node.test)
        node.body, node.orelse = _bound([*node.body, *node.orelse]), []
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.test)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        return self.visit(node.values[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        node.body = _bound(node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        node.guard, node.body = None, _bound(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        for one in node.body:
            if isinstance(one, Function) and one.name != "__init__":
                one.body = _bound([])
        return self.generic_visit(node)


def _bound(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that only bind what these do."""
    made: list[ast.stmt] = [ast.Pass()]
    made += [part for one in nodes for part in ast.walk(one) if isinstance(part, ast.Global)]
    for name in sorted(bindings(nodes)):
        made.append(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)))
    return made


def _executed(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All parts that are executed when the statements are: not the bodies of functions."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, Function):
            todo += [*node.decorator_list, node.args, *filter(None, [node.returns])]
        else:
            todo += ast.iter_child_nodes(node)
