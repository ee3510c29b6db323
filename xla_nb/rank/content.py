"""The elements of a tensor or array: their digest, norm and NaNs, piece by piece.

Equal numbers have equal digests: all NaNs are one, and -0.0 is 0.0. A piece is small, so that large
tensors need no memory of their own and a deadline is kept.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xla_nb.protocol.variables import BLOCK
from xla_nb.rank.deadline import Deadline

_MOST = 1 << 16  # elements of a piece, which stays in the processor's cache
_DIGEST = 32  # characters


@dataclass(frozen=True)
class Content:
    """As the fields of `Leaf`; `value` is its element if there is only one."""

    digest: str
    nans: int
    norm: float | None
    value: str


class Incomparable(Exception):
    """Says why equal elements might not have equal bytes."""


def content(array: Any, deadline: Deadline) -> Content:
    """Of a NumPy array or a CPU tensor. Raises Incomparable and `hostile.TooLong`."""
    numpy: Any = importlib.import_module("numpy")
    hasher = hashlib.sha256()
    nans, squares, count, piece = 0, 0.0, 0, None
    for piece in pieces(array, deadline):
        hasher.update(piece.view(numpy.uint8).data if piece.size else b"")
        count += piece.size
        if piece.dtype.kind in "fc":
            nans += int(numpy.isnan(piece).sum())
        if piece.dtype.kind in "biufc":
            squares += _squares(numpy, piece)
    has_numbers = piece is not None and piece.dtype.kind in "biufc"
    norm = math.sqrt(squares) if has_numbers and math.isfinite(squares) else None
    value = str(piece[0]) if count == 1 and piece is not None else ""
    return Content(hasher.hexdigest()[:_DIGEST], nans, norm, value)


def _squares(numpy: Any, piece: Any) -> float:
    """The sum of the squares of those that are finite. Without BLAS, whose threads would take the
    cores of all other ranks."""
    if piece.dtype.kind == "c":
        piece = piece.view(f"f{piece.itemsize // 2}")
    with numpy.errstate(all="ignore"):
        total = float(numpy.square(piece, dtype=numpy.float64).sum())
        if not math.isfinite(total):
            finite = piece[numpy.isfinite(piece)]
            total = float(numpy.square(finite, dtype=numpy.float64).sum())
    return total


def blocks(array: Any, deadline: Deadline) -> tuple[str, ...]:
    """The digests of blocks of BLOCK bytes."""
    numpy: Any = importlib.import_module("numpy")
    made: list[str] = []
    hasher, room = hashlib.sha256(), BLOCK
    for piece in pieces(array, deadline):
        rest = memoryview(piece.view(numpy.uint8))
        while rest:
            hasher.update(rest[:room])
            rest, room = rest[room:], room - min(room, len(rest))
            if not room:
                made.append(hasher.hexdigest()[:_DIGEST])
                hasher, room = hashlib.sha256(), BLOCK
    return (*made, hasher.hexdigest()[:_DIGEST]) if room < BLOCK else tuple(made)


def pieces(array: Any, deadline: Deadline) -> Iterator[Any]:
    """The elements row by row, as NumPy arrays of one dimension. Raises as `content` does."""
    numpy: Any = importlib.import_module("numpy")
    is_array = numpy.ndarray in type(array).__mro__
    if is_array:
        array = numpy.asarray(array)  # without the methods of its own class
        _refuse(array.dtype)
    for piece in _split(array):
        deadline.check()
        flat = piece.reshape(-1)
        yield _canonical(numpy, flat if is_array else _as_numpy(numpy, flat))


def _refuse(dtype: Any) -> None:
    if dtype.hasobject:
        raise Incomparable("its elements are Python objects")
    widest = {"V": 0, "f": 8, "c": 16}.get(dtype.kind)  # wider ones have bytes that mean nothing
    if widest is not None and dtype.itemsize > widest:
        raise Incomparable(f"its elements are {dtype}")


def _split(array: Any) -> Iterator[Any]:
    """Parts of at most _MOST elements; views, whatever the strides are."""
    count = math.prod(array.shape)
    if count <= _MOST:
        yield array
        return
    inner = count // array.shape[0]
    step = max(1, _MOST // inner)
    for start in range(0, array.shape[0], step):
        yield from _split(array[start : start + step]) if step > 1 else _split(array[start])


def _as_numpy(numpy: Any, flat: Any) -> Any:
    """The elements of a CPU tensor: those that NumPy does not have (bfloat16) as float32."""
    torch: Any = importlib.import_module("torch")
    with torch._C.DisableTorchFunction():
        flat = flat.resolve_conj().resolve_neg()
        try:
            return flat.numpy()
        except TypeError:
            if flat.is_complex():
                return flat.to(torch.complex64).numpy()
            if flat.is_floating_point():
                return flat.to(torch.float32).numpy()
            raise Incomparable(f"its elements are {flat.dtype}") from None


def _canonical(numpy: Any, flat: Any) -> Any:
    flat = numpy.ascontiguousarray(flat)
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    if flat.dtype.kind not in "fc":
        return flat
    with numpy.errstate(all="ignore"):  # signalling NaNs
        flat = flat + flat.dtype.type(0)
    lost = numpy.isnan(flat)
    if lost.any():
        flat[lost] = numpy.nan
    return flat
