"""Draw slices, hosts, chips and ranks, and the variables of each process, as plain text.

It knows nothing about TPUs. Long lists are folded, so 64 hosts take no more room than a few, and no
line is longer than WIDTH.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xla_nb.wording import shortened

WIDTH = 100
#: Longer lists show the first few and the last. With several slices, half as many hosts are shown.
_SLICES, _HOSTS, _VALUES = 4, 8, 4
_NAME = 32  # characters of a host's name

_T = TypeVar("_T")


@dataclass(frozen=True)
class DiagramProcess:
    """A process on its chip: the numbers of its ranks, and its variables."""

    ranks: Sequence[int]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class DiagramHost:
    """A machine, and the processes on it."""

    name: str
    processes: Sequence[DiagramProcess]


@dataclass(frozen=True)
class Diagram:
    """The content of a drawing: `title` above, `notes` below, a paragraph each."""

    title: str
    slices: Sequence[Sequence[DiagramHost]]
    notes: Sequence[str] = ()


def draw(world: Diagram) -> str:
    """The drawing as text, in lines of at most WIDTH characters."""
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
    """The number of items that a folded list leaves out."""

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
    """`[ 8][ 9][10][11]`; the first few and the last if there is no room for all."""
    chips = [f"[{' '.join(f'{rank:{digits}}' for rank in process.ranks)}]" for process in processes]
    if sum(map(len, chips)) <= room:
        return "".join(chips)
    most = max(2, (room - 7) // len(chips[0]))
    return f"{''.join(chips[: most - 1])} … {chips[-1]}"


# ---------------------------------------------------------------- variables

#: What a value may depend on, simplest first: the axes are (slice, host in it, process on that).
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
    """The variables and their values, grouped by what the values depend on."""
    processes = {
        (s, h, p): process.variables
        for s, row in enumerate(slices)
        for h, host in enumerate(row)
        for p, process in enumerate(host.processes)
    }
    names = list(dict.fromkeys(name for variables in processes.values() for name in variables))
    width = max(map(len, names), default=0)
    groups: dict[tuple[int, ...], list[str]] = {by: [] for by in _BY}
    for name in names:
        by, values = _dependence(
            {at: variables.get(name, "not set") for at, variables in processes.items()}
        )
        groups[by].append(f"  {name:{width}}  {_values(values, WIDTH - width - 4)}")
    for by, lines in groups.items():
        if lines:
            yield f"{_BY[by]}:"
            yield from lines


def _dependence(
    values: Mapping[tuple[int, int, int], str],
) -> tuple[tuple[int, ...], list[str]]:
    """The fewest axes that a variable's values depend on, and the value for each coordinate."""
    for by in _BY:
        distinct: dict[tuple[int, ...], str] = {}
        if all(
            distinct.setdefault(tuple(at[axis] for axis in by), value) == value
            for at, value in values.items()
        ):
            return by, list(distinct.values())
    raise AssertionError("a process has one value")


def _values(values: Sequence[str], room: int) -> str:
    """`0 | 1` or `0 … 15`; long lists inside a value are folded."""
    numbers = [str(number) for number in range(len(values))]
    if list(values) == numbers and len(values) > _VALUES:
        return f"0 … {values[-1]}"
    whole = " | ".join(values)
    if len(whole) <= room:
        return whole
    short = [", ".join(_texts(_folded(value.split(","), 3))) for value in values]
    for most in (_VALUES, 2):
        text = " | ".join(_texts(_folded(short, most)))
        if len(text) <= room:
            return text
    return shortened(text, room)


def _texts(items: Sequence[str | _More]) -> list[str]:
    return ["…" if isinstance(item, _More) else item for item in items]


# ---------------------------------------------------------------- folding


def _folded(items: Sequence[_T], most: int) -> list[_T | _More]:
    """All items; of more than `most`, the first few, the number left out, and the last."""
    if len(items) <= most:
        return list(items)
    first = max(1, most // 2)
    return [*items[:first], _More(len(items) - first - 1), items[-1]]


def _more(more: _More, noun: str) -> str:
    return f"{more.count:,} more {noun}{'s' * (more.count != 1)}"
