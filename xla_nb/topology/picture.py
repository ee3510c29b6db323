"""What there is to draw of a topology: this machine, hosts that are known, or some on paper.

The rule: the variables in a drawing come from the functions that a launch has them from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xla_nb.topology import slice_shape, slices
from xla_nb.topology.chips import (
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
    "[ ] is a chip and the process that has it, with its ranks. They are numbered here as the "
    "processes are; a rank's ordinal on the TPU comes from libtpu, which need not count alike."
)
_CORES = (
    "[ ] is a simulated core and its process, with the number of its rank. On a TPU torch_xla "
    "would also set TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS, TPU_PROCESS_ADDRESSES, "
    "TPU_PROCESS_PORT, TPU_VISIBLE_CHIPS and CLOUD_TPU_TASK_ID in each process: "
    "`%xla_topology --dry-run --accelerator v5litepod-16`, say, shows them."
)
_ASKED = (
    "What else torch_xla sets in each process of this host, such as its place among the hosts of "
    "the slice, it asks the metadata server when a rank starts."
)


def on_paper(
    hosts: int | None, count: int | None, n: int | None, accelerator: str | None
) -> Diagram:
    """So many hosts in so many slices, each slice of that type; without one, simulated hosts of n
    ranks. Hosts None: as many as the type has, or one to a slice."""
    if hosts is None:
        hosts = max(1, count or 1) * (slice_shape.hosts(accelerator) if accelerator else 1)
    seated = slices.seats(
        [slices.Host(f"host-{number}") for number in range(hosts)], count, pod=False
    )
    return _diagram(seated, n, accelerator, "on paper")


def of(seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str) -> Diagram:
    """Hosts in their seats (slices.seats), with n ranks on each; `where` ends the title.

    Raises UsageError where a launch on these hosts would.
    """
    if accelerator:
        per_slice = len(seats) // (seats[-1].slice + 1)
        chips = slice_shape.chips_per_host(accelerator, per_slice)
        process_bounds(accelerator, chips, n, hosts=len(seats))
    return _diagram(seats, n, accelerator, where)


def _diagram(seats: Sequence[Seat], n: int | None, accelerator: str | None, where: str) -> Diagram:
    rows: list[list[DiagramHost]] = [[] for _ in range(seats[-1].slice + 1)]
    first = 0
    for seat in seats:
        if accelerator:
            neighbours = [one.host.address for one in seats if one.slice == seat.slice]
            own = slice_shape.processes(accelerator, neighbours, seat.worker, n)
        else:
            own = _simulated(n)
        told = [{**seat.variables, **variables} for variables in own]
        rows[seat.slice].append(_host(seat.host.shown, told, first, accelerator))
        first += len(told) * devices_per_chip(accelerator)
    notes = [_CHIPS if accelerator else _CORES, slice_shape.unknown(accelerator or "")]
    return Diagram(_title(rows, accelerator, where), rows, list(filter(None, notes)))


def here(environ: Mapping[str, str], n: int | None) -> Diagram:
    """This machine: its chips, or a simulated host."""
    chips = count_chips()
    if choose_device(environ, chips) == "CPU":
        rows = [[_host("localhost", _simulated(n), 0, None)]]
        return Diagram(_title(rows, None, "on this machine, which has no TPU"), rows, [_CORES])
    accelerator = accelerator_type(environ)
    known = process_bounds(accelerator, chips, n)
    told = [{"PJRT_DEVICE": "TPU"}] * chips
    if known and accelerator:
        told = slice_shape.processes(accelerator, ["localhost"], 0, n)
    rows = [[_host("localhost", told, 0, accelerator)]]
    notes = [_CHIPS] if known else [_CHIPS, _ASKED]
    return Diagram(_title(rows, accelerator, "this machine"), rows, notes)


def _simulated(n: int | None) -> list[dict[str, str]]:
    """What each process of a simulated host is told (simulation.host, configure_multiprocess)."""
    count = SIMULATED if n is None else n
    return [
        {
            "PJRT_DEVICE": "CPU",
            "PJRT_LOCAL_PROCESS_RANK": str(local),
            "PJRT_LOCAL_PROCESS_COUNT": str(count),
        }
        for local in range(count)
    ]


def _host(
    name: str, told: Sequence[Mapping[str, str]], first: int, accelerator: str | None
) -> DiagramHost:
    """A host whose processes are told this; `first` is the number of its first rank."""
    each = devices_per_chip(accelerator)
    starts = range(first, first + each * len(told), each)
    return DiagramHost(
        name,
        [
            DiagramProcess(range(start, start + each), one)
            for start, one in zip(starts, told, strict=True)
        ],
    )


def _title(rows: Sequence[Sequence[DiagramHost]], accelerator: str | None, where: str) -> str:
    """`16 ranks on 4 hosts in 1 slice, v5litepod-16: on paper`."""
    ranks = rows[-1][-1].processes[-1].ranks[-1] + 1
    hosts = sum(map(len, rows))
    counts = f"{several(ranks, 'rank')} on {several(hosts, 'host')} in "
    kind = accelerator or "simulated"
    each = " each" if accelerator and len(rows) > 1 else ""
    return f"{counts}{several(len(rows), 'slice')}, {kind}{each}: {where}"
