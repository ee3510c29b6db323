"""The torch_xla runtime, one process a chip: `xmp.spawn(start_method="fork")` as it is.

On a machine without a TPU the same call starts the ranks of a simulated host. The rule: what
torch_xla decides (how many, which chip, which ordinal) is left to torch_xla.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_xla
from torch_xla._internal import pjrt, tpu
from torch_xla.distributed import xla_multiprocessing as xmp
from torch_xla.experimental import plugins

from xla_nb.events import ProcessDied
from xla_nb.meter import Waiting
from xla_nb.order import Order
from xla_nb.processes import Latch, RankContext


@dataclass(frozen=True)
class Prepared:
    """`processes` will start, with `ranks` among them; the functions are for each rank."""

    processes: int
    ranks: int
    simulated: bool
    join: Callable[[int, int], None]
    leave: Callable[[str], None]
    waiting: Callable[[], Waiting | None]


def initialized() -> bool:
    """Whether this process holds the device; after that it can no longer fork ranks."""
    return bool(torch_xla._XLAC._xla_runtime_is_initialized())


def prepare(order: Order) -> Prepared:
    """Set this process up so that `xmp.spawn` will start the ranks that were ordered."""
    if order.device == "TPU":
        if plugins.using_dynamic_plugins():
            processes = plugins.default().physical_chip_count()
        else:
            processes = tpu.num_local_processes()
        ranks = processes * tpu.num_logical_cores_per_chip()
        # On a chip a rank waits inside the compiled graph, which nobody sees from here.
        return Prepared(
            processes, ranks, False, pjrt.initialize_multiprocess, _nothing, lambda: None
        )
    from xla_nb.simulation import host

    assert order.ranks is not None
    host.install(host.Place(ranks_here=order.ranks))
    join = pjrt.initialize_multiprocess
    return Prepared(order.ranks, order.ranks, True, join, host.leave, host.waiting)


def start(
    prepared: Prepared,
    enter: Callable[[int, int], None],
    main: Callable[[int], None],
    latch: Latch,
    tell: Callable[[ProcessDied], None],
) -> None:
    """Start the ranks and wait for all of them to end."""
    watched: Any = RankContext(prepared.processes, latch, tell)
    torch.multiprocessing.get_context = lambda method=None: watched
    pjrt.initialize_multiprocess = enter
    try:
        xmp.spawn(main, start_method="fork")
    finally:
        watched.tell_the_rest()


def forgetter() -> Callable[[], None]:
    """What undoes, in a rank, what `start` replaced in the job."""
    original = torch.multiprocessing.get_context

    def forget() -> None:
        torch.multiprocessing.get_context = original

    return forget


def _nothing(_reason: str) -> None:
    return
