"""What ranks tell of their variables: descriptions, small and plain, and values where asked for.

A variable is told by its leaves: a tensor is one, a model has one for each parameter and buffer. A
leaf has a digest, so that ranks can be compared without their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: known    its digest is here
#: pending  lazily recorded on the device and not computed yet
#: late     the time for looking was over
#: opaque   it cannot be compared; `why` says why
State = Literal["known", "pending", "late", "opaque"]

#: The path of the leaves that are told as one, where there are too many.
REST = "…"
#: Bytes of a leaf that are sent as they are; of more there are digests of its blocks.
LARGEST = 64 << 20
#: Bytes of a block.
BLOCK = 4 << 20


@dataclass(frozen=True)
class Leaf:
    """A tensor, array, number, text or the like inside a variable.

    path    how to get there from the variable: `.fc1.weight`, `['lr']`; "" for the variable itself
    shape   of a tensor or array; None for anything else
    nbytes  in bytes, where its elements are
    digest  of its elements, with all NaNs made one and -0.0 made 0.0; "" unless it is known
    nans    how many of them are NaN
    norm    the square root of the sum of their squares, without those that are not finite; None
            for what has no numbers
    value   a single number or a short text, as Python writes it
    part    it is this rank's part of a sharded one, so that ranks differ by design
    """

    path: str
    kind: str
    state: State
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    nbytes: int = 0
    digest: str = ""
    nans: int = 0
    norm: float | None = None
    value: str = ""
    why: str = ""
    part: bool = False


@dataclass(frozen=True)
class Variable:
    """One name of a rank's namespace; `text` is what it holds in at most 80 characters.

    shape, dtype and device are those of a tensor or array, or what its tensors have in common.
    nbytes: of all its tensors and arrays, each counted once."""

    name: str
    type: str
    leaves: tuple[Leaf, ...]
    text: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Values:
    """The elements of one leaf, row by row, all NaNs made one; or why they are not here.

    dtype   NumPy's name of how they are written here (bfloat16 as float32)
    data    their bytes; None for more than LARGEST, or where `why` says so
    blocks  the digests of blocks of BLOCK bytes, where there is no data
    """

    name: str
    path: str
    dtype: str = ""
    data: bytes | None = None
    blocks: tuple[str, ...] = ()
    why: str = ""
