"""torchax and JAX: every rank is a process of one JAX world, with one device.

The device is a TPU chip, a GPU if JAX's CUDA plugin is installed, or else the CPU with gloo's
collectives. Ranks join the world after the cell's imports, before anything opens devices.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xla_nb.errors import UsageError
from xla_nb.protocol.order import Order
from xla_nb.record.files import Record
from xla_nb.runtimes import (
    Machine,
    Plan,
    RankInfo,
    jax_counts,
    jax_guard,
    jax_world,
    torchax_versions,
    xla,
)
from xla_nb.runtimes.forking import Lifecycle, fork_ranks
from xla_nb.runtimes.gauges import Counts, PendingCollective
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE, devices_per_chip, process_bounds, require_one_host
from xla_nb.wording import listed, several

#: Imported by the fork server; `import jax` starts no thread and opens no device. torchax and its
#: modules, and torch's, only where torchax is installed.
IMPORTS = (
    "jax",
    "jax.experimental.multihost_utils",
    "torchax",
    "torchax.interop",
    "torchax.ops.jaten",
    "torchax.ops.jtorch",
    "torchax.decompositions",
    "torch._dynamo",  # torch 2.11 imports it at the first operation that torchax sees
    "xla_nb.runtimes.torchax",
)
_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}


def plan(machine: Machine, n: int | None) -> Plan:
    """A rank for each TPU chip or GPU, or for each simulated chip on the CPU."""
    notices = torchax_versions.check_versions()
    is_there = torchax_versions.imported() is not None
    imports = tuple(name for name in IMPORTS if is_there or not name.startswith("torch"))
    platform = _platform(machine.device, machine.variable)
    if platform == "tpu":
        return Plan(*_on_chips(machine, n), imports, notices)
    gpus = _gpus(machine.variable("CUDA_VISIBLE_DEVICES")) if platform == "cuda" else 0
    if gpus and n is not None and n > gpus:
        raise UsageError(
            f"-n {n} exceeds the {several(gpus, 'visible GPU')}, and each rank needs its own. "
            "Remove -n, or add `--env JAX_PLATFORMS=cpu` to run on the CPU."
        )
    ranks = n or gpus or tpu_types.simulated_ranks(machine.variable(SIMULATE), n)
    return Plan(ranks, {}, imports, notices)


def _on_chips(machine: Machine, n: int | None) -> tuple[int, Mapping[str, str]]:
    """The number of ranks, and the variables for their chips."""
    if machine.hosts == 1:
        require_one_host(machine.accelerator, machine.chips, "torchax")
    if devices_per_chip(machine.accelerator) > 1:
        raise UsageError(
            "--runtime torchax needs chips with one device, but a chip of a "
            f"{machine.accelerator} has two. Use --runtime xla, or a newer TPU."
        )
    sets = process_bounds(machine.accelerator, machine.chips, n, machine.hosts)
    return n or machine.chips, sets


def _platform(device: str, variable: Callable[[str], str]) -> str:
    """The first platform of JAX_PLATFORMS; otherwise the TPU, the GPUs or the CPU."""
    choice = variable("JAX_PLATFORMS").partition(",")[0]
    if choice and choice not in _PLATFORMS:
        raise UsageError(
            f"Unknown platform JAX_PLATFORMS={choice}. Choose {listed(_PLATFORMS, 'or')}."
        )
    if choice:
        return _PLATFORMS[choice]
    if device == "TPU":
        return "tpu"
    return "cuda" if _gpus(variable("CUDA_VISIBLE_DEVICES")) else "cpu"


def _gpus(visible: str, devices: Path = Path("/dev")) -> int:
    """The number of visible GPUs, if JAX's CUDA plugin is installed."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    installed = sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    return min(installed, len(visible.split(","))) if visible else installed


def warm_up() -> None:
    """Nothing that could be done before there is a device."""


def set_up() -> None:
    """Guard `jax.distributed.initialize`, which a cell may call or bind; and read JAX's variables
    again, because its import came before this launch's environment."""
    jax_guard.install()
    jax_world.read_variables()


def opened() -> str | None:
    if not jax_world.backend_started():
        return xla.opened() if "torch_xla" in sys.modules else None
    return (
        "this line opens JAX's devices before the ranks exist, and then the process can no longer "
        "start ranks. Move the line into the function."
    )


def prepare(order: Order) -> Processes:
    """Start the coordinator, a process of its own on the first host."""
    assert order.ranks is not None
    here, ranks = order.host_group, order.ranks
    host, port = here.address or (jax_world.LOOPBACK, 0)
    size = here.hosts * ranks
    coordinator = jax_world.Coordinator(size, host, port) if here.index == 0 else None
    platform = _platform(order.device, lambda name: order.env.get(name, ""))
    address = coordinator.address if coordinator else f"{host}:{port}"
    world = jax_world.World(address, size, platform, ranks)
    others = Record(order.request.record).others_ended if here.hosts > 1 else None
    return Processes(ranks, here.index * ranks, world, coordinator, others)


@dataclass(frozen=True)
class Processes:
    """This host's processes of one JAX world, the ranks from `first` on.

    `others` is a file that appears when the ranks of all other hosts have ended.
    """

    ranks: int
    first: int
    world: jax_world.World
    coordinator: jax_world.Coordinator | None
    others: Path | None
    simulated: bool = False  # its ranks are JAX's own processes, on the CPU too
    compilations: jax_counts.Compilations = field(default_factory=jax_counts.Compilations)

    def start(self, life: Lifecycle) -> None:
        try:
            fork_ranks(self.ranks, life, self.first)
        finally:
            if self.coordinator is not None:
                while self.others is not None and not self.others.exists():
                    time.sleep(0.02)
                self.coordinator.close()

    def join(self, local_rank: int, processes: int) -> None:
        self.compilations.listen()
        jax_world.join(self.world, self.first + local_rank)
        jax_world.enable_torchax()

    def rank_info(self, rank: int) -> RankInfo:
        name = f"{self.world.platform}:{rank}"
        return RankInfo(rank - self.first, self.world.ranks, "jax", name)

    def begin(self, number: int, members: Iterable[int] | None) -> None:
        """Nothing: JAX's collectives are part of the compiled program, which does not know."""

    def leave(self, reason: str) -> None:
        jax_world.leave(reason)

    def consequence(self, error: BaseException) -> BaseException | None:
        return jax_world.consequence(error)

    def waiting(self) -> PendingCollective | None:
        """Not visible: JAX's collectives are part of the compiled program."""
        return None

    def waited(self) -> float | None:
        return None

    def executed(self) -> int | None:
        """JAX counts compilations only."""
        return None

    def counts(self) -> Counts:
        return self.compilations.counts()

    def memory(self) -> tuple[int, int] | None:
        return jax_counts.memory()
