"""Which objects of a pickle lead back to themselves.

A pickle is a graph: what each object is reduced to leads to others. It is recorded by a pickler
whose stream nobody reads.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_ATOMS = {str, int, float, bytes, bool, types.NoneType, types.BuiltinFunctionType}
_BARE = (dict, list, tuple, set, frozenset)  # which a pickler does not ask how to reduce


class Graph:
    """What each object leads to that `pickler` writes from now on.

    `is_leaf` tells objects that it writes as a reference, without what they hold.
    """

    def __init__(self, pickler: Any, is_leaf: Callable[[object], bool]) -> None:
        self._reduced: dict[int, tuple[object, tuple[Any, ...]]] = {}
        self._is_leaf = is_leaf
        override = pickler.reducer_override

        def recording(obj: Any) -> Any:
            reduced = override(obj)
            if reduced is NotImplemented:
                reduced = _by_pickle(obj, pickler.dispatch_table)
            if not isinstance(reduced, tuple):
                return reduced
            parts = _with_iterators(list, reduced)
            self._reduced[id(obj)] = obj, parts
            return _with_iterators(iter, parts)

        pickler.reducer_override = recording

    def reduced(self, obj: object) -> tuple[Any, ...]:
        """What it was reduced to; nothing where its class was not asked."""
        return self._reduced.get(id(obj), (None, ()))[1]

    def parts(self, obj: Any) -> Iterable[object]:
        """What an object leads to."""
        if type(obj) not in _BARE:
            return self.reduced(obj)
        if self._is_leaf(obj):
            return ()
        return [*obj, *obj.values()] if type(obj) is dict else list(obj)


def _with_iterators(make: Callable[[Any], Any], reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """A reducer's value, with what is made of its iterators: over items, and over pairs."""
    return tuple(
        make(part) if n in (3, 4) and part is not None else part for n, part in enumerate(reduced)
    )


def _by_pickle(obj: Any, table: Any) -> Any:
    """As pickle reduces what it is told nothing about."""
    kind = type(obj)
    if kind in table:
        return table[kind](obj)
    code = issubclass(kind, type | types.FunctionType)
    return NotImplemented if code else obj.__reduce_ex__(5)


def groups(
    starts: Iterable[object], parts: Callable[[Any], Iterable[object]]
) -> Iterator[list[object]]:
    """The strongly connected components (Tarjan's), those that others lead to first."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[object] = []
    closed: set[int] = set()

    def entered(obj: object) -> tuple[object, Iterator[object]]:
        number[id(obj)] = lowest[id(obj)] = len(number)
        path.append(obj)
        return obj, iter(parts(obj))

    for start in starts:
        todo = [] if id(start) in number else [entered(start)]
        while todo:
            one, rest = todo[-1]
            for part in rest:
                if type(part) in _ATOMS or id(part) in closed:
                    continue
                if id(part) not in number:
                    todo.append(entered(part))
                    break
                lowest[id(one)] = min(lowest[id(one)], number[id(part)])
            else:
                todo.pop()
                if todo:
                    above = id(todo[-1][0])
                    lowest[above] = min(lowest[above], lowest[id(one)])
                if lowest[id(one)] == number[id(one)]:
                    at = next(n for n in range(len(path) - 1, -1, -1) if path[n] is one)
                    group, path[at:] = path[at:], []
                    closed.update(map(id, group))
                    yield group
