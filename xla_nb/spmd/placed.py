"""Where a tensor lies, as plain data that a cell's function can return to the notebook.

The rule: neither torch nor torch_xla, which the notebook's kernel would import to open it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    """Where a tensor lies; its text is one line."""

    shape: tuple[int, ...]
    dtype: str
    shard: tuple[int, ...]  # what one device holds, padding included
    splits: tuple[int, ...]  # into how many parts each dimension is split
    copies: int  # devices that hold the same part
    axes: tuple[tuple[str, ...], ...] | None  # the mesh axes that split each dimension
    bytes_per_device: int

    def __str__(self) -> str:
        split = [self._split(dim) for dim, parts in enumerate(self.splits) if parts > 1]
        each = "x".join(map(str, self.shard)) or "one number"
        return f"{', '.join(split) or 'Replicate'}; {each} on each device"

    def _split(self, dim: int) -> str:
        if self.axes and self.axes[dim]:
            return f"Shard({dim}) over {' and '.join(map(repr, self.axes[dim]))}"
        return f"Shard({dim}) in {self.splits[dim]} parts"
