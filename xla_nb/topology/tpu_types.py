"""What follows from a TPU's type: the hosts of a slice, and what a simulated host of that type
answers as.

Pure functions. The variables of a simulated host are what GKE sets on the host of a TPU; `metadata`
gives the same as the metadata server of a TPU VM does, which is what torch_xla asks first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb.errors import UsageError
from xla_nb.topology.chips import (
    COUNTED_BY_CHIP,
    PROCESS_BOUNDS,
    SIMULATE,
    SIMULATED,
    devices_per_chip,
    generation,
    process_bounds,
    slice_chips,
)
from xla_nb.topology.slices import WORKER, WORKERS
from xla_nb.wording import several

#: Generations whose chips lie in a plane. A slice is as square as a power of two can be, according
#: to torch_xla for v2 and v3 (_ACCELERATOR_TYPE_TO_HOST_BOUNDS), Google's tables for v5e and v6e.
_FLAT = ("v2", "v3", *COUNTED_BY_CHIP)
#: Generations whose slices, beyond one host, are blocks whose shape is chosen at creation.
_BLOCKS = ("v4", "v5p")

#: Answer as torch_xla's CPU client does.
CPU = "cpu"

#: What libtpu calls a chip (jax/_src/mesh_utils.py has the same names).
_KINDS = {"v4": "TPU v4", "v5p": "TPU v5", "v5litepod": "TPU v5 lite", "v6e": "TPU v6 lite"}
_CHOICES = "v4-8, v5p-8, v5litepod-8, v6e-8 or cpu"
_TYPE = "TPU_ACCELERATOR_TYPE"
_CHIPS = "TPU_CHIPS_PER_HOST_BOUNDS"
_HOSTS = "TPU_HOST_BOUNDS"

Bounds = tuple[int, int, int]


# --- a slice from its type alone --------------------------------------------------------------


def hosts(accelerator: str) -> int:
    """The hosts of a slice: 4 chips each, but a v5e or v6e of up to 8 chips is one host."""
    chips = _chips(accelerator)
    one_host = 8 if generation(accelerator) in COUNTED_BY_CHIP else 4
    return 1 if chips <= one_host else chips // 4


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


def _chips(accelerator: str) -> int:
    chips = slice_chips(accelerator)
    known = generation(accelerator) in (*_FLAT, *_BLOCKS)
    if not chips or not known or chips & (chips - 1):
        raise UsageError(
            f"Unknown TPU type {accelerator}. Use a type such as v2-8, v3-32, v4-8, v5litepod-16 "
            "or v6e-64, or omit it on the TPU itself, where torch_xla asks the metadata server."
        )
    return chips


def _square(count: int) -> Bounds:
    """A power of two in a plane, as square as can be."""
    x = 2 ** (int(math.log2(count)) // 2)
    return (x, count // x, 1)


# --- a simulated host -------------------------------------------------------------------------


@dataclass(frozen=True)
class SimulatedTpu:
    """What one of the simulated hosts of a slice answers as: `ranks` use some of its `chips`."""

    accelerator: str
    chips: int
    ranks: int
    hosts: int = 1

    def variables(self) -> dict[str, str]:
        """What describes it in the environment of its ranks; a host's number in its slice is its
        seat's (slices.seats)."""
        # Slices of v4 and v5p are stacks of hosts here.
        is_flat = generation(self.accelerator) in _FLAT and not self.hosts & (self.hosts - 1)
        hosts = _square(self.hosts) if is_flat else (1, 1, self.hosts)
        x, y, z = (a * b for a, b in zip(_shape(self.ranks), hosts, strict=True))
        return {
            SIMULATE: self.accelerator,
            _TYPE: self.accelerator,
            _CHIPS: _text(_shape(self.chips)),
            _HOSTS: _text(hosts),
            "TPU_PROCESS_BOUNDS": _text((x, y, z)),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            WORKER: "0",
            WORKERS: "localhost",
        }


def simulatable(label: str, wish: str) -> str:
    """A type that can be simulated, as torch_xla spells it, or CPU; `label` is what its user set.

    Raises UsageError."""
    kind = re.sub(r"^v5e-", "v5litepod-", wish.strip().lower())
    if kind == CPU:
        return kind
    if devices_per_chip(kind) == 2:
        raise UsageError(
            f"{label}: a process of a {kind} has two devices, but a simulated one has one. Choose "
            f"{_CHOICES}."
        )
    if generation(kind) not in _KINDS:
        raise UsageError(f"{label}: {wish!r} cannot be simulated. Choose {_CHOICES}.")
    hosts(kind)  # refuses sizes that no TPU has
    return kind


def simulated(wish: str, n: int | None, hosts: int = 1) -> SimulatedTpu | None:
    """The TPU that answers a wish, on one of `hosts` of a slice; None to answer as a CPU.

    wish: a type, CPU, or empty for the smallest that has n chips: 4 of a v4, 8 of a v5e. More than
        these on one host are said to be a v5e's too, which has no such host.
    n: its ranks; None for all its chips, of which a v4 has SIMULATED.

    Raises UsageError if the type has not that many hosts or chips.
    """
    wish = simulatable(SIMULATE, wish) if wish else ""
    if wish == CPU:
        return None
    if wish:
        chips = chips_per_host(wish, hosts)
        process_bounds(wish, chips, n, hosts)
        return SimulatedTpu(wish, chips, n or chips, hosts)
    ranks = n or SIMULATED
    least = 1 if hosts > 1 else 4 if ranks <= 4 else 8
    chips = max(ranks, least)
    kind = f"v4-{2 * chips * hosts}" if ranks <= 4 else f"v5litepod-{chips * hosts}"
    return SimulatedTpu(kind, chips, ranks, hosts)


def simulated_ranks(wish: str, n: int | None) -> int:
    """How many ranks a simulated host has; n None: as many as its chips."""
    answering = simulated(wish, n)
    return answering.ranks if answering else n or SIMULATED


# --- in a simulated rank, from its variables --------------------------------------------------


def type_answered(environ: Mapping[str, str]) -> str:
    """The type that ranks with these variables answer as; empty for a CPU."""
    kind = environ.get(SIMULATE, "")
    return "" if kind == CPU else kind


def host_chips(environ: Mapping[str, str]) -> int:
    """The chips of the rank's host."""
    return math.prod(_bounds(environ[_CHIPS]))


def tpu_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What torch_xla reads of a TPU VM's attribute `tpu-env` (_internal/tpu.py, get_tpu_env)."""
    return {
        "ACCELERATOR_TYPE": environ[_TYPE],
        "TPU_PROCESS_BOUNDS": environ[_HOSTS],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": environ[_CHIPS],
        "WORKER_ID": environ[WORKER],
    }


def metadata(environ: Mapping[str, str], key: str) -> str | None:
    """An attribute of a TPU VM that torch_xla asks the metadata server for (_internal/tpu.py,
    get_tpu_env and get_worker_ips); None for any other one."""
    if key == "tpu-env":
        return "".join(f"{name}: '{value}'\n" for name, value in tpu_env(environ).items())
    if key == "worker-network-endpoints":
        return ",".join(f"{name}:0:{name}" for name in environ[WORKERS].split(","))
    return None


def device_kind(accelerator: str) -> str:
    """What libtpu calls the devices of a TPU of this type."""
    return _KINDS[generation(accelerator)]


def coordinates(environ: Mapping[str, str], rank: int, ranks_here: int) -> Bounds:
    """Where a rank's chip is in its slice: chips are numbered along x first, hosts too."""
    own, hosts = _shape(ranks_here), _bounds(environ[_HOSTS])
    host, local = divmod(rank % (ranks_here * math.prod(hosts)), ranks_here)
    x, y, z = (
        origin * size + chip
        for origin, size, chip in zip(_at(host, hosts), own, _at(local, own), strict=True)
    )
    return (x, y, z)


def _at(number: int, bounds: Bounds) -> Bounds:
    x, y, _ = bounds
    return (number % x, number // x % y, number // (x * y))


def _shape(count: int) -> Bounds:
    return _bounds(PROCESS_BOUNDS.get(count, f"1,{count},1"))


def _bounds(text: str) -> Bounds:
    x, y, z = map(int, text.split(","))
    return (x, y, z)


def _text(bounds: Bounds) -> str:
    return ",".join(map(str, bounds))
