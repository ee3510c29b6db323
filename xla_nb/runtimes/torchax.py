"""torchax and JAX: every rank is a process of one JAX world, with one device.

On a TPU that is a chip, with JAX's CUDA plugin a card, else the CPU with gloo's collectives. The
rule: JAX is told of the world before anything opens its devices, and after the cell's imports.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from xla_nb.errors import UsageError
from xla_nb.program.module_file import ModuleMap
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
from xla_nb.topology.chips import SIMULATED, devices_per_chip, process_bounds, require_one_host

#: What its fork server imports; `import jax` starts no thread and opens no device.
IMPORTS = (
    "jax",
    "jax.experimental.multihost_utils",
    "torchax",
    "torchax.interop",
    "torchax.ops.jaten",
    "torchax.ops.jtorch",
    "torchax.decompositions",
    "xla_nb.runtimes.torchax",
)
_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}


def plan(machine: Machine, n: int | None) -> Plan:
    """Ranks: a TPU's chips, a GPU's cards, or SIMULATED processes on the CPU."""
    torchax_versions.check_versions()
    platform = _platform(machine.device, machine.variable)
    if platform == "tpu":
        return _plan_tpu(machine, n)
    cards = _cards(machine.variable("CUDA_VISIBLE_DEVICES")) if platform == "cuda" else 0
    if cards and n is not None and n > cards:
        raise UsageError(
            f"-n {n}: there are {cards} GPUs to be seen, and a rank has its own. What to do: "
            "leave -n out, or add `--env JAX_PLATFORMS=cpu` to run on the CPU"
        )
    return Plan(n or cards or SIMULATED, {}, IMPORTS)


def _plan_tpu(machine: Machine, n: int | None) -> Plan:
    if machine.hosts == 1:
        require_one_host(machine.accelerator, machine.chips, "torchax")
    if devices_per_chip(machine.accelerator) > 1:
        raise UsageError(
            f"--runtime torchax gives a process one device, and a chip of a {machine.accelerator} "
            "has two. What to do: use --runtime xla, or a newer TPU"
        )
    sets = process_bounds(machine.accelerator, machine.chips, n, machine.hosts)
    return Plan(n or machine.chips, sets, IMPORTS)


def _platform(device: str, variable: Callable[[str], str]) -> str:
    """What JAX_PLATFORMS says first; else the TPU, the GPUs or the CPU."""
    wanted = variable("JAX_PLATFORMS").partition(",")[0]
    if wanted and wanted not in _PLATFORMS:
        raise UsageError(f"JAX_PLATFORMS={wanted}: there are {', '.join(_PLATFORMS)}")
    found = "tpu" if device == "TPU" else "cuda" if _cards(variable("CUDA_VISIBLE_DEVICES")) else ""
    return _PLATFORMS.get(wanted) or found or "cpu"


def _cards(visible: str, devices: Path = Path("/dev")) -> int:
    """GPUs that JAX can use: those to be seen, if its CUDA plugin is installed."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    there = sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    return min(there, len(visible.split(","))) if visible else there


def set_up() -> None:
    """A cell may call `jax.distributed.initialize`, or bind it to a name; and JAX has read its
    variables when it was imported, before those of this launch were there."""
    jax_guard.install()
    jax_world.read_variables()


def opened() -> str | None:
    if not jax_world.backend_started():
        return xla.opened() if "torch_xla" in sys.modules else None
    return (
        "this line opens JAX's devices before the ranks exist, and after that no rank can be "
        "started from the process. What to do: move it into the function"
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
    wants = _wants_torchax(Path(order.request.program))
    others = Record(Path(order.request.record)).others_ended if here.hosts > 1 else None
    return Processes(ranks, here.index * ranks, world, coordinator, others, wants)


def _wants_torchax(program: Path) -> bool:
    """A cell without a function has `device`, which is torchax's."""
    table = ModuleMap.open(program)
    return table.body is not None or jax_world.uses_torchax(program.read_text())


@dataclass(frozen=True)
class Processes:
    """This host's processes of one JAX world, the ranks from `first` on.

    `others`: the file that says that the ranks of all other hosts have ended.
    """

    ranks: int
    first: int
    world: jax_world.World
    coordinator: jax_world.Coordinator | None
    others: Path | None
    torchax: bool
    simulated: bool = False  # its ranks are JAX's own processes, on the CPU too
    heard: jax_counts.Heard = field(default_factory=jax_counts.Heard)

    def start(self, life: Lifecycle) -> None:
        try:
            fork_ranks(self.ranks, life, self.first)
        finally:
            if self.coordinator is not None:
                while self.others is not None and not self.others.exists():
                    time.sleep(0.02)
                self.coordinator.close()

    def join(self, local_rank: int, processes: int) -> None:
        self.heard.listen()
        jax_world.join(self.world, self.first + local_rank)
        if self.torchax:
            jax_world.enable_torchax()

    def place(self, rank: int) -> RankInfo:
        name = f"{self.world.platform}:{rank}"
        return RankInfo(rank - self.first, self.world.ranks, "jax", name)

    def leave(self, why: str) -> None:
        jax_world.leave(why)

    def consequence(self, error: BaseException) -> BaseException | None:
        return jax_world.consequence(error)

    def waiting(self) -> PendingCollective | None:
        """A collective of JAX is part of the compiled program, out of sight."""
        return None

    def counts(self) -> Counts:
        return self.heard.counts()

    def memory(self) -> tuple[int, int] | None:
        return jax_counts.memory()
