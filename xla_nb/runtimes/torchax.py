"""torchax and JAX: every rank is a process of one JAX world and has one device.

The device is a TPU chip, a GPU if JAX's CUDA plugin is installed, or else the CPU with gloo's
collectives. Ranks join the world after the cell's imports, before anything opens devices.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType

from packaging.version import Version

from xla_nb.errors import LaunchError, UsageError
from xla_nb.messages.orders import Order
from xla_nb.record.files import Record
from xla_nb.runtimes import Counts, Machine, Plan, Prepared, RankInfo, jax_world, xla
from xla_nb.runtimes.forking import Lifecycle, fork_ranks
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE, devices_per_chip, process_bounds, require_one_host
from xla_nb.wording import listed, several

#: Imported by the fork server; `import jax` starts no thread and opens no device. The modules of
#: torchax and torch are imported only if torchax is installed.
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
    """Plan a rank for each TPU chip or GPU, or for each simulated chip on the CPU."""
    notices = check_versions()
    is_installed = _imported_version() is not None
    imports = tuple(name for name in IMPORTS if is_installed or not name.startswith("torch"))
    platform = _platform(machine.device, machine.variable)
    if platform == "tpu":
        if machine.hosts == 1:
            require_one_host(machine.accelerator, machine.chips, "torchax")
        if devices_per_chip(machine.accelerator) > 1:
            raise UsageError(
                "--runtime torchax needs chips with one device, but a chip of a "
                f"{machine.accelerator} has two. Use --runtime xla, or a newer TPU."
            )
        sets = process_bounds(machine.accelerator, machine.chips, n, machine.hosts)
        return Plan(n or machine.chips, sets, imports, notices)
    gpus = _count_gpus(machine.variable("CUDA_VISIBLE_DEVICES")) if platform == "cuda" else 0
    if gpus and n is not None and n > gpus:
        raise UsageError(
            f"-n {n} exceeds the {several(gpus, 'visible GPU')}, and each rank needs its own. "
            "Remove -n, or add `--env JAX_PLATFORMS=cpu` to run on the CPU."
        )
    ranks = n or gpus or tpu_types.simulated_ranks(machine.variable(SIMULATE), n)
    return Plan(ranks, {}, imports, notices)


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
    return "cuda" if _count_gpus(variable("CUDA_VISIBLE_DEVICES")) else "cpu"


def _count_gpus(visible: str, devices: Path = Path("/dev")) -> int:
    """The number of visible GPUs, if JAX's CUDA plugin is installed."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    installed = sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    return min(installed, len(visible.split(","))) if visible else installed


def set_up(order: Order) -> None:
    """Guard `jax.distributed.initialize`, which a cell may call or bind; and read JAX's variables
    again, because JAX was imported before this launch's environment was set."""
    jax_world.install_guard(_world_size(order))
    jax_world.read_variables()


def opened() -> str | None:
    if not jax_world.backend_started():
        return xla.opened() if "torch_xla" in sys.modules else None
    return (
        "A value from the notebook, or a module that it needs, opens JAX's devices before the "
        "ranks exist; after that, the process cannot start ranks. Create or import it in the "
        "function."
    )


def _world_size(order: Order) -> int:
    assert order.ranks is not None
    return order.host_group.hosts * order.ranks


def prepare(order: Order) -> Processes:
    """Start the coordinator, a separate process on the first host."""
    assert order.ranks is not None
    here, ranks = order.host_group, order.ranks
    host, port = here.address or (jax_world.LOOPBACK, 0)
    size = _world_size(order)
    coordinator = jax_world.Coordinator(size, host, port) if here.index == 0 else None
    platform = _platform(order.device, lambda name: order.env.get(name, ""))
    address = coordinator.address if coordinator else f"{host}:{port}"
    world = jax_world.World(address, size, platform, ranks)
    others = Record(order.request.record).others_ended if here.hosts > 1 else None
    return Processes(ranks, here.index * ranks, world, coordinator, others)


@dataclass(frozen=True)
class Processes(Prepared):
    """This host's processes of one JAX world, the ranks from `first` on.

    `others` is a file that appears when the ranks of all other hosts have ended.
    """

    ranks: int
    first: int
    world: jax_world.World
    coordinator: jax_world.Coordinator | None
    others: Path | None
    compiled: list[float] = field(default_factory=list)  # seconds of each compilation so far

    def start(self, life: Lifecycle) -> None:
        try:
            fork_ranks(self.ranks, life, self.first)
        finally:
            if self.coordinator is not None:
                while self.others is not None and not self.others.exists():
                    time.sleep(0.02)
                self.coordinator.close()

    def join(self, local_rank: int, processes: int) -> None:
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._record_compilation)
        jax_world.join(self.world, self.first + local_rank)
        jax_world.enable_torchax()

    def rank_info(self, rank: int) -> RankInfo:
        name = f"{self.world.platform}:{rank}"
        return RankInfo(self.world.ranks, "jax", name)

    def leave(self, reason: str) -> None:
        jax_world.leave(reason)

    def consequence(self, error: BaseException) -> BaseException | None:
        return jax_world.consequence(error)

    def _record_compilation(self, event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":  # jax/_src/dispatch.py
            self.compiled.append(duration_secs)

    def counts(self) -> Counts:
        """JAX counts only compilations; one in progress is a miss that is not yet compiled."""
        count = len(self.compiled)
        return Counts(0, count + _is_compiling(), count, sum(self.compiled))

    def memory(self) -> tuple[int, int] | None:
        """Bytes in use on the device, and its capacity; None on the CPU."""
        import jax

        stats = jax.local_devices()[0].memory_stats()
        if not stats or "bytes_limit" not in stats:
            return None
        return stats["bytes_in_use"], stats["bytes_limit"]


def _is_compiling() -> bool:
    """Whether the main thread, which runs the user's function, is in JAX's compiler. Read from its
    stack, so that watching does not slow it down."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if (name, module) == ("compile_or_get_cached", "jax._src.compiler"):
            return True
        frame = frame.f_back
    return False


# ---------------------------------------------------------------- versions

_PACKAGES = ("torchax", "torch", "jax", "jaxlib")


def check_versions() -> tuple[str, ...]:
    """Return notices about the installed versions, found without importing anything.

    torch_xla's wheel contains an old torchax in the same folder as the real one; the package that
    was installed last wins. Raises LaunchError, with the commands that install working versions, if
    these cannot work.
    """
    versions = {name: version for name in _PACKAGES if (version := _installed_version(name))}
    listing = ", ".join(map(" ".join, versions.items())) or "none of them"
    imported = _imported_version()
    needed = ("jax", "jaxlib") if imported is None else _PACKAGES
    missing = [name for name in needed if name not in versions]
    problem = ""
    if missing:
        problem = f"lacks {listed(missing)}"
    elif imported is None:
        return (
            "torchax is not installed, so ranks have JAX only and torch has no device 'jax'. To "
            "add it, run `pip install 'xla_nb[jax]'`.",
        )
    elif imported != versions["torchax"]:
        problem = (
            "would import the old torchax of torch_xla's wheel: torch_xla was installed after "
            "torchax and overwrote its files"
        )
    elif versions["torchax"] == "0.0.13" and Version(versions["torch"]) >= Version("2.13"):
        problem = "needs a torch older than 2.13"  # it uses overloads of `aten.prod` that are gone
    if problem:
        raise LaunchError(
            f"--runtime torchax {problem} (installed: {listing}). Run `pip install 'torch==2.9.*' "
            "'jax==0.7.1' 'jaxlib==0.7.1'`, then `pip install --force-reinstall --no-deps "
            "torchax==0.0.13`."
        )
    return ()


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _imported_version() -> str | None:
    """The version in the files that an import of torchax would load; "" if they contain none, None
    if there are no files."""
    spec = PathFinder.find_spec("torchax")
    if spec is None or spec.origin is None:
        return None
    match = re.search(r'^__version__ = "([^"]+)"', Path(spec.origin).read_text(), re.MULTILINE)
    return match[1] if match else ""
