"""The items that a module is made of, and the order in which each finds what it needs.

The rule: names decide the order, so that the same notebook gives the same module; the values
themselves are not looked at.
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
    """One thing taken along: sections of source that bind `name`, or the value of that name.

    An `early` one is needed before the launched cell's definitions run.
    """

    name: str
    sections: list[Section] = field(default_factory=list)
    value: object = None
    is_value: bool = False
    is_definition: bool = False
    module: ModuleType | None = None  # its import is written last, when all uses are known
    now: set[str] = field(default_factory=set)  # needed before it can be put in place
    later: set[str] = field(default_factory=set)  # needed when it is used
    early: bool = False


def generated(text: str) -> Section:
    """A section of ours, which belongs to no cell."""
    return Section(GENERATED, 1, f"{text}\n")


def layout(
    items: Mapping[str, Item], replaced: set[str]
) -> tuple[list[Section | Group], Group, Group]:
    """The pieces before the cell in their order; the values before it; those after it.

    After it come values of what the cell binds anew: of a class in `replaced`.
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
    """Definitions, and the values they need to be made, so that each finds what it needs.

    Items fall into alternating stages of source and values: as few groups of values as
    possible, because only values of one group keep the objects they share. Names that need
    one another while they are being defined keep the order in which they were met.
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
    """These names and all that they can reach: what must be there to call one of them."""
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
