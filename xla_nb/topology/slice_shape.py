"""A slice from its type alone: how many hosts it has, and the variables of each process.

The variables are exactly those that torch_xla would set (_internal/tpu.py, configure_topology). A
shape that torch_xla asks the metadata server for is left out, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xla_nb.errors import UsageError
from xla_nb.topology.chips import devices_per_chip, generation, process_bounds, slice_chips
from xla_nb.wording import several

#: Generations whose chips lie in a plane. A slice is as square as a power of two can be, according
#: to torch_xla for v2 and v3 (_ACCELERATOR_TYPE_TO_HOST_BOUNDS), Google's tables for v5e and v6e.
_FLAT = ("v2", "v3", "v5litepod", "v5e", "v6e")
#: Generations whose slices, beyond one host, are blocks whose shape is chosen at creation.
_BLOCKS = ("v4", "v5p")
_KNOWN = "v2-8, v3-32, v4-8, v5litepod-16 or v6e-64"

_PORT = 8476  # configure_topology's base_port


def hosts(accelerator: str) -> int:
    """The hosts of a slice: 4 chips each, but a v5e or v6e of up to 8 chips is one host."""
    chips = _chips(accelerator)
    one_host = 8 if generation(accelerator) in ("v5litepod", "v5e", "v6e") else 4
    return 1 if chips <= one_host else chips // 4


def processes(
    accelerator: str, addresses: Sequence[str], worker: int, n: int | None = None
) -> list[dict[str, str]]:
    """The variables of each process on host `worker` of a slice whose hosts have these addresses.

    n: ranks, on a slice that is one host; None for all chips, as always on several hosts. Raises
    UsageError otherwise. TPU_PROCESS_BOUNDS is left out if it is `unknown`.
    """
    chips = chips_per_host(accelerator, len(addresses))
    devices = devices_per_chip(accelerator)
    if n is None or n == chips * devices:
        bounds = _grid(accelerator)
    else:  # part of one host; process_bounds refuses part of several
        bounds = process_bounds(accelerator, chips, n)["TPU_PROCESS_BOUNDS"]
        chips = n // devices
    return configured(bounds, addresses, worker, chips)


def configured(
    bounds: str | None, addresses: Sequence[str], worker: int, processes: int
) -> list[dict[str, str]]:
    """What torch_xla's configure_topology and initialize_multiprocess set in each process of host
    `worker`, whose slice has these TPU_PROCESS_BOUNDS."""
    if len(addresses) == 1:
        addresses = ["localhost"]  # as get_worker_ips does
    ports = [str(_PORT + local) for local in range(processes)]
    shape = {"TPU_PROCESS_BOUNDS": bounds} if bounds else {}
    return [
        {
            "PJRT_DEVICE": "TPU",
            **shape,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": ",".join(
                f"{address}:{port}" for address in addresses for port in ports
            ),
            "CLOUD_TPU_TASK_ID": str(worker * processes + local),
            "TPU_VISIBLE_CHIPS": str(local),
            "TPU_PROCESS_PORT": ports[local],
            "PJRT_LOCAL_PROCESS_RANK": str(local),
            "PJRT_LOCAL_PROCESS_COUNT": str(processes),
        }
        for local in range(processes)
    ]


def chips_per_host(accelerator: str, count: int) -> int:
    """The chips of each of `count` hosts; raises UsageError if the slice has another number."""
    chips, expected = _chips(accelerator), hosts(accelerator)
    small = expected == 1 and count == chips // 4  # 8 chips as two machines of 4, as GKE offers
    if count != expected and not small:
        raise UsageError(
            f"A {accelerator} has {chips} chips on {several(expected, 'host')}, not {count}. Use "
            f"{several(expected, 'host')} per slice, or another type."
        )
    return chips // count


def unknown(accelerator: str) -> str:
    """What a slice's type does not determine, in a sentence; empty if it determines everything."""
    if generation(accelerator) not in _BLOCKS or hosts(accelerator) == 1:
        return ""
    return (
        f"The {_chips(accelerator)} chips of a {accelerator} form a block whose shape is chosen "
        "when the slice is created. torch_xla asks the metadata server for it and sets "
        "TPU_PROCESS_BOUNDS, which is not shown here."
    )


def _chips(accelerator: str) -> int:
    chips = slice_chips(accelerator)
    known = generation(accelerator) in (*_FLAT, *_BLOCKS)
    if not chips or not known or chips & (chips - 1):
        raise UsageError(
            f"Unknown TPU type {accelerator}. Use a type such as {_KNOWN}, or omit it on the TPU "
            "itself, where torch_xla asks the metadata server."
        )
    return chips


def _grid(accelerator: str) -> str | None:
    """The chips of a slice along x, y and z; None if the shape is `unknown`."""
    if unknown(accelerator):
        return None
    chips = _chips(accelerator)
    x = 2 ** (int(math.log2(chips)) // 2)
    return f"{x},{chips // x},1"
