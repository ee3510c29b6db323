"""Where a tensor is, as plain data that a cell's function can return to the notebook.

No torch and no torch_xla: the notebook's kernel would have to import them to unpickle it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    """Where a tensor is; `str` gives one line."""

    shape: tuple[int, ...]
    dtype: str
    shard: tuple[int, ...]  # the shape of the largest part on a device
    splits: tuple[int, ...]  # number of parts along each dimension
    copies: int  # devices that hold the same part
    axes: tuple[tuple[str, ...], ...] | None  # mesh axes that split each dimension
    bytes_per_device: int

    def __str__(self) -> str:
        split = [self._split(dim) for dim, parts in enumerate(self.splits) if parts > 1]
        each = "x".join(map(str, self.shard)) or "one number"
        return f"{', '.join(split) or 'Replicate'}; {each} on each device"

    def _split(self, dim: int) -> str:
        if self.axes and self.axes[dim]:
            return f"Shard({dim}) over {' and '.join(map(repr, self.axes[dim]))}"
        return f"Shard({dim}) in {self.splits[dim]} parts"
