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
    block = Block(nodes)
    return block.names | block.beyond


class Block:
    """What a block binds, without what nested scopes do. Names that are only `declared` (`x: int`)
    are a function's own, and at the top level nothing happens to them; those `beyond` are bound in
    bodies of classes that say `global`."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.names: set[str] = set()
        self.declared: set[str] = set()
        self.beyond: set[str] = set()
        self.globals: set[str] = set()
        self.outer: set[str] = set()  # with nonlocal ones
        todo = list(nodes)
        while todo:
            node = todo.pop()
            self._take(node)
            todo += _parts(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=str(name), ctx=ast.Store() | ast.Del()):
                self.names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.names.add(name)
            case ast.ClassDef(name=name, body=body):
                self.names.add(name)
                inner = Block(body)
                self.beyond |= (inner.names & inner.globals) | inner.beyond
            case ast.alias(name=name, asname=asname) if name != "*":
                self.names.add(asname or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self.names.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                self.names.add(name)
            case ast.AnnAssign(value=None, target=ast.Name(id=name)):
                self.declared.add(name)
            case ast.Global(names=names):
                self.globals.update(names)
                self.outer.update(names)
            case ast.Nonlocal(names=names):
                self.outer.update(names)


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    """The parts of a node that are of its scope."""
    match node:
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args) | ast.Lambda(args=args):
            outside = [*args.defaults, *filter(None, args.kw_defaults)]
            return [*getattr(node, "decorator_list", []), *outside]
        case ast.ClassDef():
            return [*node.decorator_list, *node.bases, *node.keywords]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            # Its targets are local to it; a walrus inside binds here.
            return [part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr)]
        case ast.AnnAssign(value=None, target=ast.Name()):
            return [node.annotation]
    return ast.iter_child_nodes(node)
