"""SPMD: one process owns every device of the host, and shardings determine what each computes.

Without a TPU the devices are virtual devices of the CPU client. Only the process that runs the
user's function opens the devices: a second process would find none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from xla_nb.errors import UsageError
from xla_nb.messages.orders import HostGroup, Order
from xla_nb.runtimes import Machine, Plan, RankInfo, xla
from xla_nb.runtimes.forking import Lifecycle, fork_ranks
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE, devices_per_chip, require_one_host

#: At every compilation under SPMD, XLA logs that its partitioner will be replaced. XLA_USE_SPMD
#: requests SPMD, which is on here anyway, and makes torch_xla warn, so `join` removes it.
_SETS = {"TF_CPP_MIN_LOG_LEVEL": "2", "XLA_USE_SPMD": "0"}


def plan(machine: Machine, n: int | None) -> Plan:
    """Plan one process with all devices of a TPU host (libtpu joins the processes of several
    hosts); without a TPU, with `n` virtual devices."""
    if machine.device == "TPU":
        devices = machine.chips * devices_per_chip(machine.accelerator)
        if machine.hosts == 1:
            require_one_host(machine.accelerator, machine.chips, "spmd")
        if n is not None and (machine.hosts > 1 or n != devices):
            raise UsageError(
                f"-n {n}: under --runtime spmd one process owns all devices, here {devices}. On a "
                "TPU, remove -n. Shard over `xla_nb.spmd.mesh(...)`, or use --runtime xla for a "
                "process per device."
            )
        return Plan(None, _SETS, xla.IMPORTS)
    if machine.hosts > 1:
        raise UsageError(
            "--runtime spmd spans hosts on TPU pods only: the CPU's virtual devices are in one "
            "process. Use --hosts 1, or --runtime xla or torchax, whose simulated ranks "
            "connect over the network."
        )
    if "CPU_NUM_DEVICES" in machine.user_env:
        raise UsageError(
            f"--env CPU_NUM_DEVICES={machine.user_env['CPU_NUM_DEVICES']} does not work under "
            "--runtime spmd. Use -n for the number of devices."
        )
    count = str(tpu_types.simulated_ranks(machine.variable(SIMULATE), n))
    # The CPU client runs a graph's devices in a thread pool, which needs a thread for each device
    # that waits in a collective: with fewer threads it hangs (measured).
    return Plan(
        int(count),
        {**_SETS, "CPU_NUM_DEVICES": count, "XLA_THREAD_POOL_SIZE": count, "PJRT_NPROC": count},
        xla.IMPORTS,
    )


opened = xla.opened


def set_up(order: Order) -> None:
    """Make torch's functions place models like `xla_nb.spmd`, before a cell binds any of them."""
    from xla_nb.spmd import dtensors

    dtensors.install()


def prepare(order: Order) -> Devices:
    """Do nothing before the fork: the process itself opens the devices."""
    return Devices(order.host_group)


@dataclass(frozen=True)
class Devices(xla.OnTorchXla):
    """All devices of the host, and their process; virtual CPU devices do not simulate a TPU host.

    torch_xla does not report the memory of devices under SPMD."""

    world: HostGroup
    ranks: int = 1

    def start(self, life: Lifecycle) -> None:
        fork_ranks(1, life, self.world.index)

    def join(self, local_rank: int, processes: int) -> None:
        """Switch to SPMD before anything else uses the runtime."""
        import torch_xla

        os.environ.pop("XLA_USE_SPMD", None)
        torch_xla.runtime.use_spmd()
        xla.open_client()

    def rank_info(self, rank: int) -> RankInfo:
        import torch_xla

        runtime: Any = torch_xla.runtime
        attributes = runtime.global_runtime_device_attributes()
        names = tuple(xla.described(device["name"], device) for device in attributes)
        return RankInfo(self.world.hosts, torch_xla.device(), str(torch_xla.device()), names)
