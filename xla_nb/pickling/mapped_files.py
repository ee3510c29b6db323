"""Shared mappings of files: memory that the notebook and the ranks of its machine can both map.

Shared memory (tensors after `share_memory_()`, arrays over a `RawArray` or a `SharedMemory`) and
`np.memmap` are such mappings. The kernel lists them in /proc/self/maps (proc(5)), whatever created
them.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import mmap
import os
import stat
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

#: A file's device and inode.
Identity: TypeAlias = tuple[int, int]

#: Why a file cannot be opened again.
GONE = "the notebook closed it or runs on another machine"


@dataclass(frozen=True)
class File:
    """A file by its path, opened for `access` (os.O_RDONLY, O_WRONLY or O_RDWR).

    The path may later belong to another file, or to another machine's: `identity` detects that.
    """

    path: str
    access: int
    identity: Identity

    @classmethod
    def of(cls, fd: int) -> File:
        """Return an open file of this process, even a deleted one."""
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        return cls(f"/proc/{os.getpid()}/fd/{fd}", access, identity(fd))

    def detach(self) -> int:
        """Open the file; multiprocessing calls this instead of receiving a descriptor.

        Raises FileNotFoundError if it is gone.
        """
        try:
            fd = os.open(self.path, self.access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            raise FileNotFoundError(GONE) from problem
        if identity(fd) != self.identity:
            os.close(fd)
            raise FileNotFoundError(GONE)
        os.set_blocking(fd, True)
        return fd


def identity(fd: int) -> Identity:
    """Return the identity of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


@dataclass(frozen=True)
class Mapping:
    """Addresses from `start` to `end` that map `file` from `offset` on, all in bytes."""

    start: int
    end: int
    offset: int
    writable: bool
    file: File

    def part(self, address: int, size: int) -> dict[str, Any]:
        """Return the argument with which `open_part` maps the memory at an address."""
        file = asdict(self.file)
        return {"offset": self.offset + address - self.start, "size": size, "file": file}


def shared_mappings() -> list[Mapping]:
    """Return this process's mappings, except those of files that cannot be opened again."""
    mappings: list[Mapping] = []
    fds: dict[Identity, int] | None = None
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, rights, offset, device, inode, *path = line.split(maxsplit=5)
        if rights[3] != "s" or rights[0] != "r" or not path:
            continue
        if fds is None:
            fds = _open_files()
        major, minor = (int(part, 16) for part in device.split(":"))
        file = _file((os.makedev(major, minor), int(inode)), path[0], rights[1] == "w", fds)
        if file is not None:
            start, end = (int(part, 16) for part in addresses.split("-"))
            mappings.append(Mapping(start, end, int(offset, 16), rights[1] == "w", file))
    return mappings


def _file(wanted: Identity, path: str, writable: bool, fds: dict[Identity, int]) -> File | None:
    access = os.O_RDWR if writable else os.O_RDONLY
    if wanted in fds:
        return File(f"/proc/{os.getpid()}/fd/{fds[wanted]}", access, wanted)
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    is_same = stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) == wanted
    return File(path, access, wanted) if is_same else None


def _open_files() -> dict[Identity, int]:
    """Return the descriptors of this process's open files."""
    fds: dict[Identity, int] = {}
    for entry in os.scandir("/proc/self/fd"):
        try:
            if stat.S_ISREG(os.fstat(int(entry.name)).st_mode):
                fds[identity(int(entry.name))] = int(entry.name)
        except OSError:  # the listing's own descriptor
            continue
    return fds


def holding(mappings: Sequence[Mapping], address: int, size: int) -> Mapping | None:
    """Return the mapping that contains all of this memory."""
    end = address + size
    return next((one for one in mappings if one.start <= address and end <= one.end), None)


def open_part(part: dict[str, Any]) -> memoryview:
    """Map memory described by `Mapping.part`. Raises FileNotFoundError if it is gone."""
    file = File(part["file"]["path"], part["file"]["access"], tuple(part["file"]["identity"]))
    fd = file.detach()
    try:
        if os.fstat(fd).st_size < part["offset"] + part["size"]:
            raise FileNotFoundError("its file has been truncated")
        padding = part["offset"] % mmap.ALLOCATIONGRANULARITY
        whole = _map(fd, part["offset"] - padding, padding + part["size"], file.access)
    finally:
        os.close(fd)
    whole.file = file if file.access == os.O_RDWR and part["offset"] == 0 else None
    memory = memoryview(whole).cast("B")[padding:]
    return memory if file.access == os.O_RDWR else memory.toreadonly()


def _map(fd: int, offset: int, length: int, access: int) -> Any:
    """Map memory of a file for as long as anything refers to it.

    Not with Python's `mmap`, which keeps its own descriptor: in the notebook that could be the one
    by which ranks are to open the file, and be closed before they do.
    """
    rights = mmap.PROT_READ | (mmap.PROT_WRITE if access == os.O_RDWR else 0)
    address = _libc.mmap(None, length, rights, mmap.MAP_SHARED, fd, offset)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    whole = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(whole, _libc.munmap, address, length).atexit = False
    return whole


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_MAP_FAILED = ctypes.c_void_p(-1).value


def file_of(memory: memoryview) -> File | None:
    """Return the file if `memory`, from `open_part` or a slice of it, maps the file from its
    start."""
    whole = memory.obj
    file: File | None = getattr(whole, "file", None)
    if file is None or memory.readonly:
        return None
    first, start = (ctypes.addressof(ctypes.c_char.from_buffer(buf)) for buf in (whole, memory))
    return file if first == start else None


def as_memmap(array: Any, filename: str | None, offset: int, mode: str) -> Any:
    numpy: Any = importlib.import_module("numpy")
    memmap = array.view(numpy.memmap)
    memmap._mmap, memmap.filename, memmap.offset, memmap.mode = None, filename, offset, mode
    return memmap
