"""What the simulated host does not carry, refused by name.

The rule: what would communicate on a TPU and is not carried raises, on the line that asks for
it; it never answers with this rank's own values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch_xla
from torch.library import Library

_SPMD = "SPMD has one process for all devices; ranks started by xmp.spawn have one each"
_CHANNELS = "use xm.collective_permute with all pairs of ranks"
_COORDINATOR = "the ranks have no XLA coordination service"

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
    "_ensure_xla_coordinator_initialized": _COORDINATOR,
    "_activate_preemption_sync_manager": _COORDINATOR,
}


class NotCarried(NotImplementedError):
    """An operation between ranks that the simulated host does not have."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the simulated TPU host does not carry {name}: {reason}")


def refuse(name: str, reason: str) -> Callable[..., NoReturn]:
    """A function that raises for `name`."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise NotCarried(name, reason)

    return refused


def install_refusals() -> list[object]:
    """Refuse in this process; keep what is returned alive."""
    import torch_xla.runtime as xr

    xlac: Any = torch_xla._XLAC
    for name, reason in REFUSED.items():
        if hasattr(xlac, name):
            setattr(xlac, name, refuse(f"torch_xla._XLAC.{name}", reason))
    xr.use_spmd = refuse("torch_xla.runtime.use_spmd", _SPMD)
    library = Library("_dtensor", "IMPL")
    name = "shard_dim_alltoall"
    library.impl(name, refuse(f"_dtensor::{name}", "DTensor on XLA is SPMD"), "XLA")
    return [library]
