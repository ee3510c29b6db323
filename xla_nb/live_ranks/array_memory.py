"""Compare the memory of arrays and tensors with what was sent, to detect writes by the notebook.

An array is written in place, so the same object may have new content. What was sent stays in the
file that ranks map as well, and is compared with the current memory: this is faster than any
digest, and certain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from xla_nb.pickling.parcel import Packed, address_of

#: First address and size, in bytes.
Place: TypeAlias = tuple[int, int]

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class Memory:
    """The memory of one unit: the current memory while it is looked at, and what was `sent` of it,
    in the order of `places`; None if unknown."""

    def __init__(self, parcel: Packed) -> None:
        self._current, self._owner = [buffer.raw() for buffer in parcel.buffers], parcel.writer
        self.sent: list[memoryview] | None = None
        self.places: list[Place] = [(address_of(raw), raw.nbytes) for raw in self._current]

    def is_as_sent(self, current: Memory) -> bool:
        """True if the current memory equals what was sent."""
        sent, pieces = self.sent, current._current
        if sent is None or len(sent) != len(pieces):
            return False
        sizes = [(first.nbytes, second.nbytes) for first, second in zip(sent, pieces, strict=True)]
        return all(first == second for first, second in sizes) and all(map(_equal, sent, pieces))

    def keep(self, copies: Mapping[Place, memoryview]) -> None:
        """Record that it was sent and drop the current memory."""
        sent = [copy for raw in self._current if (copy := _copy_of(raw, copies)) is not None]
        self.sent = sent if len(sent) == len(self._current) else None  # None: it is sent again
        self._current, self._owner = [], None


def copies_of(
    parcel: Packed, copies: Iterable[memoryview], kept: Iterable[Memory]
) -> dict[Place, memoryview]:
    """Return the memory in a parcel's file, and that of units sent before, by its place in the
    notebook."""
    sent = dict(zip(Memory(parcel).places, copies, strict=True))
    for unit in kept:
        sent.update(zip(unit.places, unit.sent or (), strict=False))
    return sent


def _copy_of(raw: memoryview, copies: Mapping[Place, memoryview]) -> memoryview | None:
    """Return what was sent of memory; of memory created for the pickle, such as Arrow's buffers, by
    its content."""
    address, size = address_of(raw), raw.nbytes
    if (address, size) in copies:
        return copies[address, size]
    for (first, length), copy in copies.items():
        if first <= address and address + size <= first + length:
            return copy[address - first :][:size]
    alike = (copy for copy in copies.values() if copy.nbytes == size)
    return next((copy for copy in alike if _equal(copy, raw)), None)


def _equal(sent: memoryview, current: memoryview) -> bool:
    """True if two pieces of memory of the same size are equal."""
    if current.readonly and address_of(current) < 0:  # memory of `bytes`
        return sent == current
    return bool(_compare(address_of(sent), address_of(current), current.nbytes) == 0)
