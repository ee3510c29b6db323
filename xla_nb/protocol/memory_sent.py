"""The memory of arrays and tensors that was sent, to tell whether the notebook has written to it.

An array is written in place: that it is the same object says nothing. What was sent stays in the
file that ranks map as well, and is compared with what is there now: faster than any digest, and
certain. Of large memory, pages that the kernel knows to be unwritten are not compared again.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from xla_nb.protocol.parcel import Packed, Parcel, address_of
from xla_nb.written_pages import Region, Watch, watch

_LARGE = 8 << 20  # bytes that take longer to compare than to ask the kernel about

#: First address and size, in bytes.
Place: TypeAlias = tuple[int, int]

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class Memory:
    """That of one unit: what there is now, while it is looked at, and what was sent of it.
    `before` is the same unit's that was sent."""

    def __init__(self, buffers: Sequence[pickle.PickleBuffer], before: Memory | None) -> None:
        self._now = [buffer.raw() for buffer in buffers]
        self._sent: list[memoryview] | None = None
        self._watches: dict[Place, Watch] = {}
        self._trusted = True
        self._unwritten: dict[Place, list[Region]] = {}
        self.places: list[Place] = [(address_of(raw), raw.nbytes) for raw in self._now]
        known = before._watches if before is not None else {}
        for place in {one for one in self.places if one[1] >= _LARGE}:
            watched = known.get(place) or watch(*place)  # before it is written to the parcel
            if watched is not None:
                self._watches[place] = watched
            if watched is not None and place in known:
                self._unwritten[place] = watched.unwritten()
        if before is not None:
            if not before._trusted:
                self._unwritten = {}
            before._trusted = False  # until it turns out to be as it was sent

    def is_as_sent(self, now: Memory) -> bool:
        """Whether what is there now is what was sent of this."""
        sent, there = self._sent, now._now
        if sent is None or len(sent) != len(there):
            return False
        pairs = zip(sent, there, strict=True)
        return all(one.nbytes == other.nbytes for one, other in pairs) and all(
            _equal(one, other, now._unwritten.get(place, ()))
            for one, other, place in zip(sent, there, now.places, strict=True)
        )

    def stays(self, now: Memory) -> None:
        """It is as it was sent: what is not written to from now on will be so as well."""
        self._watches, self._trusted = now._watches, True

    def keep(self, sent: SentMemory) -> None:
        """It was sent: from now on only that counts."""
        found = [sent.find(*place) for place in self.places]
        known = [one for one in found if one is not None]
        self._sent = known if len(known) == len(found) else None  # or it is sent again
        self._now, self._unwritten = [], {}


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


def _equal(sent: memoryview, now: memoryview, unwritten: Iterable[Region]) -> bool:
    """Whether two pieces of memory are equal, the second of which is known to be, in parts."""
    if now.readonly and address_of(now) < 0:  # of `bytes`
        return sent == now
    ours, theirs = address_of(sent), address_of(now)
    return all(
        _compare(ours + start, theirs + start, end - start) == 0
        for start, end in _between(unwritten, theirs, now.nbytes)
    )


def _between(regions: Iterable[Region], address: int, size: int) -> Iterator[Region]:
    """What is not in sorted regions of the memory at an address, by places in it."""
    start = 0
    for first, end in regions:
        if first - address > start:
            yield start, first - address
        start = end - address
    if start < size:
        yield start, size
