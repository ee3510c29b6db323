"""The items of a module, ordered so that each comes after what it needs.

Only names decide the order, never the values, so that the same notebook gives the same module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeAlias

from xla_nb.program.cells import Section

GENERATED = "<xla_nb>"
Group: TypeAlias = dict[str, object]


@dataclass
class Item:
    """Sections of source that bind `name`, or the value of that name.

    An `early` item is needed before the launched cell's definitions run.
    """

    name: str
    sections: list[Section] = field(default_factory=list)
    value: object = None
    is_value: bool = False
    is_definition: bool = False
    module: ModuleType | None = None  # its import is written last, when all uses are known
    now: set[str] = field(default_factory=set)  # needed before it is defined or restored
    later: set[str] = field(default_factory=set)  # needed when it is used
    early: bool = False


def generated(text: str) -> Section:
    """A section that belongs to no cell."""
    return Section(GENERATED, 1, f"{text}\n")


def layout(
    items: Mapping[str, Item], replaced: set[str]
) -> tuple[list[Section | Group], Group, Group]:
    """The pieces before the cell, in order; the values before it; the values after it.

    Values of a class that the cell redefines (in `replaced`) come after it.
    """
    pieces: list[Section | Group] = []
    group: Group = {}
    for name in _staged(items):
        item = items[name]
        if item.is_value:
            if not (pieces and pieces[-1] is group):
                group = {}
                pieces.append(group)
            group[name] = item.value
        else:
            pieces += [section for section in item.sections if section not in pieces]
    late: Group = {}
    last: Group = {}
    for name, item in items.items():
        if item.is_value and not item.early:
            (last if item.now & replaced else late)[name] = item.value
    return pieces, late, last


def _staged(items: Mapping[str, Item]) -> list[str]:
    """Definitions and early values, each after what it needs.

    Items form alternating stages of source and values, with as few groups of values as possible,
    because only values of one group keep shared objects. Names that need each other while they
    are defined keep the order in which they were collected.
    """
    stages: dict[str, int] = {}
    open_: set[str] = set()

    def place(name: str) -> None:
        item = items[name]
        if name in open_ or (item.is_value and not item.early):
            return
        open_.add(name)
        needed = _settled(item.now, items)
        for other in needed:
            place(other)
        least = max((stages.get(other, 0) for other in needed), default=0)
        stages[name] = least + (least % 2 != item.is_value)

    for name in items:
        place(name)
    return sorted(stages, key=lambda name: (stages[name], not _is_import(items[name])))


def _settled(names: Iterable[str], items: Mapping[str, Item]) -> list[str]:
    """These names and all they can reach, which must exist before one of them is called."""
    found: dict[str, None] = {}
    queue = deque(sorted(names))
    while queue:
        name = queue.popleft()
        if name in items and name not in found:
            found[name] = None
            queue.extend(sorted(items[name].now | items[name].later))
    return list(found)


def _is_import(item: Item) -> bool:
    return bool(item.sections) and item.sections[0].text.startswith(("import ", "from "))
