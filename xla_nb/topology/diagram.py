"""`%xla_topology`: slices, hosts, chips and ranks, and the variables of each process, as text.

It shows this machine, the hosts of a cluster, or hosts on paper. The variables come from the
functions that a launch uses, so that a diagram shows what it would set.
"""

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
_CORES = (
    "[ ] is a simulated chip and its process, with the number of its rank. The variables are those "
    "that torch_xla sets on a TPU; the client that computes is the CPU's."
)
_METADATA = (
    "torch_xla sets other variables in each process of this host, such as its number in the slice; "
    "it asks the metadata server for them when a rank starts."
)


@dataclass(frozen=True)
class Process:
    """A process on its chip: where it is, the numbers of its ranks, and its variables."""

    slice: int
    host: str
    ranks: range
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Diagram:
    """`str` gives it in lines of at most WIDTH characters."""

    title: str
    processes: Sequence[Process]
    notes: Sequence[str]

    def __str__(self) -> str:
        parts = [
            textwrap.fill(self.title, WIDTH),
            "\n".join(self._hosts()),
            "\n".join(self._variables()),
            *(textwrap.fill(note, WIDTH, break_on_hyphens=False) for note in self.notes),
        ]
        return "\n\n".join(part for part in parts if part)

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

    def _variables(self) -> Iterator[str]:
        """The variables and their values, in the order of the processes."""
        names = dict.fromkeys(name for process in self.processes for name in process.variables)
        values = {
            name: list(dict.fromkeys(p.variables.get(name, "not set") for p in self.processes))
            for name in names
        }
        width = max(map(len, names), default=0)
        for heading, is_same in (("every process:", True), ("differs between processes:", False)):
            rows = {name: held for name, held in values.items() if (len(held) == 1) == is_same}
            if rows:
                yield heading
            for name, held in rows.items():
                yield without_middle(f"  {name:{width}}  {' | '.join(held)}", WIDTH)


def on_paper(
    hosts: int | None, count: int | None, n: int | None, accelerator: str | None
) -> Diagram:
    """`hosts` hosts in `count` slices of the accelerator type; without a type, simulated hosts.

    hosts None: as many as the type has, or one per slice. `n` ranks on each host; None for a rank
    on every device (simulated: SIMULATED). Raises UsageError if they do not fit.
    """
    if hosts is None:
        hosts = max(1, count or 1) * (tpu_types.hosts(accelerator) if accelerator else 1)
    _check_size(hosts, n)
    on = [slices.Host(f"host-{number}") for number in range(hosts)]
    return of(slices.seats(on, count, pod=False), n, accelerator, "on paper")


def of(
    seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str, wish: str = ""
) -> Diagram:
    """Hosts in their seats (slices.seats), with n ranks on each; `where` ends the title.

    accelerator: None for simulated hosts, which answer as the TPU of the `wish`
        (tpu_types.simulated).

    Raises UsageError where a launch on these hosts would.
    """
    _check_size(len(seats), n)
    kind = accelerator
    if accelerator:
        per_slice = len(seats) // (seats[-1].slice + 1)
        chips = tpu_types.chips_per_host(accelerator, per_slice)
        process_bounds(accelerator, chips, n, hosts=len(seats))
    processes: list[Process] = []
    for seat in seats:
        neighbors = [other.host.address for other in seats if other.slice == seat.slice]
        if accelerator:
            own = tpu_types.processes(accelerator, neighbors, seat.worker, n)
        else:
            kind, own = _simulated(wish, n, neighbors, seat.worker)
        variables = [{**seat.variables, **each} for each in own]
        _add(processes, seat.slice, seat.host.shown, variables, accelerator)
    notes = [_CHIPS if accelerator else _CORES, tpu_types.unknown(accelerator or "")]
    title = _title(processes, len(seats), kind, where)
    return Diagram(title, processes, list(filter(None, notes)))


def here(environ: Mapping[str, str], n: int | None) -> Diagram:
    """This machine: its chips, or a simulated host. Raises UsageError if n is not possible."""
    chips, alone = count_chips(), [Seat(slices.Host("localhost"), 0, 0, {})]
    if choose_device(environ, chips) == "CPU":
        where = "on this machine" if chips else "on this machine, which has no TPU"
        return of(alone, n, None, where, environ.get(SIMULATE, ""))
    accelerator = accelerator_type(environ)
    if process_bounds(accelerator, chips, n) and accelerator:
        return of(alone, n, accelerator, "this machine")
    processes: list[Process] = []
    _add(processes, 0, "localhost", [{"PJRT_DEVICE": "TPU"}] * chips, accelerator)
    title = _title(processes, 1, accelerator, "this machine")
    return Diagram(title, processes, [_CHIPS, _METADATA])


def _check_size(hosts: int, n: int | None) -> None:
    if hosts > _HOSTS or hosts * (n or 1) > _RANKS:
        raise UsageError(
            f"{several(hosts, 'host')} with {n or 'all their'} ranks each are too many to draw. "
            f"Draw at most {_HOSTS} hosts, and {_RANKS:,} ranks in all."
        )


def _simulated(
    wish: str, n: int | None, addresses: Sequence[str], worker: int
) -> tuple[str, list[dict[str, str]]]:
    """What a simulated host answers as, and the variables of each process (simulation.answers)."""
    tpu = tpu_types.simulated(wish, n, len(addresses))
    if tpu is not None:
        bounds = tpu.variables()["TPU_PROCESS_BOUNDS"]
        own = tpu_types.configured(bounds, addresses, worker, tpu.ranks)
        return f"simulated {tpu.accelerator}", own
    count = n or SIMULATED
    return "simulated, as a CPU", [
        {
            "PJRT_DEVICE": "CPU",
            "PJRT_LOCAL_PROCESS_RANK": str(local),
            "PJRT_LOCAL_PROCESS_COUNT": str(count),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(count),
        }
        for local in range(count)
    ]


def _add(
    processes: list[Process],
    slice_: int,
    host: str,
    variables: Sequence[Mapping[str, str]],
    accelerator: str | None,
) -> None:
    """Add a host's processes, which have these variables; their ranks go on from the last."""
    each = devices_per_chip(accelerator)
    for own in variables:
        first = processes[-1].ranks.stop if processes else 0
        processes.append(Process(slice_, host, range(first, first + each), own))


def _title(processes: Sequence[Process], hosts: int, kind: str | None, where: str) -> str:
    """`16 ranks on 4 hosts in 1 slice, v5litepod-16: on paper`."""
    ranks, count = processes[-1].ranks.stop, processes[-1].slice + 1
    counts = f"{several(ranks, 'rank')} on {several(hosts, 'host')} in {several(count, 'slice')}"
    return f"{counts}, {kind}{' each' if count > 1 else ''}: {where}"
