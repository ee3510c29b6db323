"""The memory of arrays and tensors that was sent, to tell whether the notebook has written to it.

An array is written in place: that it is the same object says nothing. What was sent stays in the
file that ranks map as well, and is compared with what is there now, which is faster than any
digest, and certain.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence

from xla_nb.protocol.parcel import Packed, Parcel, address_of

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class Memory:
    """That of one unit: what there is `now`, while it is looked at, and what was sent of it."""

    def __init__(self, buffers: Sequence[pickle.PickleBuffer]) -> None:
        self.now: tuple[memoryview, ...] = tuple(buffer.raw() for buffer in buffers)
        self.places = tuple((address_of(raw), raw.nbytes) for raw in self.now)
        self._sent: list[memoryview] | None = None

    def is_as_sent(self, now: Memory) -> bool:
        """Whether what is there now is what was sent of this."""
        if self._sent is None or len(self._sent) != len(now.now):
            return False
        return all(_equal(one, other) for one, other in zip(self._sent, now.now, strict=True))

    def keep(self, sent: SentMemory) -> None:
        """From now on only what was sent counts."""
        found = [sent.find(address, size) for address, size in self.places]
        self._sent = [one for one in found if one is not None]
        if len(self._sent) < len(found):
            self._sent = None  # and it is sent again
        self.now = ()


class SentMemory:
    """The memory in a parcel's file, found by the addresses that it had in the notebook."""

    def __init__(self, packed: Packed, files: Sequence[int]) -> None:
        raws = [buffer.raw() for buffer in packed.buffers]
        copies = [copy for file in files for copy in Parcel(file).buffers]
        self._copies = {
            (address_of(raw), raw.nbytes): copy for raw, copy in zip(raws, copies, strict=True)
        }

    def find(self, address: int, size: int) -> memoryview | None:
        if (address, size) in self._copies:
            return self._copies[address, size]
        for (first, length), copy in self._copies.items():
            if first <= address and address + size <= first + length:
                return copy[address - first :][:size]
        return None


def _equal(one: memoryview, other: memoryview) -> bool:
    if one.nbytes != other.nbytes:
        return False
    if other.readonly and address_of(other) < 0:  # of `bytes`
        return one == other
    size = one.nbytes
    return size == 0 or _compare(address_of(one), address_of(other), size) == 0
