"""The sizes of a mesh's axes: -1 filled in, and checked against the number of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping


def complete(axes: Mapping[str, int], devices: int) -> dict[str, int] | None:
    """The size of each axis, -1 replaced by what the other axes leave.

    None where the sizes do not cover the devices exactly: more than one -1, a size below 1, or
    another product.
    """
    if list(axes.values()).count(-1) > 1:
        return None
    others = math.prod(size for size in axes.values() if size != -1)
    rest = devices // others if others > 0 else 0
    sizes = {name: rest if size == -1 else size for name, size in axes.items()}
    covered = min(sizes.values()) > 0 and math.prod(sizes.values()) == devices
    return sizes if covered else None
