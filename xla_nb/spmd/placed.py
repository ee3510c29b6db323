"""The placement of tensors as plain data, which a cell's function can return to the notebook.

Does not use torch or torch_xla, which the notebook's kernel would have to import to unpickle it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xla_nb.wording import several, size, spans

_MAX_TENSORS, _MAX_PARTS = 60, 8  # maximum shown; repeated layers count as one


@dataclass(frozen=True)
class Placed:
    """The placement of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    parts: tuple[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], ...]  # (devices, region)

    @property
    def shard(self) -> tuple[int, ...]:
        """The shape of the largest part on a device."""
        return max(
            (tuple(stop - start for start, stop in region) for _, region in self.parts),
            key=math.prod,
        )

    @property
    def bytes_per_device(self) -> int:
        return math.prod(self.shard) * self.itemsize

    def lines(self) -> Iterator[str]:
        """One line per part: `devices 0, 2: [0:8, 0:8]`."""
        for devices, region in self.parts[:_MAX_PARTS]:
            extent = ", ".join(f"{start}:{stop}" for start, stop in region)
            is_empty = any(start == stop for start, stop in region)
            numbers = f"device{'s' * (len(devices) > 1)} {spans(devices)}"
            yield f"{numbers}: {'nothing' if is_empty else f'[{extent}]'}"
        if self.parts[_MAX_PARTS:]:
            yield f"and {len(self.parts) - _MAX_PARTS} more parts"


@dataclass(frozen=True)
class Picture:
    """Which device holds which part: a notebook displays it, a terminal prints it."""

    tensors: Mapping[str, Placed]

    def __str__(self) -> str:
        return "\n".join([self._heading(), *self._lines()])

    __repr__ = __str__

    def _heading(self) -> str:
        devices = {d for placed in self.tensors.values() for ids, _ in placed.parts for d in ids}
        nbytes = sum(placed.bytes_per_device for placed in self.tensors.values())
        return f"{several(len(devices), 'device')}, {size(nbytes)} on each"

    def _lines(self) -> Iterator[str]:
        """Name, facts and parts of each tensor; repeated layers with the same placement are merged
        into one, with `*` for the layer's number."""
        groups: dict[tuple[str, Placed], list[str]] = {}
        for name, placed in self.tensors.items():
            pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
            groups.setdefault((pattern, placed), []).append(name)
        for (pattern, placed), names in list(groups.items())[:_MAX_TENSORS]:
            yield ""
            yield f"{pattern} ({len(names)} like this)" if names[1:] else names[0]
            shape = "x".join(map(str, placed.shape)) or "scalar"
            yield f"{shape} {placed.dtype}, {size(placed.bytes_per_device)} on each device"
            yield from (f"  {part}" for part in placed.lines())
        if len(groups) > _MAX_TENSORS:
            yield from ("", f"and {len(groups) - _MAX_TENSORS} more tensors")
