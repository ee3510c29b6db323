"""A world of slices, hosts, chips and ranks as a drawing in plain text, with its variables.

The rule: it draws what it is given and knows nothing of TPUs; what is alike is folded, so that 64
hosts take no more of a page than a few, and no line is longer than WIDTH.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xla_nb.wording import several, shortened

WIDTH = 100
#: Of so many all are shown, of more the first ones and the last; of hosts half as many where there
#: are several slices.
_SLICES, _HOSTS, _VALUES = 4, 8, 4
_NAME = 32  # characters of a host's name

_T = TypeVar("_T")


@dataclass(frozen=True)
class DiagramProcess:
    """A process on its chip: the ranks in it, by number, and the variables it gets."""

    ranks: Sequence[int]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class DiagramHost:
    """A machine, and the processes on it."""

    name: str
    processes: Sequence[DiagramProcess]


@dataclass(frozen=True)
class Diagram:
    """What is drawn: `title` above, `notes` below, a paragraph each."""

    title: str
    slices: Sequence[Sequence[DiagramHost]]
    notes: Sequence[str] = ()


def draw(world: Diagram) -> str:
    """The drawing, in lines of at most WIDTH characters."""
    parts = [
        textwrap.fill(world.title, WIDTH),
        "\n".join(_slices(world.slices)),
        "\n".join(_variables(world.slices)),
        *(textwrap.fill(note, WIDTH, break_on_hyphens=False) for note in world.notes),
    ]
    return "\n\n".join(part for part in parts if part)


# ---------------------------------------------------------------- slices, hosts, chips, ranks


@dataclass(frozen=True)
class _More:
    """So many that are not shown."""

    count: int


def _slices(slices: Sequence[Sequence[DiagramHost]]) -> Iterator[str]:
    """A line for each host."""
    name = min(_NAME, max(len(host.name) for row in slices for host in row))
    label = len(f"slice {len(slices) - 1} ")
    digits = len(str(slices[-1][-1].processes[-1].ranks[-1]))
    for slice_ in _folded(list(enumerate(slices)), _SLICES):
        if isinstance(slice_, _More):
            yield f"⋮ {_more(slice_, 'slice')}"
            continue
        number, hosts = slice_
        shown = _folded(hosts, _HOSTS if len(slices) == 1 else _HOSTS // 2)
        for at, host in enumerate(shown):
            start = f"slice {number}" if at == 0 else ""
            branch = _branch(at, len(shown))
            if isinstance(host, _More):
                yield f"{'':{label}}⋮ {_more(host, 'host')}"
            else:
                chips = _chips(host.processes, digits, WIDTH - label - name - 5)
                yield f"{start:{label}}{branch} {shortened(host.name, name):{name}}  {chips}"


def _branch(at: int, count: int) -> str:
    if count == 1:
        return "─"
    return "┬" if at == 0 else "└" if at == count - 1 else "├"


def _chips(processes: Sequence[DiagramProcess], digits: int, room: int) -> str:
    """`[ 8][ 9][10][11]`; of more than there is room for, the first and the last."""
    chips = [f"[{' '.join(f'{rank:{digits}}' for rank in process.ranks)}]" for process in processes]
    if sum(map(len, chips)) <= room:
        return "".join(chips)
    most = max(2, (room - 7) // len(chips[0]))
    return f"{''.join(chips[: most - 1])} … {chips[-1]}"


# ---------------------------------------------------------------- variables

#: What a value may depend on, the simplest first: a process is at (slice, host of it, process).
_BY = {
    (): "every process",
    (0,): "one for each slice",
    (2,): "one for each process of a host",
    (1,): "one for each host of a slice",
    (0, 1): "one for each host",
    (1, 2): "one for each process of a slice",
    (0, 1, 2): "one for each process",
}


def _variables(slices: Sequence[Sequence[DiagramHost]]) -> Iterator[str]:
    """Which variables there are, under what their values depend on."""
    places = {
        (s, h, p): process.variables
        for s, row in enumerate(slices)
        for h, host in enumerate(row)
        for p, process in enumerate(host.processes)
    }
    names = list(dict.fromkeys(name for variables in places.values() for name in variables))
    width = max(map(len, names), default=0)
    found: dict[tuple[int, ...], list[str]] = {by: [] for by in _BY}
    for name in names:
        by, values = _dependence({at: told.get(name, "not set") for at, told in places.items()})
        said = _values(values, WIDTH - width - 4)
        found[by].append(f"  {name:{width}}  {said}")
    for by, lines in found.items():
        if lines:
            yield f"{_BY[by]}:"
            yield from lines


def _dependence(
    values: Mapping[tuple[int, int, int], str],
) -> tuple[tuple[int, ...], list[str]]:
    """The least that a variable's values depend on, and the value for each of that."""
    for by in _BY:
        seen: dict[tuple[int, ...], str] = {}
        if all(
            seen.setdefault(tuple(at[axis] for axis in by), value) == value
            for at, value in values.items()
        ):
            return by, list(seen.values())
    raise AssertionError("a process has one value")


def _values(values: Sequence[str], room: int) -> str:
    """`0 | 1`, `0 … 15`; a list in a value is folded where it is long."""
    numbers = [str(number) for number in range(len(values))]
    if list(values) == numbers and len(values) > _VALUES:
        return f"0 … {values[-1]}"
    whole = " | ".join(values)
    if len(whole) <= room:
        return whole
    short = [", ".join(_told(_folded(value.split(","), 3))) for value in values]
    for most in (_VALUES, 2):
        told = " | ".join(_told(_folded(short, most)))
        if len(told) <= room:
            return told
    return shortened(told, room)


def _told(items: Sequence[str | _More]) -> list[str]:
    return ["…" if isinstance(item, _More) else item for item in items]


# ---------------------------------------------------------------- folding


def _folded(items: Sequence[_T], most: int) -> list[_T | _More]:
    """All of them; of more than `most` the first ones, how many are left out, and the last."""
    if len(items) <= most:
        return list(items)
    first = max(1, most // 2)
    return [*items[:first], _More(len(items) - first - 1), items[-1]]


def _more(more: _More, noun: str) -> str:
    return f"{several(more.count, noun)} more"
