"""Facts that follow from a TPU's type: the hosts of a slice, and how a simulated host describes
itself.

Pure functions. The variables of a simulated host are those that GKE sets on a TPU host; `metadata`
gives the same answers as the metadata server of a TPU VM, which torch_xla asks first.
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

_GENERATIONS = ("v2", "v3", "v4", "v5p", *COUNTED_BY_CHIP)

#: Simulate no TPU: describe the device as torch_xla's CPU client does.
CPU = "cpu"

#: libtpu's names of chips (jax/_src/mesh_utils.py has the same names).
_KINDS = {"v4": "TPU v4", "v5p": "TPU v5", "v5litepod": "TPU v5 lite", "v6e": "TPU v6 lite"}
_CHOICES = "v4-8, v5p-8, v5litepod-8, v6e-8 or cpu"
_TYPE = "TPU_ACCELERATOR_TYPE"
_CHIPS = "TPU_CHIPS_PER_HOST_BOUNDS"
_HOSTS = "TPU_HOST_BOUNDS"

Bounds = tuple[int, int, int]


# --- a slice from its type alone --------------------------------------------------------------


def hosts(accelerator: str) -> int:
    """The number of hosts in a slice: 4 chips each, but up to 8 chips of a v5e or v6e on one."""
    chips = _chips(accelerator)
    one_host = 8 if generation(accelerator) in COUNTED_BY_CHIP else 4
    return 1 if chips <= one_host else chips // 4


def chips_per_host(accelerator: str, count: int) -> int:
    """The chips on each of `count` hosts. Raises UsageError if the slice has another number."""
    chips, expected = _chips(accelerator), hosts(accelerator)
    is_split = expected == 1 and count == chips // 4  # 8 chips as two machines of 4, as GKE offers
    if count != expected and not is_split:
        raise UsageError(
            f"A {accelerator} has {chips} chips on {several(expected, 'host')}, not {count}. Use "
            f"{several(expected, 'host')} per slice, or another type."
        )
    return chips // count


def _chips(accelerator: str) -> int:
    chips = slice_chips(accelerator)
    if not chips or generation(accelerator) not in _GENERATIONS or chips & (chips - 1):
        raise UsageError(
            f"Unknown TPU type {accelerator}. Use a type such as v2-8, v3-32, v4-8, v5litepod-16 "
            "or v6e-64, or omit it on the TPU itself, where torch_xla asks the metadata server."
        )
    return chips


# --- a simulated host -------------------------------------------------------------------------


@dataclass(frozen=True)
class SimulatedTpu:
    """The TPU of one simulated host of a slice: `ranks` use some of its `chips`."""

    accelerator: str
    chips: int
    ranks: int
    hosts: int = 1

    def variables(self) -> dict[str, str]:
        """The variables that describe it to its ranks; a host's number in its slice comes from its
        seat (slices.seats)."""
        hosts = (1, 1, self.hosts)  # simulated slices are stacks of hosts
        x, y, z = _shape(self.ranks)
        return {
            SIMULATE: self.accelerator,
            _TYPE: self.accelerator,
            _CHIPS: _format_bounds(_shape(self.chips)),
            _HOSTS: _format_bounds(hosts),
            "TPU_PROCESS_BOUNDS": _format_bounds((x, y, z * self.hosts)),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            WORKER: "0",
            WORKERS: "localhost",
        }


def simulatable(label: str, choice: str) -> str:
    """The requested type, in torch_xla's spelling, or CPU; `label` names the setting in errors.

    Raises UsageError if the type cannot be simulated."""
    kind = re.sub(r"^v5e-", "v5litepod-", choice.strip().lower())
    if kind == CPU:
        return kind
    if devices_per_chip(kind) == 2:
        raise UsageError(
            f"{label}: a process of a {kind} has two devices, but a simulated one has one. Choose "
            f"{_CHOICES}."
        )
    if generation(kind) not in _KINDS:
        raise UsageError(f"{label}: {choice!r} cannot be simulated. Choose {_CHOICES}.")
    hosts(kind)  # raises UsageError for sizes that no TPU has
    return kind


def simulated(choice: str, n: int | None, hosts: int = 1) -> SimulatedTpu | None:
    """The TPU to simulate on one of `hosts` hosts of a slice; None to simulate a CPU.

    choice: a type, CPU, or empty for the smallest with n chips: 4 of a v4, or 8 of a v5e. More
        chips on one host are also presented as a v5e, although no v5e has such a host.
    n: its ranks; None for all its chips, or SIMULATED if `choice` is empty.

    Raises UsageError if the type does not have that many hosts or chips.
    """
    choice = simulatable(SIMULATE, choice) if choice else ""
    if choice == CPU:
        return None
    if choice:
        chips = chips_per_host(choice, hosts)
        process_bounds(choice, chips, n, hosts)
        return SimulatedTpu(choice, chips, n or chips, hosts)
    ranks = n or SIMULATED
    minimum = 1 if hosts > 1 else 4 if ranks <= 4 else 8
    chips = max(ranks, minimum)
    kind = f"v4-{2 * chips * hosts}" if ranks <= 4 else f"v5litepod-{chips * hosts}"
    return SimulatedTpu(kind, chips, ranks, hosts)


def simulated_ranks(choice: str, n: int | None) -> int:
    """The number of ranks of a simulated host; n None: one per chip."""
    tpu = simulated(choice, n)
    return tpu.ranks if tpu else n or SIMULATED


# --- in a simulated rank, from its variables --------------------------------------------------


def simulated_type(environ: Mapping[str, str]) -> str:
    """The type that ranks with these variables simulate; empty for a CPU."""
    kind = environ.get(SIMULATE, "")
    return "" if kind == CPU else kind


def host_chips(environ: Mapping[str, str]) -> int:
    """The chips of the rank's host."""
    return math.prod(_parse_bounds(environ[_CHIPS]))


def tpu_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The result of torch_xla's get_tpu_env (_internal/tpu.py): a TPU VM's attribute `tpu-env`."""
    return {
        "ACCELERATOR_TYPE": environ[_TYPE],
        "TPU_PROCESS_BOUNDS": environ[_HOSTS],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": environ[_CHIPS],
        "WORKER_ID": environ[WORKER],
    }


def metadata(environ: Mapping[str, str], key: str) -> str | None:
    """The value of a TPU VM attribute that torch_xla requests from the metadata server
    (_internal/tpu.py, get_tpu_env and get_worker_ips); None for any other attribute."""
    if key == "tpu-env":
        return "".join(f"{name}: '{value}'\n" for name, value in tpu_env(environ).items())
    if key == "worker-network-endpoints":
        return ",".join(f"{name}:0:{name}" for name in environ[WORKERS].split(","))
    return None


def device_kind(accelerator: str) -> str:
    """libtpu's name for the devices of a TPU of this type."""
    return _KINDS[generation(accelerator)]


def coordinates(environ: Mapping[str, str], rank: int, ranks_here: int) -> Bounds:
    """The position of a rank's chip in its slice; chips and hosts are numbered along x first."""
    shape, hosts = _shape(ranks_here), _parse_bounds(environ[_HOSTS])
    host, local = divmod(rank % (ranks_here * math.prod(hosts)), ranks_here)
    x, y, z = (
        origin * size + chip
        for origin, size, chip in zip(_place(host, hosts), shape, _place(local, shape), strict=True)
    )
    return (x, y, z)


def _place(number: int, bounds: Bounds) -> Bounds:
    x, y, _ = bounds
    return (number % x, number // x % y, number // (x * y))


def _shape(count: int) -> Bounds:
    return _parse_bounds(PROCESS_BOUNDS.get(count, f"1,{count},1"))


def _parse_bounds(text: str) -> Bounds:
    x, y, z = map(int, text.split(","))
    return (x, y, z)


def _format_bounds(bounds: Bounds) -> str:
    return ",".join(map(str, bounds))
