"""Move batches to the devices and split them over one axis of the mesh.

Only dimension 0 is split; devices along the other axes hold copies. Values that are not tensors
pass through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch_xla
from torch import Tensor
from torch.utils import _pytree as pytree

from xla_nb.errors import UsageError
from xla_nb.spmd import sharding
from xla_nb.spmd.meshes import as_mesh


def shard_batch(batch: Any, mesh: Any, axis: str = "data") -> Any:
    """Return the batch on the devices, split on dimension 0 over the axis.

    A batch is a tensor, or nested tuples, lists and dicts of tensors. Its number of examples need
    not divide evenly: XLA pads the last parts, and padding never enters a result.
    """
    whole = as_mesh(mesh).whole
    if axis not in whole.names:
        raise UsageError(
            f"The mesh has no axis {axis!r} to split the batch over; its axes are "
            f"{', '.join(map(repr, whole.names))}. Use shard_batch(batch, mesh, "
            f"axis={whole.names[0]!r}), or make the mesh with a {axis!r} axis (of size 1 to leave "
            "batches whole)."
        )
    split = (whole.axis(axis),)

    def place(tensor: Tensor) -> Tensor:
        # A copy: the user's tensor keeps its layout.
        copy = sharding.unwrap(tensor).to(sharding.device(), copy=True)
        if tensor.ndim:
            whole.batch = (tensor.shape[0], split)
        sharding.place(copy, whole, (split, *[()] * tensor.ndim)[: tensor.ndim])
        return copy

    return pytree.tree_map_only(Tensor, place, batch)


class loader:
    """The batches of a DataLoader, each on the devices and split over the axis.

    Fetching the next batch ends a step and sends its pending operations to the devices, as
    torch_xla's own loaders do. A smaller last batch costs one more compilation; `drop_last=True`
    in the DataLoader avoids it.
    """

    def __init__(self, batches: Iterable[Any], mesh: Any, axis: str = "data") -> None:
        self._batches, self._mesh, self._axis = batches, mesh, axis

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type] # raises as `batches` does

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield shard_batch(batch, self._mesh, self._axis)
            torch_xla.sync()
