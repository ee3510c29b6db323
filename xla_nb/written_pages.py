"""Which pages of this process's memory were written to since a moment (Linux >= 6.7).

The kernel marks pages as write-protected without ever stopping a write (userfaultfd, WP_ASYNC),
and tells which still are (PAGEMAP_SCAN). Whatever it does not vouch for counts as written. What a
device writes to memory on its own it does not see.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

#: Memory by its first address and its end.
Region: TypeAlias = tuple[int, int]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SYSCALLS = {"x86_64": 323, "aarch64": 282}  # userfaultfd(2)
_USER_MODE_ONLY = 1  # which needs no privilege
_API, _VERSION = 0xC018AA3F, 0xAA
_REGISTER, _WRITE_PROTECT = 0xC020AA00, 2
_FEATURES = 1 << 13 | 1 << 15  # WP_UNPOPULATED, WP_ASYNC (linux/userfaultfd.h)
_SCAN, _PROTECT, _CHECK = 0xC0606610, 1, 2  # PAGEMAP_SCAN (linux/fs.h)
_WRITTEN, _PRESENT = 1 << 1, 1 << 3
_REGIONS = 1024  # that one call can tell


class Watch:
    """Watches the whole pages from one address up to another."""

    def __init__(self, kernel: _Kernel, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._kernel = kernel
        self._written: list[Region] = []

    def unwritten(self) -> list[Region]:
        """Memory that is as it was at the last call, or at first when it began to be watched. What
        this does not name may have been written to."""
        kernel = self._kernel
        if kernel.process != os.getpid():  # this one is a copy of the process that it tells of
            return []
        with kernel.lock:
            written = self._written
            try:
                kernel.protect(self.start, self.end)  # what is written from now on is not clean
                clean = kernel.clean(self.start, self.end)
            except OSError:  # this memory is not what was watched any more
                return []
            self._written = []
        return list(_without(clean, sorted(written)))

    def note(self, written: list[Region]) -> None:
        """Take note of pages that were written to, of which the kernel does not tell again."""
        inside = (one for one in written if one[0] < self.end and self.start < one[1])
        self._written.extend(inside)


def watch(address: int, size: int) -> Watch | None:
    """Begin to watch memory; None where this cannot be done."""
    start, end = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    kernel = _kernel_of(os.getpid())
    if kernel is None or start >= end or not _is_own(start, end):
        return None
    made = Watch(kernel, start, end)
    with kernel.lock:
        try:
            kernel.register(start, end)
            kernel.protect(start, end)
        except OSError:
            return None
        kernel.watches.add(made)
    return made


def _is_own(start: int, end: int) -> bool:
    """Whether memory is this process's alone, and no file's: nobody else can write to it."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, rights, _, _, inode, *_ = line.split(maxsplit=5)
        first, last = (int(part, 16) for part in addresses.split("-"))
        if first <= start < last:
            if rights[:2] != "rw" or rights[3] != "p" or inode != "0":
                return False
            if end <= last:
                return True
            start = last
    return False


def _without(regions: Iterable[Region], others: list[Region]) -> Iterator[Region]:
    """What regions have that others do not; both are sorted, and others may overlap."""
    at = 0
    for first, end in regions:
        start = first
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                yield start, others[at][0]
            start = max(start, others[at][1])
            if start >= end:
                break  # the next region may begin inside this one
            at += 1
        if start < end:
            yield start, end


class _Kernel:
    """Asks for the pages of one process, of which it tells all that `watches` there is."""

    def __init__(self, process: int, faults: int, pages: int) -> None:
        self.process = process
        self.lock = threading.Lock()
        self.watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._faults, self._pages = faults, pages
        weakref.finalize(self, _close, faults, pages)

    def register(self, start: int, end: int) -> None:
        """Raises OSError."""
        about = struct.pack("4Q", start, end - start, _WRITE_PROTECT, 0)
        fcntl.ioctl(self._faults, _REGISTER, about)

    def protect(self, start: int, end: int) -> None:
        """Have what is written from now on noticed, and tell of what was. Raises OSError."""
        written = list(self._regions(start, end, _PROTECT, _WRITTEN, 0))
        for one in self.watches:
            one.note(written)

    def clean(self, start: int, end: int) -> list[Region]:
        """Pages that are there and were not written to since. Raises OSError."""
        return list(self._regions(start, end, 0, _WRITTEN | _PRESENT, _WRITTEN))

    def _regions(
        self, start: int, end: int, protect: int, mask: int, inverted: int
    ) -> Iterator[Region]:
        found = (ctypes.c_uint64 * (3 * _REGIONS))()
        place = ctypes.addressof(found)
        while start < end:
            flags = protect | _CHECK
            asked = bytearray(
                struct.pack(
                    "12Q", 96, flags, start, end, 0, place, _REGIONS, 0, inverted, mask, 0, _WRITTEN
                )
            )
            number = fcntl.ioctl(self._pages, _SCAN, asked)
            yield from zip(found[: 3 * number : 3], found[1 : 3 * number : 3], strict=True)
            (start,) = struct.unpack_from("Q", asked, 32)  # how far it has come


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


#: By process, for as long as something is watched: what one watch makes the kernel forget, all
#: others must be told.
_ASKED: weakref.WeakValueDictionary[int, _Kernel] = weakref.WeakValueDictionary()


def _kernel_of(process: int) -> _Kernel | None:
    """None where this kernel, or what a process may do, is not enough."""
    kernel = _ASKED.get(process) or _kernel(process)
    if kernel is not None:
        _ASKED[process] = kernel
    return kernel


def _kernel(process: int) -> _Kernel | None:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        return None
    faults = ctypes.CDLL(None).syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
    if faults < 0:
        return None
    with contextlib.suppress(OSError):
        fcntl.ioctl(faults, _API, struct.pack("3Q", _VERSION, _FEATURES, 0))
        pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        return _Kernel(process, faults, pages)
    os.close(faults)
    return None
