"""The torch_xla runtime: a process per device, started by torch_xla's own `xmp.spawn`.

torch_xla determines the number of ranks, and each rank's chip and ordinal. Without a TPU the same
call starts the ranks of a simulated host.
"""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from xla_nb.messages.events import ProcessDied
from xla_nb.messages.orders import Order
from xla_nb.runtimes import Counts, Machine, Plan, Prepared, RankInfo
from xla_nb.runtimes.forking import Lifecycle, fork
from xla_nb.simulation.agreement import CollectiveMismatch, RankLost
from xla_nb.stopwatch import Wait
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE, SIMULATED, process_bounds
from xla_nb.topology.slices import WORKERS

#: Imported by the fork server, so that jobs and ranks need not.
IMPORTS = (
    __name__,
    "torch_xla.core.xla_model",
    "torch_xla.distributed.parallel_loader",
    "torch_xla.distributed.xla_multiprocessing",
    "xla_nb.simulation.host",
)


def plan(machine: Machine, n: int | None) -> Plan:
    """Plan all ranks of a real or simulated TPU, or `n` on one host if its chips allow it."""
    if machine.device == "TPU":
        sets = process_bounds(machine.accelerator, machine.chips, n, machine.hosts)
        return Plan(n, sets, IMPORTS)
    hosts = len(machine.variable(WORKERS).split(",")) if machine.hosts > 1 else 1
    choice = machine.variable(SIMULATE)
    tpu = tpu_types.simulated(choice, n, hosts)
    if tpu is None:
        return Plan(n or SIMULATED, {}, IMPORTS)
    return Plan(tpu.ranks, tpu.variables(), IMPORTS)


def opened() -> str | None:
    """Why no rank can be forked, or None; the caller adds the line that opened the device."""
    import torch_xla

    if not torch_xla._XLAC._xla_runtime_is_initialized():
        return None
    return (
        "A value from the notebook, or a module that it needs, opens the XLA device before the "
        "ranks exist; after that, the process cannot start ranks. Create or import it in the "
        "function."
    )


def set_up(order: Order) -> None:
    """Name the device that ranks will have; `opened` detects a cell that opens it too early."""
    if tpu_types.simulated_type(os.environ):
        from xla_nb.simulation import answers

        answers.set_device()


def prepare(order: Order) -> Chips:
    """Set up this process so that `xmp.spawn` starts the ranks of the order."""
    from torch_xla._internal import pjrt

    if order.device == "TPU":
        return Chips(*_count_chips(), pjrt.initialize_multiprocess)
    from xla_nb.simulation import host

    assert order.ranks is not None
    simulated_host = host.install(order.ranks, order.host_group)
    return SimulatedChips(order.ranks, order.ranks, pjrt.initialize_multiprocess, simulated_host)


def _count_chips() -> tuple[int, int]:
    """The numbers of processes that torch_xla will start, and of ranks in them."""
    from torch_xla._internal import tpu
    from torch_xla.experimental import plugins

    if plugins.using_dynamic_plugins():
        processes = plugins.default().physical_chip_count()
    else:
        processes = tpu.num_local_processes()
    return processes, processes * tpu.num_logical_cores_per_chip()


class OnTorchXla(Prepared):
    """Common parts of the runtimes that use torch_xla."""

    def counts(self) -> Counts:
        import torch_xla

        return counts(torch_xla._XLAC)


#: `.item()` only reads a value, but torch_xla counts it as an operator that ran on the CPU.
_ITEM = "aten::_local_scalar_dense"


def counts(xlac: Any) -> Counts:
    """Read `torch_xla._XLAC`; takes about 20 µs and no lock that training holds for long."""
    compile_data = xlac._xla_metric_data("CompileTime") or (0, 0.0, ())
    names = [name for name in xlac._xla_counter_names() if name.startswith("aten::")]
    return Counts(
        hits=xlac._xla_counter_value("CachedCompile") or 0,
        misses=xlac._xla_counter_value("UncachedCompile") or 0,
        compiles=compile_data[0],
        compile_seconds=compile_data[1] / 1e9,
        steps=xlac._xla_counter_value("MarkStep") or 0,
        fallbacks=Counter({n: xlac._xla_counter_value(n) or 0 for n in names if n != _ITEM}),
    )


def device_memory(xlac: Any, device: str) -> tuple[int, int] | None:
    """Bytes in use on a torch_xla device, and its capacity; None if unknown."""
    try:
        info = xlac._xla_memory_info(device)
        return info["bytes_used"], info["bytes_limit"]
    except (RuntimeError, KeyError):  # "GetAllocatorStats is not supported": the CPU client
        return None


def open_client() -> None:
    """In a rank, before its function: start torch_xla's client, and keep JAX's own client, started
    to trace a Pallas kernel, from discovering the TPU's slices a second time: on several slices it
    would wait forever.

    torch_xla sets the variable around each of its calls into JAX and then restores the old value,
    which is safe in one thread only (_internal/jax_workarounds.py, jax_env_context; pytorch/xla
    issues 8812 and 8954). torch_xla's client must not see it, so it is set after that has started.
    """
    import torch_xla

    torch_xla._XLAC._init_computation_client()
    os.environ["SKIP_MEGASCALE_PJRT_CLIENT"] = "true"


@dataclass(frozen=True)
class Chips(OnTorchXla):
    """The chips of this host, real or simulated."""

    processes: int
    ranks: int
    enter_runtime: Callable[[int, int], None]  # torch_xla's own, which `start` replaces

    def start(self, life: Lifecycle) -> None:
        from torch_xla._internal import pjrt
        from torch_xla.distributed import xla_multiprocessing as xmp

        pools = SimpleNamespace(
            ProcessPoolExecutor=functools.partial(_RankPool, life.report, self.forked),
            ThreadPoolExecutor=_device_pool,
        )
        pjrt.concurrent = SimpleNamespace(futures=pools)
        pjrt.initialize_multiprocess = life.enter
        xmp.spawn(life.main, start_method="fork")

    def forked(self) -> None:
        """Called when all processes have been forked."""

    def join(self, local_rank: int, processes: int) -> None:
        self.enter_runtime(local_rank, processes)
        open_client()

    def rank_info(self, rank: int) -> RankInfo:
        import torch_xla

        runtime, device, attributes = torch_xla.runtime, torch_xla.device(), {}
        if not self.simulated:
            attributes = torch_xla._XLAC._xla_get_device_attributes(str(device))
        return RankInfo(runtime.world_size(), device, described(str(device), attributes))

    def memory(self) -> tuple[int, int] | None:
        import torch_xla

        return device_memory(torch_xla._XLAC, str(torch_xla.device()))


@dataclass(frozen=True)
class SimulatedChips(Chips):
    """The ranks of a simulated host, which report the collective that they wait in; XLA's CPU
    client does not report memory."""

    host: Any  # a SimulatedHost
    simulated = True

    def forked(self) -> None:
        self.host.mailboxes.close()

    def begin(self, number: int, members: Iterable[int] | None) -> None:
        self.host.programs.begin(number, members)

    def leave(self, reason: str) -> None:
        self.host.programs.leave(reason)

    def consequence(self, error: BaseException) -> BaseException | None:
        follows = isinstance(error, CollectiveMismatch) and error.follows
        return error if follows or isinstance(error, RankLost) else None

    def waiting(self) -> Wait | None:
        return self.host.programs.waits.current  # type: ignore[no-any-return]

    def waited(self) -> float | None:
        return self.host.programs.waits.seconds  # type: ignore[no-any-return]

    def memory(self) -> None:
        return None


class _RankPool(contextlib.AbstractContextManager["_RankPool"]):
    """A stand-in for torch_xla's process pool, in which a death does not end the other ranks."""

    def __init__(
        self,
        report: Callable[[ProcessDied], None],
        forked: Callable[[], None],
        max_workers: int,
        mp_context: object,
    ) -> None:
        self._report, self._forked = report, forked

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[int], object], ranks: range) -> list[dict[int, None]]:
        fork(len(ranks), function, self._report, forked=self._forked, stay=True)
        return [{rank: None} for rank in ranks]


def _device_pool(max_workers: int) -> Any:
    """A stand-in for the thread pool in which torch_xla runs the entry of a process. With one
    device it is the main thread.

    Python delivers signals only to the main thread: only in it does an interrupt end `time.sleep`,
    `queue.get` or `subprocess.run`, and only it may set signal handlers. A process with several
    devices (TPU v2 and v3) needs torch_xla's threads (pjrt._run_thread_per_device).
    """
    import torch

    if max_workers == 1:
        return contextlib.nullcontext(_MainThread())
    arguments = contextvars.copy_context(), torch.is_grad_enabled()
    return ThreadPoolExecutor(max_workers, initializer=go_on_from, initargs=arguments)


def go_on_from(context: contextvars.Context, has_grad: bool) -> None:
    """Copy the main thread's context variables and grad mode to a new thread."""
    import torch

    for variable, value in context.items():
        if not isinstance(value, decimal.Context):  # shared, it would be changed by all threads
            variable.set(value)
    torch.set_grad_enabled(has_grad)


class _MainThread:
    """A stand-in for a thread pool that runs in the calling thread."""

    def map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
        return [function(argument) for argument in arguments]


def described(device: str, attributes: Mapping[str, object]) -> str:
    """The device's name, with chip and core on a TPU: `xla:0 (chip 0,1,0 core 0)`.

    libtpu's attributes are `coords` and `core_on_chip` (torch_xla/runtime.py,
    runtime_device_attributes).
    """
    coords, core = attributes.get("coords"), attributes.get("core_on_chip")
    if not isinstance(coords, Sequence) or core is None:
        return device
    return f"{device} (chip {','.join(map(str, coords))} core {core})"
