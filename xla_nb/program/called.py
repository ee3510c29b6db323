"""Which global names a cell's top level may bind by calling functions that say `global`.

A function can be called only by what reads its name, has decorated it, or looks names up as text.
What the top level reads is followed from function to function, whether or not that is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TypeAlias

from xla_nb.program.bindings import Function
from xla_nb.program.names import DEFINED, names_in

#: What functions outside a cell read, and what they bind, to which these names lead.
Elsewhere: TypeAlias = Callable[[Set[str]], tuple[set[str], set[str]]]

#: Builtins, and IPython's own, through which code may call or bind any name.
_ANY = {"exec", "eval", "globals", "locals", "vars", "setattr", "get_ipython", "__main__"}


def bound_by_calls(
    nodes: Sequence[ast.stmt],
    keeps_to_itself: Callable[[Function | ast.ClassDef], bool],
    elsewhere: Elsewhere,
) -> set[str] | None:
    """The names that functions bind which the statements may call; None if it may be any name.

    `keeps_to_itself` says whether nothing is called with a definition when it is executed, as a
    decorator or a metaclass is; `elsewhere` tells of functions outside the cell.
    """
    definitions: dict[str, list[ast.stmt]] = {}
    for node in _definitions(nodes):
        for one in _definitions([node]) if isinstance(node, ast.ClassDef) else [node]:
            definitions.setdefault(one.name, []).append(node)
    fresh = _read(executed(nodes))
    fresh |= {node.name for node in _definitions(nodes) if not keeps_to_itself(node)}
    reached: set[str] = set()
    bound: set[str] = set()
    while fresh:
        reached |= fresh
        called = [node for name in fresh for node in definitions.get(name, ())]
        read, sets = elsewhere(fresh)
        bound |= sets.union(*(names_in([node]).sets for node in called))
        fresh = (read | _read(part for node in called for part in ast.walk(node))) - reached
    return None if reached & _ANY else bound


def deleted(nodes: Sequence[ast.stmt]) -> set[str]:
    """The module's names that `del` takes away somewhere in these statements."""
    found = _deleted(executed(nodes))
    for node in (part for one in nodes for part in ast.walk(one) if isinstance(part, Function)):
        said = {name for p in ast.walk(node) if isinstance(p, ast.Global) for name in p.names}
        found |= said & _deleted(ast.walk(node))
    return found


def _deleted(parts: Iterable[ast.AST]) -> set[str]:
    return {p.id for p in parts if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Del)}


def executed(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All parts that are executed when the statements are: not the bodies of functions."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, Function):
            todo += [*node.decorator_list, node.args, *filter(None, [node.returns])]
        else:
            todo += ast.iter_child_nodes(node)


def _definitions(nodes: Iterable[ast.AST]) -> Iterator[Function | ast.ClassDef]:
    return (node for node in executed(nodes) if isinstance(node, DEFINED))


def _read(parts: Iterable[ast.AST]) -> set[str]:
    names = (part for part in parts if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}
