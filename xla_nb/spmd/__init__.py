"""SPMD: one process drives all devices of the host, with a model sharded over them.

`mesh` names the axes of the devices, `parallelize` places a model by a tensor-parallel plan of
torch's, `show` draws the placement. This file imports no torch: the notebook's kernel imports it to
display what the process with the devices returned.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xla_nb.spmd.attention import scaled_dot_product_attention
    from xla_nb.spmd.batches import loader, shard_batch
    from xla_nb.spmd.checkpoint import load_state_dict, state_dict
    from xla_nb.spmd.meshes import Mesh, mesh
    from xla_nb.spmd.parallel import parallelize
    from xla_nb.spmd.picture import Picture
    from xla_nb.spmd.placed import Placed
    from xla_nb.spmd.refusals import NotExpressible
    from xla_nb.spmd.shards import placements, show

__all__ = [
    "Mesh",
    "NotExpressible",
    "Picture",
    "Placed",
    "load_state_dict",
    "loader",
    "mesh",
    "parallelize",
    "placements",
    "scaled_dot_product_attention",
    "shard_batch",
    "show",
    "state_dict",
]

_HOMES = {
    "Mesh": "meshes",
    "NotExpressible": "refusals",
    "Picture": "picture",
    "Placed": "placed",
    "load_state_dict": "checkpoint",
    "loader": "batches",
    "mesh": "meshes",
    "parallelize": "parallel",
    "placements": "shards",
    "scaled_dot_product_attention": "attention",
    "shard_batch": "batches",
    "show": "shards",
    "state_dict": "checkpoint",
}


def __getattr__(name: str) -> Any:
    """The public names, imported on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'xla_nb.spmd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"xla_nb.spmd.{_HOMES[name]}"), name)
