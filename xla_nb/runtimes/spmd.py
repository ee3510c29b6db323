"""SPMD: one process owns every device, and sharding says what each of them computes.

Without a TPU the devices are virtual ones of the CPU client. The rule: the devices belong to the
process that runs the user's function; nobody else, and no second process, opens them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from xla_nb.errors import UsageError
from xla_nb.protocol.order import HostGroup, Order
from xla_nb.runtimes import Machine, Plan, RankInfo, gauges, tpu_client, xla
from xla_nb.runtimes.forking import Lifecycle, fork_ranks
from xla_nb.runtimes.gauges import Counts, PendingCollective
from xla_nb.topology.chips import SIMULATED, devices_per_chip, require_one_host

_WHY_NOT = (
    "under --runtime spmd one process owns all devices, and a second one would find none. What to "
    "do: shard over `xla_nb.spmd.mesh(...)`, or use --runtime xla for a process per device"
)

#: XLA says at every compilation under SPMD that its partitioner will be replaced by another one.
#: XLA_USE_SPMD asks for what is done here anyway; torch_xla warns of it, so it goes again.
_SETS = {"TF_CPP_MIN_LOG_LEVEL": "2", "XLA_USE_SPMD": "0"}


def plan(machine: Machine, n: int | None) -> Plan:
    """All devices of a TPU host; without one, `n` virtual devices."""
    if machine.hosts > 1:
        return _plan_hosts(machine, n)
    if machine.device == "TPU":
        require_one_host(machine.accelerator, machine.chips, "spmd")
        devices = machine.chips * devices_per_chip(machine.accelerator)
        if n is not None and n != devices:
            raise UsageError(
                f"-n {n}: {_WHY_NOT}. On a TPU leave -n out: the process has all {devices} devices"
            )
        return Plan(None, _SETS, xla.IMPORTS)
    if "CPU_NUM_DEVICES" in machine.user_env:
        raise UsageError("--env CPU_NUM_DEVICES: -n says how many devices there are under spmd")
    count = str(n or SIMULATED)
    # The CPU client runs the devices of a graph in a pool, which must hold all that wait for each
    # other in a collective (found by runs: with fewer it hangs).
    return Plan(
        int(count),
        {**_SETS, "CPU_NUM_DEVICES": count, "XLA_THREAD_POOL_SIZE": count, "PJRT_NPROC": count},
        xla.IMPORTS,
    )


def _plan_hosts(machine: Machine, n: int | None) -> Plan:
    """One process a host, each with all of its chips; libtpu joins them."""
    if machine.device != "TPU":
        raise UsageError(
            "--runtime spmd spans hosts on TPU pods only: virtual devices of the CPU are in one "
            "process. What to do: leave --hosts out, or use --runtime xla or torchax, whose "
            "simulated ranks meet over the network"
        )
    if n is not None:
        raise UsageError(f"-n {n}: {_WHY_NOT}. On a TPU leave -n out")
    return Plan(None, _SETS, xla.IMPORTS)


opened = xla.opened


def set_up() -> None:
    """Refuse further processes, before a cell binds what would start them to names of its own."""
    import torch_xla
    from torch_xla.distributed import xla_multiprocessing as xmp

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UsageError(f"this function starts processes: {_WHY_NOT}")

    xmp.spawn = torch_xla.launch = refuse


def prepare(order: Order) -> Devices:
    """Nothing is to be done before the fork: the process itself opens the devices."""
    return Devices(order.host_group, tpu_client.Clients(Path(order.request.program)))


@dataclass(frozen=True)
class Devices:
    """The one process, and all devices of the host."""

    world: HostGroup
    clients: tpu_client.Clients
    ranks: int = 1
    simulated: bool = False  # of a TPU host there is nothing but the number of its devices

    def start(self, life: Lifecycle) -> None:
        fork_ranks(1, life, self.world.index)

    def join(self, local_rank: int, processes: int) -> None:
        """Say SPMD before anything else is said to the runtime."""
        import torch_xla

        os.environ.pop("XLA_USE_SPMD", None)
        torch_xla.runtime.use_spmd()
        self.clients.open()

    def place(self, rank: int) -> RankInfo:
        import torch_xla

        runtime: Any = torch_xla.runtime
        attributes = runtime.global_runtime_device_attributes()
        shown = [xla.described(one["name"], one) for one in attributes]
        return RankInfo(
            0, self.world.hosts, torch_xla.device(), str(torch_xla.device()), tuple(shown)
        )

    def leave(self, why: str) -> None:
        return

    def consequence(self, error: BaseException) -> BaseException | None:
        return None

    def waiting(self) -> PendingCollective | None:
        """A collective of SPMD is part of the compiled graph, out of sight."""
        return None

    def counts(self) -> Counts:
        import torch_xla

        return replace(gauges.counts(torch_xla._XLAC), clients=self.clients.counts())

    def memory(self) -> tuple[int, int] | None:
        """Not known: torch_xla does not tell it under SPMD."""
        return None
