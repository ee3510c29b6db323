"""The content of a drawing: this machine, the hosts of a cluster, or hosts on paper.

The variables come from the functions that a launch uses, so that a drawing shows what it would set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xla_nb.errors import UsageError
from xla_nb.topology import simulated, slice_shape, slices
from xla_nb.topology.chips import (
    SIMULATE,
    SIMULATED,
    accelerator_type,
    choose_device,
    count_chips,
    devices_per_chip,
    process_bounds,
)
from xla_nb.topology.drawing import Diagram, DiagramHost, DiagramProcess
from xla_nb.topology.slices import Seat
from xla_nb.wording import several

_CHIPS = (
    "[ ] is a chip and its process, with the numbers of its ranks. Here ranks are numbered in the "
    "order of their processes; on the TPU libtpu assigns the ordinals, which may differ."
)
_CORES = (
    "[ ] is a simulated chip and its process, with the number of its rank. The variables are those "
    "that torch_xla sets on a TPU; the client that computes is the CPU's."
)
_HOSTS, _RANKS = 2_000, 100_000  # the most that are drawn, which takes seconds
_METADATA = (
    "torch_xla sets other variables in each process of this host, such as its number in the slice; "
    "it asks the metadata server for them when a rank starts."
)


def on_paper(
    hosts: int | None, count: int | None, n: int | None, accelerator: str | None
) -> Diagram:
    """`hosts` hosts in `count` slices of the accelerator type; without a type, simulated hosts.

    hosts None: as many as the type has, or one per slice. `n` ranks on each host; None for a rank
    on every device (simulated: SIMULATED). Raises UsageError if they do not fit.
    """
    if hosts is None:
        hosts = max(1, count or 1) * (slice_shape.hosts(accelerator) if accelerator else 1)
    _check_size(hosts, n)
    seated = slices.seats(
        [slices.Host(f"host-{number}") for number in range(hosts)], count, pod=False
    )
    return _diagram(seated, n, accelerator, "on paper")


def _check_size(hosts: int, n: int | None) -> None:
    if hosts > _HOSTS or hosts * (n or 1) > _RANKS:
        raise UsageError(
            f"{several(hosts, 'host')} with {n or 'all their'} ranks each are too many to draw. "
            f"Draw at most {_HOSTS:,} hosts, and {_RANKS:,} ranks in all."
        )


def of(
    seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str, wish: str = ""
) -> Diagram:
    """Hosts in their seats (slices.seats), with n ranks on each; `where` ends the title.

    accelerator: None for simulated hosts, which answer as the TPU of the `wish` (simulated.tpu).

    Raises UsageError where a launch on these hosts would.
    """
    if accelerator:
        per_slice = len(seats) // (seats[-1].slice + 1)
        chips = slice_shape.chips_per_host(accelerator, per_slice)
        process_bounds(accelerator, chips, n, hosts=len(seats))
    return _diagram(seats, n, accelerator, where, wish)


def _diagram(
    seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str, wish: str = ""
) -> Diagram:
    kind = accelerator
    rows: list[list[DiagramHost]] = [[] for _ in range(seats[-1].slice + 1)]
    first = 0
    for seat in seats:
        neighbors = [other.host.address for other in seats if other.slice == seat.slice]
        if accelerator:
            own = slice_shape.processes(accelerator, neighbors, seat.worker, n)
        else:
            kind, own = _simulated(wish, n, neighbors, seat.worker)
        processes = [{**seat.variables, **variables} for variables in own]
        rows[seat.slice].append(_host(seat.host.shown, processes, first, accelerator))
        first += len(processes) * devices_per_chip(accelerator)
    notes = [_CHIPS if accelerator else _CORES, slice_shape.unknown(accelerator or "")]
    return Diagram(_title(rows, kind, where), rows, list(filter(None, notes)))


def here(environ: Mapping[str, str], n: int | None) -> Diagram:
    """This machine: its chips, or a simulated host. Raises UsageError if n is not possible."""
    _check_size(1, n)
    chips = count_chips()
    if choose_device(environ, chips) == "CPU":
        kind, own = _simulated(environ.get(SIMULATE, ""), n, ["localhost"], 0)
        rows = [[_host("localhost", own, 0, None)]]
        where = "on this machine" if chips else "on this machine, which has no TPU"
        return Diagram(_title(rows, kind, where), rows, [_CORES])
    accelerator = accelerator_type(environ)
    bounds = process_bounds(accelerator, chips, n)
    processes = [{"PJRT_DEVICE": "TPU"}] * chips
    if bounds and accelerator:
        processes = slice_shape.processes(accelerator, ["localhost"], 0, n)
    rows = [[_host("localhost", processes, 0, accelerator)]]
    notes = [_CHIPS] if bounds else [_CHIPS, _METADATA]
    return Diagram(_title(rows, accelerator, "this machine"), rows, notes)


def _simulated(
    wish: str, n: int | None, addresses: Sequence[str], worker: int
) -> tuple[str, list[dict[str, str]]]:
    """What a simulated host answers as, and the variables of each process (simulation.answers)."""
    tpu = simulated.tpu(wish, n, len(addresses))
    if tpu is not None:
        bounds = tpu.variables()["TPU_PROCESS_BOUNDS"]
        return f"simulated {tpu.accelerator}", slice_shape.configured(
            bounds, addresses, worker, tpu.ranks
        )
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


def _host(
    name: str, processes: Sequence[Mapping[str, str]], first: int, accelerator: str | None
) -> DiagramHost:
    """A host whose processes have these variables; `first` is the number of its first rank."""
    each = devices_per_chip(accelerator)
    starts = range(first, first + each * len(processes), each)
    return DiagramHost(
        name,
        [
            DiagramProcess(range(start, start + each), variables)
            for start, variables in zip(starts, processes, strict=True)
        ],
    )


def _title(rows: Sequence[Sequence[DiagramHost]], kind: str | None, where: str) -> str:
    """`16 ranks on 4 hosts in 1 slice, v5litepod-16: on paper`."""
    ranks = rows[-1][-1].processes[-1].ranks[-1] + 1
    hosts = sum(map(len, rows))
    counts = f"{several(ranks, 'rank')} on {several(hosts, 'host')} in "
    each = " each" if len(rows) > 1 else ""
    return f"{counts}{several(len(rows), 'slice')}, {kind}{each}: {where}"
