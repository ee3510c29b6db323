"""Detect changes of a program to lists and dicts of the notebook, of which ranks have copies.

No user code is run: other objects are compared by identity.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Mapping
from typing import Any

from xla_nb.pickling import code_facts

_MOST = 10_000  # most elements compared, for all values together
_MAX_PARTS = 100  # most parts of a result that are compared with changed values
_EXPANDED = {tuple, *code_facts.CONTAINERS}


class Changes:
    """Compares containers (lists, dicts …) that a namespace has under `names` with their later
    content. `rebinds`: also if the name is bound to another object then."""

    def __init__(
        self, namespace: Mapping[str, object], names: Iterable[str], *, rebinds: bool
    ) -> None:
        values = {name: namespace.get(name) for name in names}
        tracked = {n: value for n, value in values.items() if _is_a(value, code_facts.CONTAINERS)}
        self._namespace = namespace
        self._rebinds = rebinds
        self._most = _MOST // max(1, len(tracked))
        self._before = {n: (id(value), _content(value, self._most)) for n, value in tracked.items()}

    def lost(self, result: object) -> tuple[str, ...]:
        """The names whose values have changed and are neither the program's result nor directly in
        it, not even as a copy."""
        now = {name: self._namespace.get(name) for name in self._before}
        contents = {name: _content(value, self._most) for name, value in now.items()}
        changed = [
            name
            for name, (identity, content) in self._before.items()
            if (self._rebinds or id(now[name]) == identity) and contents[name] != content
        ]
        if not changed:
            return ()
        parts = [result, *gc.get_referents(result)[:_MAX_PARTS]]
        ids, result_ids = set(map(id, now.values())), set(map(id, parts))
        others = [one for one in parts if _is_a(one, code_facts.CONTAINERS) and id(one) not in ids]
        copies = [_content(one, self._most) for one in others]
        lost = (name for name in changed if id(now[name]) not in result_ids)
        return tuple(name for name in lost if contents[name] not in copies)


def _content(value: object, most: int) -> list[object]:
    """The constants and lengths that a value consists of, and the ids of other objects. Containers
    that would exceed `most` elements contribute only their length."""
    content: list[object] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if _is_a(item, _EXPANDED):
            content.append((type(item), len(item)))
            todo += _elements(item, most - len(content) - len(todo))
        else:
            content.append((type(item), item) if _is_a(item, code_facts.PLAIN) else id(item))
    return content


def _elements(value: Any, most: int) -> list[object]:
    """The elements of a container; none if there are more than `most`."""
    if len(value) > most:
        return []
    if isinstance(value, dict):  # an OrderedDict's own methods would hash its keys
        return [*dict.keys(value), *dict.values(value)]
    return list(value)


def _is_a(value: object, classes: Container[type]) -> bool:
    """Whether its class is in `classes`, without comparing classes of a user's metaclass."""
    cls = type(value)
    return type(cls) is type and cls in classes
