"""The TPU that a simulated host answers as: its type, and the variables that describe it to ranks.

Pure functions. The variables are those that GKE sets on the host of a TPU; `metadata` gives the
same as the metadata server of a TPU VM does, which is what torch_xla asks first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb.errors import UsageError
from xla_nb.topology import slice_shape
from xla_nb.topology.chips import (
    PROCESS_BOUNDS,
    SIMULATE,
    SIMULATED,
    devices_per_chip,
    generation,
    process_bounds,
)
from xla_nb.topology.slices import WORKER, WORKERS

#: Answer as torch_xla's CPU client does.
CPU = "cpu"

#: What libtpu calls a chip (jax/_src/mesh_utils.py has the same names).
_KINDS = {"v4": "TPU v4", "v5p": "TPU v5", "v5litepod": "TPU v5 lite", "v6e": "TPU v6 lite"}
_CHOICES = "v4-8, v5p-8, v5litepod-8, v6e-8 or cpu"
_TYPE = "TPU_ACCELERATOR_TYPE"
_CHIPS = "TPU_CHIPS_PER_HOST_BOUNDS"
_HOSTS = "TPU_HOST_BOUNDS"

Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class SimulatedTpu:
    """What one of the simulated hosts of a slice answers as: `ranks` use some of its `chips`."""

    accelerator: str
    chips: int
    ranks: int
    hosts: int = 1

    @property
    def _bounds(self) -> Bounds:
        """The hosts of the slice along x, y and z. Slices of v4 and v5p are stacks of hosts here;
        those of v5e and v6e are as square as can be, as Google's tables have them."""
        flat = generation(self.accelerator) in ("v5litepod", "v6e")
        x = 2 ** (int(math.log2(self.hosts)) // 2)
        if flat and self.hosts % x == 0:
            return (x, self.hosts // x, 1)
        return (1, 1, self.hosts)

    def variables(self) -> dict[str, str]:
        """What describes it in the environment of its ranks; a host's number in its slice is its
        seat's (slices.seats)."""
        hosts = self._bounds
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


def known(label: str, wish: str) -> str:
    """A type that can be simulated, as torch_xla spells it, or CPU; `label` is what its user set.

    Raises UsageError."""
    kind = re.sub(r"^v5e-", "v5litepod-", wish.strip().lower())
    if kind == CPU:
        return kind
    if devices_per_chip(kind) == 2:
        raise UsageError(
            f"{label}: a process of a {kind} has two devices, and a simulated one has one. Choose "
            f"{_CHOICES}."
        )
    if generation(kind) not in _KINDS:
        raise UsageError(f"{label}: {wish!r} cannot be simulated. Choose {_CHOICES}.")
    slice_shape.hosts(kind)  # refuses sizes that no TPU has
    return kind


def tpu(wish: str, n: int | None, hosts: int = 1) -> SimulatedTpu | None:
    """The TPU that answers a wish, on one of `hosts` of a slice; None to answer as a CPU.

    wish: a type, CPU, or empty for the smallest that has n chips: 4 of a v4, 8 of a v5e. More than
        these on one host are said to be a v5e's too, which has no such host.
    n: its ranks; None for all its chips, of which a v4 has SIMULATED.

    Raises UsageError if the type has not that many hosts or chips.
    """
    wish = known(SIMULATE, wish) if wish else ""
    if wish == CPU:
        return None
    if wish:
        chips = slice_shape.chips_per_host(wish, hosts)
        process_bounds(wish, chips, n, hosts)
        return SimulatedTpu(wish, chips, n or chips, hosts)
    ranks = n or SIMULATED
    least = 1 if hosts > 1 else 4 if ranks <= 4 else 8
    chips = max(ranks, least)
    kind = f"v4-{2 * chips * hosts}" if ranks <= 4 else f"v5litepod-{chips * hosts}"
    return SimulatedTpu(kind, chips, ranks, hosts)


def ranks(wish: str, n: int | None) -> int:
    """How many ranks a simulated host has; n None: as many as its chips."""
    answering = tpu(wish, n)
    return answering.ranks if answering else n or SIMULATED


# ---------------------------------------------------------------- in a rank, from its variables


def type_answered(environ: Mapping[str, str]) -> str:
    """The type that ranks with these variables answer as; empty for a CPU."""
    kind = environ.get(SIMULATE, "")
    return "" if kind == CPU else kind


def chips(environ: Mapping[str, str]) -> int:
    """The chips of the rank's host."""
    return math.prod(_bounds(environ[_CHIPS]))


def metadata(environ: Mapping[str, str], key: str) -> str | None:
    """An attribute of a TPU VM that torch_xla asks the metadata server for (_internal/tpu.py,
    get_tpu_env and get_worker_ips); None for any other one."""
    if key == "tpu-env":
        own = {
            "ACCELERATOR_TYPE": environ[_TYPE],
            "TPU_PROCESS_BOUNDS": environ[_HOSTS],
            "TPU_CHIPS_PER_PROCESS_BOUNDS": environ[_CHIPS],
            "WORKER_ID": environ[WORKER],
        }
        return "".join(f"{name}: '{value}'\n" for name, value in own.items())
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
