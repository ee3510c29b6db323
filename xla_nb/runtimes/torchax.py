"""torchax and JAX: every rank is a process of one JAX world, with one device.

On a TPU that is a chip, with JAX's CUDA plugin a card, else the CPU with gloo's collectives. The
rule: JAX is told of the world before anything opens its devices, and after the cell's imports.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xla_nb import loading, topology
from xla_nb.errors import UsageError
from xla_nb.events import ProcessDied
from xla_nb.meter import Counts, Waiting
from xla_nb.order import Order
from xla_nb.processes import Latch, fork_ranks
from xla_nb.runtimes import Machine, Place, Plan, jax_counts, jax_guard, jax_world, versions, xla

#: What the fork server imports for it; `import jax` starts no thread and opens no device.
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


def plan(machine: Machine, n: int | None) -> Plan:
    """Ranks: a TPU's chips, a GPU's cards, or SIMULATED processes on the CPU."""
    versions.check_versions()
    if machine.device == "TPU":
        sets = topology.bounds(machine.accelerator, machine.chips, n)
        return Plan(n or machine.chips, sets, IMPORTS)
    cards = _cards()
    if cards and n is not None and n > cards:
        raise UsageError(
            f"-n {n}: this machine has {cards} GPUs, and a rank has one of its own. What to do: "
            "leave -n out, or add `--env JAX_PLATFORMS=cpu` to run on the CPU"
        )
    return Plan(n or cards or xla.SIMULATED, {}, IMPORTS)


def _cards(devices: Path = Path("/dev")) -> int:
    """GPUs that JAX can use: those of the machine, if its CUDA plugin is installed."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    return sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))


def set_up() -> None:
    """A cell may call `jax.distributed.initialize`, or bind it to a name."""
    jax_guard.install()


def opened() -> str | None:
    if not jax_world.backend_started():
        return xla.opened()
    return (
        "this line opens JAX's devices before the ranks exist, and after that no rank can be "
        "started from the process. What to do: move it into the function"
    )


def prepare(order: Order) -> Processes:
    """Start the coordinator, a process of its own on the loopback interface."""
    assert order.ranks is not None
    coordinator = jax_world.Coordinator(order.ranks)
    platform = {"TPU": "tpu"}.get(order.device) or _platform(order)
    world = jax_world.World(coordinator.address, order.ranks, platform)
    wants = _wants_torchax(Path(order.program))
    return Processes(order.ranks, order.ranks, platform == "cpu", world, coordinator, wants)


def _platform(order: Order) -> str:
    wanted = order.env.get("JAX_PLATFORMS", "").partition(",")[0]
    return wanted or ("cuda" if _cards() else "cpu")


def _wants_torchax(program: Path) -> bool:
    """A cell without a function has `device`, which is torchax's."""
    table = loading.Map.open(program.with_suffix(".json"))
    return table.body is not None or jax_world.uses_torchax(program.read_text())


@dataclass(frozen=True)
class Processes:
    """The processes of one JAX world."""

    processes: int
    ranks: int
    simulated: bool
    world: jax_world.World
    coordinator: jax_world.Coordinator
    torchax: bool

    def start(
        self,
        enter: Callable[[int, int], None],
        main: Callable[[int], None],
        latch: Latch,
        tell: Callable[[ProcessDied], None],
    ) -> None:
        try:
            fork_ranks(self.ranks, enter, main, latch, tell)
        finally:
            self.coordinator.close()

    def join(self, local_rank: int, processes: int) -> None:
        jax_counts.listen()
        jax_world.join(self.world, local_rank)
        if self.torchax:
            jax_world.enable_torchax()

    def place(self, rank: int) -> Place:
        return Place(rank, self.ranks, "jax", f"{self.world.platform}:{rank}")

    def leave(self, why: str) -> None:
        jax_world.leave(why)

    def plainly(self, error: BaseException) -> BaseException:
        return jax_world.plainly(error)

    def waiting(self) -> Waiting | None:
        """A collective of JAX is part of the compiled program, out of sight."""
        return None

    def counts(self) -> Counts:
        return jax_counts.counts()

    def memory(self) -> tuple[int, int] | None:
        return jax_counts.memory()
