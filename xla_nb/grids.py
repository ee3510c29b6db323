"""The chips of a slice on paper: how many hosts have them, and what each process is told.

The rule: what torch_xla would set (_internal/tpu.py, configure_topology) and nothing else. Where it
asks the metadata server for the shape of a slice, that shape is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xla_nb import topology
from xla_nb.errors import UsageError

#: Generations whose chips lie in a plane. A slice is as square as a power of two can be: so says
#: torch_xla of v2 and v3 (_ACCELERATOR_TYPE_TO_HOST_BOUNDS), Google's tables of v5e and v6e.
_FLAT = ("v2", "v3", "v5litepod", "v5e", "v6e")
#: Those whose slices, beyond one host, are blocks of a shape that is chosen when they are made.
_BLOCKS = ("v4", "v5p")
_KNOWN = "v2-8, v3-32, v4-8, v5litepod-16 or v6e-64"

_PORT = 8476  # configure_topology's base_port


def hosts(accelerator: str) -> int:
    """The hosts of a slice: 4 chips to each, but a v5e or v6e of up to 8 is one host."""
    chips = _chips(accelerator)
    most = 8 if topology.generation(accelerator) in ("v5litepod", "v5e", "v6e") else 4
    return 1 if chips <= most else chips // 4


def processes(
    accelerator: str, addresses: Sequence[str], worker: int, n: int | None = None
) -> list[dict[str, str]]:
    """The variables of each process on one host of a slice, whose hosts have these addresses.

    `n` ranks of a slice that is one host; None, and always on several hosts: all of its chips.
    """
    chips = chips_per_host(accelerator, len(addresses))
    devices = topology.devices_per_chip(accelerator)
    if n is None or n == chips * devices:
        bounds = ",".join(map(str, _grid(accelerator)))
    else:  # a part of one host; of several hosts there is none, and this says so
        bounds = topology.bounds(accelerator, chips, n)["TPU_PROCESS_BOUNDS"]
        chips = n // devices
    if len(addresses) == 1:
        addresses = ["localhost"]  # as get_worker_ips says it
    ports = [str(_PORT + local) for local in range(chips)]
    return [
        {
            "TPU_PROCESS_BOUNDS": bounds,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": ",".join(
                f"{address}:{port}" for address in addresses for port in ports
            ),
            "CLOUD_TPU_TASK_ID": str(worker * chips + local),
            "TPU_VISIBLE_CHIPS": str(local),
            "TPU_PROCESS_PORT": ports[local],
            "PJRT_LOCAL_PROCESS_RANK": str(local),
            "PJRT_LOCAL_PROCESS_COUNT": str(chips),
        }
        for local in range(chips)
    ]


def chips_per_host(accelerator: str, among: int) -> int:
    """The chips of each of so many hosts; raises UsageError where the slice has other hosts."""
    chips, has = _chips(accelerator), hosts(accelerator)
    small = has == 1 and among == chips // 4  # 8 chips as two machines of 4: GKE has them
    if among != has and not small:
        raise UsageError(
            f"a slice of {among} hosts: a {accelerator} has {chips} chips on "
            f"{has} host{'s' * (has > 1)}. What to do: name {has} to a slice, or another type"
        )
    return chips // among


def _chips(accelerator: str) -> int:
    chips = topology.slice_chips(accelerator)
    known = topology.generation(accelerator) in (*_FLAT, *_BLOCKS)
    if not chips or not known or chips & (chips - 1):
        raise UsageError(
            f"{accelerator} is no type of TPU whose slices are known here. What to do: write one "
            f"such as {_KNOWN}; on the TPU itself leave it out, and torch_xla will ask"
        )
    return chips


def _grid(accelerator: str) -> tuple[int, int, int]:
    """The chips of a slice along x, y and z."""
    chips = _chips(accelerator)
    if not _flat(accelerator) and hosts(accelerator) > 1:
        raise UsageError(
            f"the {chips} chips of a {accelerator} form a block whose shape is chosen when the "
            "slice is made, and torch_xla asks the metadata server for it: TPU_PROCESS_BOUNDS "
            f"cannot be told on paper. What to do: look at it on the TPU itself, or take a type "
            f"whose slices are flat, such as v5litepod-16"
        )
    x = 2 ** (int(math.log2(chips)) // 2)
    return x, chips // x, 1


def _flat(accelerator: str) -> bool:
    return topology.generation(accelerator) in _FLAT
