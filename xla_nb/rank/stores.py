"""Notes which names a cell's statements bind, also to the very object that they have already.

`flag = True` and `model = model.to(device)` may leave what was there; that a name has another
object than before tells all else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, MutableMapping, Set
from types import CodeType
from typing import Any

from xla_nb.program import ipython_syntax
from xla_nb.program.bindings import bindings


def local_to(
    statement: ast.stmt,
    code: CodeType,
    namespace: dict[str, Any],
    unclaimed: Set[str],
    bound: set[str],
) -> Mapping[str, Any]:
    """What a statement, compiled as `code`, takes for its local names: the namespace, by way of
    notes in `bound` where it binds names that are `unclaimed`. `+=` and the like may change what is
    there in place."""
    if not _may_bind(code, unclaimed):
        return namespace
    timed = [ipython_syntax.timed(one) for one in ast.walk(statement) if isinstance(one, ast.Call)]
    names = bindings([statement, *filter(None, timed)]) & unclaimed
    if names:  # which is rare
        targets = [node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign)]
        names -= {target.id for target in targets if isinstance(target, ast.Name)}
    return _Noting(namespace, names, bound) if names else namespace


def _may_bind(code: CodeType, names: Set[str]) -> bool:
    """Whether it is worth a walk of the tree, which takes as long as to compile it."""
    if not names.isdisjoint(code.co_names) or "get_ipython" in code.co_names:
        return True
    return any(type(const) is CodeType for const in code.co_consts)  # a class may say `global`


class _Noting(MutableMapping[str, Any]):
    """A namespace that notes which of `names` are bound."""

    def __init__(self, namespace: dict[str, Any], names: Set[str], bound: set[str]) -> None:
        self._namespace, self._names, self._bound = namespace, names, bound

    def __setitem__(self, name: str, value: object) -> None:
        self._namespace[name] = value
        if name in self._names:
            self._bound.add(name)

    def __delitem__(self, name: str) -> None:
        del self._namespace[name]
        self._bound.discard(name)

    def __getitem__(self, name: str) -> Any:
        return self._namespace[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._namespace)

    def __len__(self) -> int:
        return len(self._namespace)

    def copy(self) -> dict[str, Any]:
        """For code that takes a frame's local names for a dict, as pandas' `query`."""
        return dict(self._namespace)
