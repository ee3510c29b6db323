"""A parcel: one pickle stream in a file, with the memory of arrays and tensors beside it (PEP 574).

The file is a memfd on the way to ranks, and a file of the record on the way back. Overlapping
memory is written once, so that views of one array still share it; memory that the notebook shares
by a file (`mapped_files`) is not copied but mapped on ranks as well. The parcel is mapped, not
read, so that ranks forked after unpickling share one copy.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import importlib
import io
import itertools
import json
import mmap
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_nb import untrusted
from xla_nb.pickling import rebuild
from xla_nb.pickling.mapped_files import Mapping as SharedMapping
from xla_nb.pickling.mapped_files import holding, open_part, shared_mappings
from xla_nb.wording import in_one_line

_ALIGN = 64  # bytes, for vectorized loads in NumPy and torch
#: Bytes of a parcel above which it is not compared: reading them would take long.
MOST_COMPARED = 64 << 20
_MAX_READ = 1 << 20  # bytes up to which a parcel is read rather than mapped
#: The name of an unopened value if it is memory of several values.
SHARED_MEMORY = "shared memory"
_HEADER_SIZE = 16  # the index's length in ASCII digits, then the index, then the data


@dataclass(frozen=True)
class Packed:
    """A pickle and the memory beside it, which belongs to the objects until it is written."""

    stream: memoryview
    buffers: tuple[pickle.PickleBuffer, ...]
    writer: Any  # keeps the memory that the buffers point to
    imports: tuple[str, ...] = ()  # modules to be imported before anything is opened, in order

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to open because live ranks have all that a cell needs."""
        return not self.stream.nbytes and not self.imports

    def shares(self) -> bool:
        """True if it has memory that the notebook shares by a file and can write to."""
        mappings = [mapping for mapping in self._mappings if mapping.writable]
        raws = [buffer.raw() for buffer in self.buffers]
        return any(holding(mappings, address_of(raw), raw.nbytes) for raw in raws)

    def overlaps(self, pieces: Iterable[tuple[int, int]]) -> bool:
        """True if pieces of memory, by first address and end, overlap each other, the buffers, or a
        mapping of a file."""
        if not (bounds := list(pieces)):
            return False
        raws = [buffer.raw() for buffer in self.buffers]
        starts = [(address_of(raw), raw.nbytes) for raw in raws]
        ordered = sorted([*bounds, *((start, start + size) for start, size in starts)])
        located = [(start, end) for start, end in ordered if start >= 0]
        mappings = shared_mappings()
        return any(first[1] > second[0] for first, second in itertools.pairwise(located)) or any(
            holding(mappings, start, end - start) for start, end in bounds
        )

    def write(self, fd: int, share: bool = False) -> int:
        """Write the parcel to an open file; return its size in bytes.

        share: openers on this machine map the memory that this process shares by files
        """
        distinct, slices = merged([buffer.raw() for buffer in self.buffers])
        pieces, offset = [self.stream], _aligned(self.stream.nbytes)
        places: list[tuple[int, int]] = []
        parts: list[dict[str, Any]] = []
        for piece in distinct:
            address = address_of(piece)
            if share and (mapping := holding(self._mappings, address, piece.nbytes)):
                places.append((1 + len(parts), 0))
                parts.append(mapping.part(address, piece.nbytes))
            else:
                places.append((0, offset))
                pieces.append(piece)
                offset = _aligned(offset + piece.nbytes)
        index = json.dumps(
            {
                "stream": self.stream.nbytes,
                # each in the parcel (0) or in one of the parts after it
                "buffers": [
                    (places[n][0], places[n][1] + start, size) for n, start, size in slices
                ],
                "parts": parts,
                "imports": self.imports,
            }
        ).encode()
        os.pwrite(fd, b"%0*d" % (_HEADER_SIZE, len(index)) + index, 0)
        data_start = position = _aligned(_HEADER_SIZE + len(index))
        for piece in pieces:
            position, remaining = _aligned(position), piece
            while remaining.nbytes:
                written = os.pwrite(fd, remaining, position)
                position, remaining = position + written, remaining[written:]
        os.ftruncate(fd, max(data_start + offset, 1))
        return data_start + offset

    def to_memfd(self, share: bool = False) -> int:
        """Return the parcel in a memfd, which the caller closes. Raises OSError."""
        fd = os.memfd_create("xla_nb-parcel", os.MFD_CLOEXEC)
        try:
            self.write(fd, share)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @functools.cached_property
    def _mappings(self) -> list[SharedMapping]:
        return shared_mappings() if self.buffers else []


def merged(buffers: list[memoryview]) -> tuple[list[memoryview], list[tuple[int, int, int]]]:
    """Return pieces of memory that do not overlap, and for each buffer its piece, start and
    size."""
    places = [address_of(buffer) for buffer in buffers]
    order = sorted(range(len(buffers)), key=lambda n: (places[n], -buffers[n].nbytes))
    pieces: list[memoryview] = []
    slices = [(0, 0, 0)] * len(buffers)
    start = end = -1
    for number in order:
        address, size = places[number], buffers[number].nbytes
        if not start <= address < end:
            pieces.append(buffers[number])
            start, end = address, address + size
        elif address + size > end:
            end = address + size
            pieces[-1] = memoryview((ctypes.c_ubyte * (end - start)).from_address(start)).cast("B")
        slices[number] = len(pieces) - 1, address - start, size
    return pieces, slices


def address_of(raw: memoryview) -> int:
    """Return the address of memory; for read-only memory (`bytes`) a number unique to its
    object."""
    if not raw.nbytes:
        return -id(raw.obj) << 64
    if raw.readonly:
        return _read_only(raw)
    return ctypes.addressof(ctypes.c_char.from_buffer(raw))


def bounds_of(array: Any) -> tuple[int, int]:
    """Return the addresses around an array's elements."""
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    first: int = array.__array_interface__["data"][0]
    low, high = (sum(pick(step, 0) for step in steps) for pick in (min, max))
    return first + low, first + high + array.itemsize


def _read_only(raw: memoryview) -> int:
    numpy = sys.modules.get("numpy")
    if numpy is None or isinstance(raw.obj, bytes):
        return -id(raw.obj) << 64
    address: int = numpy.frombuffer(raw, numpy.uint8).__array_interface__["data"][0]
    return address


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _read_or_map(fd: int) -> Any:
    size = os.fstat(fd).st_size
    if size <= _MAX_READ:  # a map keeps a file descriptor open
        return bytearray(os.pread(fd, size, 0))
    # Private: a rank that writes to an array gets its own copy of the page.
    return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


_CREATION_ADVICE = (
    "Create it inside the function, or fix how its class is pickled (`__reduce__`, `__setstate__`)."
)
_PARTED_ADVICE = (
    "Create it in a %%xla cell from the ranks' values, or run this cell again to re-send all of it "
    "from the notebook."
)
#: Advice for a key whose own `__hash__` fails while it is unpickled.
_HASH_ADVICE = (
    "A key of a dict or set that refers back to its container is hashed before its attributes are "
    "set. Fill it inside the function."
)


def _is_from_hash(problem: BaseException) -> bool:
    """True if an exception was raised in a class's `__hash__` or `__eq__`."""
    frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_name in ("__hash__", "__eq__")


class Unopened(Exception):
    """Raised when a pickled value cannot be re-created; `name` is what holds it."""

    def __init__(self, name: str, problem: BaseException) -> None:
        kind = untrusted.name_of(type(problem))
        message = in_one_line(f"{kind}: {untrusted.message_of(problem)}", 300).rstrip(".")
        self.name, self.problem, self.advice = name, problem, _CREATION_ADVICE
        if isinstance(problem, ImportError):
            self.advice = f"Ranks search the notebook's `sys.path`, from {Path.cwd()}."
        elif isinstance(problem, SyntaxError):
            self.advice = f"Correct the file: ranks import `{name}` anew."
        elif isinstance(problem, FileNotFoundError):
            self.advice = "Keep it open until the ranks have received it."
        elif isinstance(problem, rebuild.Parted):
            self.advice = _PARTED_ADVICE
        elif _is_from_hash(problem):
            self.advice = _HASH_ADVICE
        super().__init__(f"Cannot open `{name}` on ranks: {message}. {self.advice}")


class Malformed(ValueError):
    """A file is not a complete parcel; the message is a reason, as in "is damaged (reason)"."""


class Parcel:
    """A received parcel. It is closed by the garbage collector, since its values may live longer.

    Raises Malformed, and Unopened if memory that the notebook shared is gone.

    buffers  the memory of arrays and tensors, in the order in which it was packed
    imports  modules to be imported before anything is opened, in order
    """

    def __init__(self, fd: int) -> None:
        self._map = memoryview(_read_or_map(fd))
        try:
            self._read_index()
        except FileNotFoundError as problem:
            raise Unopened(SHARED_MEMORY, problem) from problem
        except Malformed:
            raise
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as problem:
            raise Malformed(f"{untrusted.name_of(type(problem))}: {problem}") from problem

    def _read_index(self) -> None:
        """Locate the stream and the buffers using the index."""
        length = int(bytes(self._map[:_HEADER_SIZE]))
        index = json.loads(bytes(self._map[_HEADER_SIZE : _HEADER_SIZE + length]))
        data = self._map[_aligned(_HEADER_SIZE + length) :]
        self._stream = _slice(data, 0, index["stream"])
        self.imports: list[str] = index["imports"]
        sources = [data, *map(open_part, index["parts"])]
        self.buffers = [_slice(sources[n], start, size) for n, start, size in index["buffers"]]

    def open(
        self,
        namespace: dict[str, Any] | None = None,
        resolve: Callable[[str | int], object] | None = None,
        table: rebuild.Definitions | None = None,
        but: Collection[str] = (),
    ) -> dict[str, object]:
        """Return the values by name. Raises Unopened, and Malformed if there are none.

        Functions of the notebook get `namespace` as their globals. Values are put into it as they
        are created, since later ones may need them, but never over the names `but`, which are the
        ranks' own. `resolve` finds names of ``__main__``, and objects that it sent by their
        numbers. Either is this process's own by default. `table`: that of live ranks, which were
        sent classes before.
        """
        stream = io.BytesIO(self._stream)
        reader = _Unpickler(stream, buffers=self.buffers)
        main: dict[Any, Any] = vars(sys.modules["__main__"])
        globals_ = main if namespace is None else namespace
        before = collections.ChainMap(dict(namespace or {}), globals_)
        kept = {name: namespace[name] for name in but if name in namespace} if namespace else {}
        values: dict[str, object] = {}
        table = rebuild.Definitions() if table is None else table
        opening = rebuild.Opening(globals_, before, table, resolve or main.__getitem__)
        token = rebuild.opening.set(opening)
        try:
            rebuild.import_all(self.imports)
            while stream.tell() < self._stream.nbytes:  # many pickles with one memory
                name, late = _header(reader)
                try:
                    value = reader.load()
                except KeyboardInterrupt:
                    raise
                except BaseException as problem:  # `__setstate__` may even exit
                    raise Unopened(name, problem) from problem
                if not late:
                    values[name] = value
                    if namespace is not None and name not in but:
                        namespace[name] = value
        finally:
            rebuild.opening.reset(token)
        if namespace is not None:
            namespace.update(kept)  # also those that were unbound
        reader.memo.clear()  # which would keep objects alive until the garbage collector runs
        return values

    def digest(self) -> str:
        """Return a digest of the content that does not depend on where the memory beside the pickle
        was when it was packed."""
        hasher = hashlib.blake2b(self._stream)
        for buffer in self.buffers:
            hasher.update(b"%d:" % buffer.nbytes)
            hasher.update(buffer)
        return hasher.hexdigest()


def digest(path: Path) -> str:
    """Return the digest of a parcel's file; empty for a large one. Raises OSError, Malformed,
    Unopened."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Parcel(fd).digest() if os.fstat(fd).st_size <= MOST_COMPARED else ""
    finally:
        os.close(fd)


def _slice(source: memoryview, start: int, size: int) -> memoryview:
    """Return exactly `size` bytes. Raises Malformed."""
    if min(start, size) < 0 or start + size > source.nbytes:
        raise Malformed("it is truncated")
    return source[start : start + size]


def _header(reader: pickle.Unpickler) -> tuple[str, bool]:
    """Return the name of the next value and whether it is late. Raises Malformed."""
    try:
        name, late = reader.load()
    except Exception as problem:  # for garbage, pickle raises almost anything
        raise Malformed(f"{untrusted.name_of(type(problem))}: {problem}") from problem
    return name, late


def module_of_nan(nan: float) -> str | None:
    """Return the module whose `nan` this object is: `nan in rows` finds it by identity. Pickle
    writes other NaNs by value."""
    return next((m for m in _WITH_NAN if getattr(sys.modules.get(m), "nan", None) is nan), None)


_WITH_NAN = "math", "numpy"


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, token: str | list[object]) -> object:
        """Return the NaN of a module, or an object of one."""
        return token[0] if isinstance(token, list) else importlib.import_module(token).nan

    def find_class(self, module: str, name: str) -> Any:
        return rebuild.at_home(name) if module == "__main__" else super().find_class(module, name)
