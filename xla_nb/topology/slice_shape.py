"""The chips of a slice on paper: how many hosts have them, and what each process is told.

The rule: what torch_xla would set (_internal/tpu.py, configure_topology) and nothing else. Where it
asks the metadata server for the shape of a slice, that shape is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xla_nb.errors import UsageError
from xla_nb.topology.chips import devices_per_chip, generation, process_bounds, slice_chips
from xla_nb.wording import several

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
    most = 8 if generation(accelerator) in ("v5litepod", "v5e", "v6e") else 4
    return 1 if chips <= most else chips // 4


def processes(
    accelerator: str, addresses: Sequence[str], worker: int, n: int | None = None
) -> list[dict[str, str]]:
    """The variables of each process on one host of a slice, whose hosts have these addresses.

    `n` ranks of a slice that is one host; None, and always on several hosts: all of its chips.
    TPU_PROCESS_BOUNDS is not among them where it is `unknown`.
    """
    chips = chips_per_host(accelerator, len(addresses))
    devices = devices_per_chip(accelerator)
    if n is None or n == chips * devices:
        bounds = _grid(accelerator)
    else:  # a part of one host; of several hosts there is none, and this says so
        bounds = process_bounds(accelerator, chips, n)["TPU_PROCESS_BOUNDS"]
        chips = n // devices
    if len(addresses) == 1:
        addresses = ["localhost"]  # as get_worker_ips says it
    ports = [str(_PORT + local) for local in range(chips)]
    shape = {"TPU_PROCESS_BOUNDS": bounds} if bounds else {}
    return [
        {
            "PJRT_DEVICE": "TPU",
            **shape,
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
            f"{several(has, 'host')}. What to do: name {has} to a slice, or another type"
        )
    return chips // among


def unknown(accelerator: str) -> str:
    """What cannot be told of such a slice on paper, in a sentence; empty where all can."""
    if generation(accelerator) not in _BLOCKS or hosts(accelerator) == 1:
        return ""
    return (
        f"The {_chips(accelerator)} chips of a {accelerator} form a block whose shape is chosen "
        "when the slice is made. torch_xla asks the metadata server for it and sets "
        "TPU_PROCESS_BOUNDS, which is not told here."
    )


def _chips(accelerator: str) -> int:
    chips = slice_chips(accelerator)
    known = generation(accelerator) in (*_FLAT, *_BLOCKS)
    if not chips or not known or chips & (chips - 1):
        raise UsageError(
            f"{accelerator} is no type of TPU whose slices are known here. What to do: write one "
            f"such as {_KNOWN}; on the TPU itself leave it out, and torch_xla will ask"
        )
    return chips


def _grid(accelerator: str) -> str | None:
    """The chips of a slice along x, y and z; None where `unknown` has a word to say."""
    if unknown(accelerator):
        return None
    chips = _chips(accelerator)
    x = 2 ** (int(math.log2(chips)) // 2)
    return f"{x},{chips // x},1"
