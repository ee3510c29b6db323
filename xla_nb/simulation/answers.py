"""Make torch_xla describe a simulated host and its devices.

With a TPU type in the environment (topology/tpu_types.py) ranks see that TPU; without one, they see
a CPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch_xla
from torch_xla._internal import tpu

from xla_nb.topology import tpu_types

_DEVICE = "PJRT_DEVICE"
_GRAPHS_FILE = "XLA_SAVE_TENSORS_FILE"


def set_device() -> None:
    """In the job and, through the fork, in its ranks: set the device name that programs read.

    torch_xla's C++ and child processes read the system's environment, which still names the CPU
    client; Python's `os.environ` is a copy of it.
    """
    os.environ[_DEVICE] = "CPU"
    if tpu_types.simulated_type(os.environ):
        os.environ[_DEVICE] = "TPU"
        os.putenv(_DEVICE, "CPU")
        environ = dict(os.environ)
        tpu.num_available_chips = functools.partial(tpu_types.host_chips, environ)
        tpu._get_metadata = functools.partial(_metadata, environ)
        # Without YAML, which each rank would parse twice.
        tpu.get_tpu_env = functools.partial(tpu_types.tpu_env, environ)
        tpu._using_env_vars = lambda: False


def _metadata(environ: Mapping[str, str], key: str) -> str:
    value = tpu_types.metadata(environ, key)
    if value is None:
        raise tpu.requests.HTTPError(f"404 Not Found: a simulated host has no attribute {key!r}.")
    return value


def set_position(local_rank: int, ranks_here: int) -> None:
    """In a rank: set the variables from which torch_xla, or a library in its place, reads its
    position."""
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(local_rank)
    os.environ["PJRT_LOCAL_PROCESS_COUNT"] = str(ranks_here)
    if tpu_types.simulated_type(os.environ):
        tpu.configure_topology(local_rank, ranks_here)
        return
    # On a TPU a library asks torch_xla; elsewhere accelerate and others read torchrun's names.
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(ranks_here))


def set_identity(rank: int, size: int, ranks_here: int) -> None:
    """In a rank: make torch_xla describe this process as one rank of `size`, with one device."""
    xlac: Any = torch_xla._XLAC
    kind = tpu_types.simulated_type(os.environ)
    devices = [f"{'TPU' if kind else 'CPU'}:{ordinal}" for ordinal in range(size)]
    attributes = [_attributes(number, name, ranks_here) for number, name in enumerate(devices)]
    replication: list[str] = []
    replacements: dict[str, Callable[..., object]] = {
        "_xla_get_device_ordinal": lambda device: rank,
        "_xla_get_default_device_ordinal": lambda: rank,
        "_xla_get_devices": lambda: [devices[rank]],
        "_xla_real_devices": lambda devices_=None: [devices[rank]],
        "_xla_get_all_devices": lambda: list(devices),
        "_xla_get_runtime_devices": lambda: [devices[rank]],
        "_xla_get_all_runtime_devices": lambda: list(devices),
        "_xla_get_all_device_attributes": lambda: [dict(item) for item in attributes],
        "_xla_get_device_attributes": lambda device: dict(attributes[rank]),
        "_xla_get_num_processes": lambda: size,
        "_xla_get_process_index": lambda: rank,
        "_xla_set_replication_devices": lambda names: replication.__setitem__(slice(None), names),
        "_xla_get_replication_devices_count": lambda: len(replication),
        # Tokens order collectives inside a graph; ours run between graphs.
        "_get_all_reduce_token": lambda device: None,
        "_set_all_reduce_token": lambda device, token: None,
    }
    if kind:
        replacements["_xla_device_kind"] = lambda device: tpu_types.device_kind(kind)
    for name, function in replacements.items():
        if hasattr(xlac, name):
            setattr(xlac, name, function)


def _attributes(rank: int, name: str, ranks_here: int) -> dict[str, object]:
    """The result of runtime_device_attributes: only libtpu attributes that follow from the
    topology."""
    if not tpu_types.simulated_type(os.environ):
        return {"name": name}
    position = tpu_types.coordinates(os.environ, rank, ranks_here)
    return {"coords": list(position), "core_on_chip": 0, "name": name}


def name_graphs(rank: int) -> None:
    """In a rank, before its runtime starts: save graphs to `FILE.RANK.0`; torch_xla appends the
    device number, the last part."""
    if name := os.environ.get(_GRAPHS_FILE):
        os.environ[_GRAPHS_FILE] = f"{name}.{rank}"
