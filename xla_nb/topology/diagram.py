"""`%xla_topology`: slices, hosts, chips and ranks as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xla_nb.errors import UsageError
from xla_nb.topology import slices, tpu_types
from xla_nb.topology.chips import (
    SIMULATE,
    SIMULATED,
    accelerator_type,
    choose_device,
    count_chips,
    devices_per_chip,
    process_bounds,
)
from xla_nb.topology.slices import Seat
from xla_nb.wording import several, shortened, without_middle

WIDTH = 100
_HOSTS, _RANKS, _NAME = 64, 1024, 32  # at most, the last for characters of a host's name

_CHIPS = (
    "[ ] is a chip and its process, with the numbers of its ranks. Here ranks are numbered in the "
    "order of their processes; on the TPU libtpu assigns the ordinals, which may differ."
)
_CORES = "[ ] is a simulated chip and its process, with the number of its rank."


@dataclass(frozen=True)
class Process:
    """A process on its chip: where it is, and the numbers of its ranks."""

    slice: int
    host: str
    ranks: range


@dataclass(frozen=True)
class Diagram:
    """`str` gives it in lines of at most WIDTH characters."""

    title: str
    processes: Sequence[Process]
    note: str

    def __str__(self) -> str:
        note = textwrap.fill(self.note, WIDTH, break_on_hyphens=False)
        return "\n\n".join([textwrap.fill(self.title, WIDTH), "\n".join(self._hosts()), note])

    def _hosts(self) -> Iterator[str]:
        """A line for each host: `slice 0  host-0  [0][1][2][3]`."""
        name = min(_NAME, max(len(process.host) for process in self.processes))
        digits = len(str(self.processes[-1].ranks[-1]))
        places = groupby(self.processes, key=lambda process: (process.slice, process.host))
        for (number, host), processes in places:
            chips = "".join(
                f"[{' '.join(f'{rank:{digits}}' for rank in process.ranks)}]"
                for process in processes
            )
            slice_ = f"slice {number:<{len(str(self.processes[-1].slice))}}"
            yield without_middle(f"{slice_}  {shortened(host, name):{name}}  {chips}", WIDTH)


def of(
    seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str, wish: str = ""
) -> Diagram:
    """Hosts in their seats (slices.seats), with n ranks on each; `where` ends the title.

    accelerator: None for simulated hosts, which answer as the TPU of the `wish`
        (tpu_types.simulated).

    Raises UsageError where a launch on these hosts would, and if they are too many to draw.
    """
    if len(seats) > _HOSTS or len(seats) * (n or 1) > _RANKS:
        raise UsageError(
            f"{several(len(seats), 'host')} with {n or 'all their'} ranks each are too many to "
            f"draw. Draw at most {_HOSTS} hosts, and {_RANKS:,} ranks in all."
        )
    per_slice = len(seats) // (seats[-1].slice + 1)
    if accelerator:
        kind = accelerator
        chips = tpu_types.chips_per_host(accelerator, per_slice)
        process_bounds(accelerator, chips, n, hosts=len(seats))
        own = n // devices_per_chip(accelerator) if n else chips
    else:
        tpu = tpu_types.simulated(wish, n, per_slice)
        kind = f"simulated {tpu.accelerator}" if tpu else "simulated, as a CPU"
        own = tpu.ranks if tpu else n or SIMULATED
    return _drawn(seats, own, accelerator, kind, where)


def here(environ: Mapping[str, str], n: int | None) -> Diagram:
    """This machine: its chips, or a simulated host. Raises UsageError if n is not possible."""
    chips, alone = count_chips(), [Seat(slices.Host("localhost"), 0, 0, {})]
    if choose_device(environ, chips) == "CPU":
        where = "on this machine" if chips else "on this machine, which has no TPU"
        return of(alone, n, None, where, environ.get(SIMULATE, ""))
    accelerator = accelerator_type(environ)
    if process_bounds(accelerator, chips, n) and accelerator:
        return of(alone, n, accelerator, "this machine")
    return _drawn(alone, chips, accelerator, accelerator or "TPU", "this machine")


def _drawn(
    seats: Sequence[Seat], count: int, accelerator: str | None, kind: str, where: str
) -> Diagram:
    """Hosts with `count` processes each, whose ranks are numbered in their order."""
    each = devices_per_chip(accelerator)
    places = [seat for seat in seats for _ in range(count)]
    processes = [
        Process(seat.slice, seat.host.shown, range(number * each, (number + 1) * each))
        for number, seat in enumerate(places)
    ]
    ranks, several_slices = len(processes) * each, seats[-1].slice + 1
    title = (
        f"{several(ranks, 'rank')} on {several(len(seats), 'host')} in "
        f"{several(several_slices, 'slice')}, {kind}{' each' if several_slices > 1 else ''}: "
        f"{where}"
    )
    return Diagram(title, processes, _CHIPS if accelerator or kind == "TPU" else _CORES)
