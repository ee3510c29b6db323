"""Batches: data brought to the devices, its examples shared out over an axis of the mesh.

The rule: only dimension 0 is split, over the axis named; the rest of the mesh holds copies. What
is no tensor passes through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch_xla
from torch import Tensor
from torch.utils import _pytree as pytree

from xla_nb.errors import UsageError
from xla_nb.spmd import marking
from xla_nb.spmd.meshes import Mesh, of


def shard_batch(batch: Any, mesh: Any, axis: str = "data") -> Any:
    """The batch on the devices, split on dimension 0 over the axis.

    A batch is a tensor, or tuples, lists and dicts of tensors. A number of examples that the axis
    does not divide is allowed: XLA pads the last parts, and no padding enters a result.
    """
    mesh = _whole(mesh, axis)
    return pytree.tree_map_only(Tensor, lambda tensor: _sharded(tensor, mesh, axis), batch)


def loader(batches: Iterable[Any], mesh: Any, axis: str = "data") -> _Loader:
    """The batches of a DataLoader, each on the devices and split over the axis.

    A step ends when the next batch is asked for: what the loop has computed is sent to the devices
    then, as torch_xla's own loaders do. A last batch of another size is trained on too, and costs
    one more compilation; `drop_last=True` in the DataLoader avoids that.
    """
    return _Loader(batches, _whole(mesh, axis), axis)


class _Loader:
    def __init__(self, batches: Iterable[Any], mesh: Mesh, axis: str) -> None:
        self._batches, self._mesh, self._axis = batches, mesh, axis

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type] # as it does, or raises

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield shard_batch(batch, self._mesh, self._axis)
            torch_xla.sync()


def _whole(mesh: Any, axis: str) -> Mesh:
    whole = of(mesh).whole
    if axis not in whole.names:
        raise UsageError(
            f"The mesh has no axis {axis!r} to share a batch out over: it has "
            f"{', '.join(map(repr, whole.names))}. What to do: shard_batch(batch, mesh, "
            f"axis={whole.names[0]!r}), or make the mesh with a {axis!r} axis (of size 1, if no "
            "data is to be split)."
        )
    return whole


def _sharded(tensor: Tensor, mesh: Mesh, axis: str) -> Tensor:
    there = tensor.to(marking.device())
    if there is tensor:
        there = tensor.clone()  # the user's own stays where it is
    split: tuple[int, ...] = (mesh.axis(axis),)
    if tensor.ndim:
        mesh.batch = (tensor.shape[0], split)
    layout = (split, *[()] * (tensor.ndim - 1)) if tensor.ndim else ()
    marking.place(there, mesh, layout)
    return there
