"""Which names statements bind in their own scope, conditionally or not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_DEEPEST = 30_000  # frames; a visitor has several for each level of a tree


@contextmanager
def room() -> Iterator[None]:
    """Lets visitors walk the deepest tree that Python compiles (some thousand levels: an `elif` is
    one). They are Python alone, which takes nothing of the stack that the limit protects."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def bindings(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that these statements bind in their own scope, conditionally or not."""
    binder = Binder()
    with room():
        for node in nodes:
            binder.visit(node)
    return binder.names | binder.beyond


class Binder(ast.NodeVisitor):
    """Collects the names that a block binds, without entering nested scopes. Those that are only
    `declared` (`x: int`) are a function's own, and at the top level nothing happens to them; those
    `beyond` are bound in bodies of classes that say `global`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.declared: set[str] = set()
        self.beyond: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()

    @property
    def outer(self) -> set[str]:
        return self.globals | self.nonlocals

    def _definition(self, node: Function | ast.ClassDef) -> None:
        self.names.add(node.name)
        outside: list[ast.expr] = list(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            outside += [*node.bases, *(keyword.value for keyword in node.keywords)]
            body = Binder()
            for statement in node.body:
                body.visit(statement)
            self.beyond |= (body.names & body.globals) | body.beyond
        else:
            outside += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        for expression in outside:
            self.visit(expression)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)

    def _comprehension(self, node: Comprehension) -> None:
        # Its targets are local to it; a walrus inside binds here.
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr) and isinstance(inner.target, ast.Name):
                self.names.add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None and isinstance(node.target, ast.Name):
            self.declared.add(node.target.id)
            self.visit(node.annotation)
        else:
            self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        if node.name != "*":
            self.names.add(node.asname or node.name.partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._maybe(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._maybe(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._maybe(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._maybe(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocals.update(node.names)

    def _maybe(self, name: str | None) -> None:
        if name is not None:
            self.names.add(name)
