"""The torch_xla runtime, one process a chip: `xmp.spawn(start_method="fork")` as it is.

On a machine without a TPU the same call starts the ranks of a simulated host. The rule: what
torch_xla decides (how many, which chip, which ordinal) is left to torch_xla.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xla_nb.protocol.order import Order
from xla_nb.runtimes import Machine, Plan, RankInfo, gauges, tpu_client
from xla_nb.runtimes.forking import Lifecycle, RankContext
from xla_nb.runtimes.gauges import Counts, PendingCollective
from xla_nb.topology.chips import SIMULATED, process_bounds

#: What its fork server imports, so that no job and no rank pays for it.
IMPORTS = (
    "torch_xla.core.xla_model",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.xla_multiprocessing",
    "xla_nb.simulation.host",
)


def plan(machine: Machine, n: int | None) -> Plan:
    """Ranks: all of the TPU's, or of one host a part that its chips allow; SIMULATED without."""
    if machine.device == "TPU":
        sets = process_bounds(machine.accelerator, machine.chips, n, machine.hosts)
        return Plan(n, sets, IMPORTS)
    return Plan(n or SIMULATED, {}, IMPORTS)


def opened() -> str | None:
    """The line that did it is named by who asks."""
    import torch_xla

    if not torch_xla._XLAC._xla_runtime_is_initialized():
        return None
    return (
        "this line opens the XLA device before the ranks exist, and after that no rank can be "
        "started from the process. What to do: move it into the function"
    )


def set_up() -> None:
    """Nothing: what a cell may do to torch_xla before there are ranks, `opened` tells."""


def prepare(order: Order) -> Chips:
    """Set this process up so that `xmp.spawn` will start the ranks that were ordered."""
    import torch
    from torch_xla._internal import pjrt

    own = pjrt.initialize_multiprocess, torch.multiprocessing.get_context
    clients = tpu_client.Clients(Path(order.request.program))
    if order.device == "TPU":
        return Chips(*_chips(), False, *own, clients)
    from xla_nb.simulation import host

    assert order.ranks is not None
    world = order.host_group
    host.install(
        host.HostShare(
            ranks_here=order.ranks,
            first_rank=world.index * order.ranks,
            world_size=world.hosts * order.ranks,
            store=world.address,
            serves=world.index == 0,
        )
    )
    return Chips(order.ranks, order.ranks, True, *own, clients)


def _chips() -> tuple[int, int]:
    """The processes that torch_xla will start, and the ranks in them."""
    from torch_xla._internal import tpu
    from torch_xla.experimental import plugins

    if plugins.using_dynamic_plugins():
        processes = plugins.default().physical_chip_count()
    else:
        processes = tpu.num_local_processes()
    return processes, processes * tpu.num_logical_cores_per_chip()


@dataclass(frozen=True)
class Chips:
    """The chips of this host, or as many simulated ones."""

    processes: int
    ranks: int
    simulated: bool
    #: torch_xla's and torch's own, in whose places `start` puts ours.
    enter_runtime: Callable[[int, int], None]
    get_context: Callable[..., Any]
    clients: tpu_client.Clients

    def start(self, life: Lifecycle) -> None:
        import torch
        from torch_xla._internal import pjrt
        from torch_xla.distributed import xla_multiprocessing as xmp

        watched: Any = RankContext(self.processes, life.latch, life.tell)
        torch.multiprocessing.get_context = lambda method=None: watched
        pjrt.initialize_multiprocess = life.enter
        try:
            xmp.spawn(life.main, start_method="fork")
        finally:
            watched.tell_the_rest()

    def join(self, local_rank: int, processes: int) -> None:
        import torch

        torch.multiprocessing.get_context = self.get_context
        self.enter_runtime(local_rank, processes)
        self.clients.open()

    def place(self, rank: int) -> RankInfo:
        import torch_xla

        runtime, device = torch_xla.runtime, torch_xla.device()
        attributes = torch_xla._XLAC._xla_get_device_attributes(str(device))
        shown = described(str(device), attributes)
        return RankInfo(runtime.local_ordinal(), runtime.world_size(), device, shown)

    def leave(self, why: str) -> None:
        if self.simulated:
            from xla_nb.simulation import host

            host.leave(why)

    def consequence(self, error: BaseException) -> BaseException | None:
        if not self.simulated:
            return None
        from xla_nb.simulation.agreement import CollectiveMismatch, RankLost

        follows = isinstance(error, CollectiveMismatch) and error.follows
        return error if follows or isinstance(error, RankLost) else None

    def waiting(self) -> PendingCollective | None:
        """Known on a simulated host; a chip waits inside the compiled graph, out of sight."""
        if not self.simulated:
            return None
        from xla_nb.simulation import host

        return host.waiting()

    def counts(self) -> Counts:
        import torch_xla

        return replace(gauges.counts(torch_xla._XLAC), clients=self.clients.counts())

    def memory(self) -> tuple[int, int] | None:
        import torch_xla

        return gauges.device_memory(torch_xla._XLAC, str(torch_xla.device()))


def described(device: str, attributes: Mapping[str, object]) -> str:
    """`xla:0`, on a TPU with its chip and core: `xla:0 (chip 0,1,0 core 0)`.

    libtpu's attributes are `coords` and `core_on_chip` (torch_xla/runtime.py,
    runtime_device_attributes).
    """
    coords, core = attributes.get("coords"), attributes.get("core_on_chip")
    if not isinstance(coords, Sequence) or core is None:
        return device
    return f"{device} (chip {','.join(map(str, coords))} core {core})"
