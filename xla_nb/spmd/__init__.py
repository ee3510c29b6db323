"""SPMD: one process, all devices of the host, a model whose parts lie on different devices.

`mesh` names the devices' axes, `parallelize` places a model by a plan for torch's tensor
parallelism, `show` draws where it lies. The rule: this file imports no torch, for the notebook's
kernel may import it to display what the process with the devices returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xla_nb.spmd.attention import scaled_dot_product_attention
    from xla_nb.spmd.batches import loader, shard_batch
    from xla_nb.spmd.checkpoint import load_state_dict, state_dict
    from xla_nb.spmd.compiled import collectives
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
    "collectives",
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
    "collectives": "compiled",
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
    """The public names, imported when they are first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'xla_nb.spmd' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"xla_nb.spmd.{_HOMES[name]}"), name)
