"""Where a rank stands in the meshes that cells have made."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def position(namespace: Mapping[str, object]) -> dict[str, int]:
    """The rank's index along each axis of the meshes that a namespace holds: torch's DeviceMesh of
    ranks, by its `mesh_dim_names`, and JAX's Mesh, where all devices of this process are at one
    index. Where several have an axis of a name, that which was bound last counts."""
    found: dict[str, int] = {}
    for value in list(namespace.values()):
        found.update(_of_torch(value))
        found.update(_of_jax(value))
    return found


def _of_torch(value: Any) -> Iterator[tuple[str, int]]:
    module: Any = sys.modules.get("torch.distributed.device_mesh")
    if module is None or not isinstance(value, module.DeviceMesh):
        return
    # Of torch_xla's own device there is a mesh without coordinates (DeviceMesh("xla", …)).
    here = getattr(value, "_coordinate_on_dim", None)
    yield from zip(value.mesh_dim_names or (), here or (), strict=False)


def _of_jax(value: Any) -> Iterator[tuple[str, int]]:
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(value, jax.sharding.Mesh):
        return
    own = jax.process_index()
    shape = value.devices.shape
    places = itertools.product(*map(range, shape))  # in the order of `flat`
    mine = [p for p, each in zip(places, value.devices.flat, strict=True) if _is_of(each, own)]
    for axis, indices in zip(value.axis_names, zip(*mine, strict=True), strict=False):
        if len(set(indices)) == 1:
            yield str(axis), indices[0]


def _is_of(device: Any, process: int) -> bool:
    return bool(device.process_index == process)
