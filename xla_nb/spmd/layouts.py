"""Layouts: which mesh axes split each dimension of a tensor.

Pure functions from torch's placements to XLA's partition specs; placements without a spec are
refused here. Axes are positions in the whole mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import Placement, Replicate, Shard

from xla_nb.spmd.meshes import Mesh
from xla_nb.spmd.refusals import NotExpressible
from xla_nb.wording import several

#: For each dimension of a tensor, the axes that split it, outermost first.
Layout = tuple[tuple[int, ...], ...]


def layout(mesh: Mesh, placements: Sequence[Placement], ndim: int, where: str) -> Layout:
    """The layout of placements, one per axis of the mesh. Raises NotExpressible."""
    splits: list[list[int]] = [[] for _ in range(ndim)]
    for name, placement in zip(mesh.names, placements, strict=True):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard:
            raise NotExpressible(
                where,
                f"XLA cannot express {placement!r} on axis {name!r}: it knows Shard and Replicate, "
                "and sums partial values itself",
                "Use Replicate() or Shard(dim)",
            )
        if not -ndim <= placement.dim < ndim:
            raise NotExpressible(
                where,
                f"{placement!r} on axis {name!r} needs a dimension {placement.dim}, but the tensor "
                f"has {several(ndim, 'dimension')}",
                "Use one of its dimensions",
            )
        splits[placement.dim].append(mesh.axis(name))
    return tuple(tuple(sorted(axes)) for axes in splits)


def placements(mesh: Mesh, layout: Layout) -> tuple[Placement, ...]:
    """The placements of a layout, one for each axis of the mesh."""
    found: list[Placement] = [Replicate()] * len(mesh.names)
    for dim, axes in enumerate(layout):
        for axis in axes:
            found[mesh.names.index(mesh.whole.names[axis])] = Shard(dim)
    return tuple(found)


def spec(layout: Layout) -> tuple[Any, ...]:
    """The layout as torch_xla's partition spec."""
    return tuple(axes[0] if len(axes) == 1 else axes or None for axes in layout)
