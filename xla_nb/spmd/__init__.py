"""SPMD: one process drives all devices of the host, with a model sharded over them.

`mesh` names the axes of the devices, `parallelize` places a model by a tensor-parallel plan as in
torch, `show` displays which device holds which part. This file does not import torch: the
notebook's kernel imports it to display results of the process with the devices.
"""

from __future__ import annotations

import importlib
from typing import Any

#: The public names and their modules.
_MODULES = {
    "Mesh": "meshes",
    "Picture": "placed",
    "Placed": "placed",
    "loader": "batches",
    "mesh": "meshes",
    "parallelize": "parallel",
    "placements": "sharding",
    "shard_batch": "batches",
    "show": "sharding",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """The public names, imported on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'xla_nb.spmd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"xla_nb.spmd.{_MODULES[name]}"), name)
