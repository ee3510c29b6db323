"""SPMD: one process drives all devices of the host, with a model sharded over them.

`mesh` names the axes of the devices, `parallelize` places a model by a tensor-parallel plan of
torch's, `show` says which device holds what. This file imports no torch: the notebook's kernel
imports it to display what the process with the devices returned.
"""

from __future__ import annotations

import importlib
from typing import Any

#: The public names, and the module of each.
_HOMES = {
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

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """The public names, imported on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'xla_nb.spmd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"xla_nb.spmd.{_HOMES[name]}"), name)
