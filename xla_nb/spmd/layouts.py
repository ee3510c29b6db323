"""Layouts: on which axes of the mesh each dimension of a tensor is split.

The rule: pure functions from torch's placements to XLA's partition spec; what has no spec is
refused here. Axes are positions in the whole mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import Placement, Replicate, Shard

from xla_nb.spmd.meshes import Mesh
from xla_nb.spmd.refusals import NotExpressible

#: For each dimension of a tensor the axes that split it, outermost first.
Layout = tuple[tuple[int, ...], ...]


def layout(mesh: Mesh, placements: Sequence[Placement], ndim: int, where: str) -> Layout:
    """The layout that one placement per axis of the mesh asks for."""
    splits: list[list[int]] = [[] for _ in range(ndim)]
    for name, placement in zip(mesh.names, placements, strict=True):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard:
            raise NotExpressible(
                where,
                f"{placement!r} on the axis {name!r} is not something XLA can be told: it knows "
                "Shard and Replicate, and sums what is partial itself",
                "write Replicate() or Shard(dim) there",
            )
        if not -ndim <= placement.dim < ndim:
            raise NotExpressible(
                where,
                f"{placement!r} on the axis {name!r}, but the tensor has {_dimensions(ndim)}",
                "give a dimension that it has",
            )
        splits[placement.dim].append(mesh.axis(name))
    return tuple(tuple(sorted(axes)) for axes in splits)


def spec(asked: Layout) -> tuple[Any, ...]:
    """The layout as torch_xla writes it."""
    return tuple(axes[0] if len(axes) == 1 else axes or None for axes in asked)


def _dimensions(ndim: int) -> str:
    return "1 dimension" if ndim == 1 else f"{ndim} dimensions"
