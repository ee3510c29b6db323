"""Refuse functions that the simulated host does not support, by name.

A function that would communicate on a TPU must never return this rank's own values: that would be a
wrong result without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch_xla
import torch_xla.runtime as xr
from torch.library import Library
from torch_xla.experimental import custom_kernel

Why = tuple[str, str]  # the reason, and what to do instead

_SPMD = (
    "SPMD drives all devices from one process, but a rank started by xmp.spawn has one device",
    "Use --runtime spmd",
)
_CHANNELS = (
    "there are no channels between ranks",
    "Use xm.collective_permute with all pairs of ranks",
)
_COORDINATOR = (
    "the ranks have no XLA coordination service",
    "Remove the call",
)
_MEMORY = (
    "XLA's CPU devices do not report memory use",
    "Measure it on a TPU",
)
_KERNELS = (
    "Pallas kernels run only on the cores of a TPU",
    "Where xla_nb.simulated() is true, use a torch operation such as "
    "torch.nn.functional.scaled_dot_product_attention",
)
_DTENSOR = ("DTensor on XLA needs SPMD", "Use --runtime spmd")
#: Never freed: it would take its kernels with it.
_DTENSOR_KERNELS = Library("_dtensor", "IMPL")

REFUSED = {
    "_xla_send": _CHANNELS,
    "_xla_recv": _CHANNELS,
    "_xla_spmd_all_reduce": _SPMD,
    "_xla_spmd_reduce_scatter": _SPMD,
    "_xla_force_spmd_device": _SPMD,
    "_xla_mark_sharding": _SPMD,
    "_xla_annotate_custom_sharding": _SPMD,
    "_xla_set_auto_sharding": _SPMD,
    "_mark_manual_sharding": _SPMD,
    "_spmd_full_to_shard_shape": _SPMD,
    "_spmd_shard_to_full_shape": _SPMD,
    "_global_tensor_from_cpu_shards": _SPMD,
    "_load_local_shards": _SPMD,
    "_get_local_shards": _SPMD,
    "_xla_memory_info": _MEMORY,
    "_xla_tpu_custom_call": _KERNELS,
    "_ensure_xla_coordinator_initialized": _COORDINATOR,
    "_activate_preemption_sync_manager": _COORDINATOR,
}


class NotCarried(NotImplementedError):
    """An operation between ranks that the simulated host does not support."""

    def __init__(self, name: str, reason: str, fix: str) -> None:
        super().__init__(f"The simulated TPU host does not support {name}: {reason}. {fix}.")


def refuse(name: str, why: Why) -> Callable[..., NoReturn]:
    """A function that raises NotCarried for `name`."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise NotCarried(name, *why)

    return refused


def install_refusals() -> None:
    """Install the refusals in this process."""
    xlac: Any = torch_xla._XLAC
    for name, why in REFUSED.items():
        if hasattr(xlac, name):
            setattr(xlac, name, refuse(f"torch_xla._XLAC.{name}", why))
    custom_kernel.trace_pallas = refuse("Pallas kernels", _KERNELS)
    xr.use_spmd = refuse("torch_xla.runtime.use_spmd", _SPMD)
    name = "shard_dim_alltoall"
    _DTENSOR_KERNELS.impl(name, refuse(f"_dtensor::{name}", _DTENSOR), "XLA")
