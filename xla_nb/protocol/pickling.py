"""Values across processes: the notebook's values to ranks, and their results back.

A parcel is a file (a memfd to ranks, a file of the record back): a pickle stream for each group of
names, with large buffers beside them (pickle protocol 5, PEP 574). It is mapped, not read, so that
ranks forked after unpickling share one copy. Nothing here imports torch, which takes seconds;
where a value is a tensor it is already imported.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import mmap
import multiprocessing
import os
import pickle
import socket
import sys
import types
from collections.abc import Callable, Container, Mapping, Sequence
from multiprocessing import queues, synchronize
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.errors import ShippingError
from xla_nb.protocol import jax_values

_ALIGN = 64  # bytes, for vectorized loads in NumPy and torch
_SMALL = 1 << 20  # bytes up to which a parcel is read rather than mapped
_HEAD = 16  # the index's length in ASCII digits, then the index, then the data


class Unshippable(TypeError):
    """Raised while pickling a value that is or contains `thing`; `advice` is what to do instead."""

    def __init__(self, thing: str, advice: str) -> None:
        super().__init__(f"it is or contains {thing}")
        self.advice = advice


# ---------------------------------------------------------------- pickling


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle ships no types
    """cloudpickle, with storages out of band and classes of the notebook by name.

    `by_name` are top-level names of ``__main__`` that the other side defines itself.
    """

    def __init__(self, file: io.BytesIO, by_name: Container[str], keep: Callable[..., Any]):
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._by_name = by_name
        self._alive: dict[int, object] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and self._known(obj):
            return obj.__qualname__
        for reduce in (_reduce_stream, _reduce_shared, self._reduce_jax, self._reduce_torch):
            reduced = reduce(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    def _known(self, obj: type | types.FunctionType) -> bool:
        if obj.__module__ != "__main__" or "<locals>" in obj.__qualname__:
            return False
        first, *rest = obj.__qualname__.split(".")
        held = vars(sys.modules["__main__"]).get(first) if first in self._by_name else None
        for part in rest:
            held = getattr(held, part, None)
        return held is obj

    def _reduce_torch(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "UntypedStorage"):  # its import is unfinished
            return NotImplemented
        if isinstance(obj, torch.Tensor) and obj.device.type == "xla":
            return self.reduce_xla_tensor(obj)
        if isinstance(obj, torch.device) and obj.type == "xla":
            return self.reduce_xla_device(obj)
        if isinstance(obj, torch.storage.TypedStorage):
            raw = obj._untyped_storage
            if raw.device.type != "cpu":
                return NotImplemented
            # Tensors that share memory have a wrapper each: use one per address to keep sharing.
            raw = self._alive.setdefault(raw.data_ptr(), raw)
            return _typed_storage, (raw, obj.dtype)
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return _raw_storage, (self._memory(obj),)
        return NotImplemented

    def _reduce_jax(self, obj: Any) -> Any:
        if jax_values.is_torchax(obj):
            return self.reduce_torchax_tensor(obj)
        if jax_values.is_jax(obj):
            return self.reduce_jax_array(obj)
        device = getattr(sys.modules.get("torch"), "device", ())
        if isinstance(obj, device) and obj.type == "jax":
            return self.reduce_jax_device(obj)
        return NotImplemented

    def _memory(self, storage: Any) -> Any:
        if storage.nbytes() == 0:
            return b""
        self._alive[id(storage)] = storage
        memory = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
        return pickle.PickleBuffer(memory)

    def reduce_xla_tensor(self, tensor: Any) -> Any:
        raise Unshippable(
            "an XLA tensor",
            "Send `x.cpu()` and use `.to(device)` inside the function: ranks open the device "
            "themselves",
        )

    def reduce_xla_device(self, device: Any) -> Any:
        raise Unshippable("an XLA device object", "Call `torch_xla.device()` inside the function")

    def reduce_torchax_tensor(self, tensor: Any) -> Any:
        raise Unshippable(
            "a torchax tensor",
            'Send `x.cpu()` and use `.to("jax")` inside the function: ranks open the device '
            "themselves",
        )

    def reduce_jax_array(self, array: Any) -> Any:
        raise Unshippable(
            "a JAX array",
            "Send `numpy.asarray(x)`, which jax.numpy accepts: ranks open the device themselves",
        )

    def reduce_jax_device(self, device: Any) -> Any:
        return NotImplemented


class _HomePickler(_Pickler):
    """For results: values on devices become CPU tensors and NumPy arrays."""

    def reduce_xla_tensor(self, tensor: Any) -> Any:
        home = tensor.detach().cpu()
        torch = sys.modules["torch"]
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter, (home, tensor.requires_grad)
        return home.requires_grad_(tensor.requires_grad).__reduce_ex__(5)

    def reduce_xla_device(self, device: Any) -> Any:
        return NotImplemented

    def reduce_torchax_tensor(self, tensor: Any) -> Any:
        home = _whole(jax_values.home, tensor)
        if isinstance(home, sys.modules["torch"].nn.Parameter):
            return type(home), (home.data, home.requires_grad)
        return home.__reduce_ex__(5)

    def reduce_jax_array(self, array: Any) -> Any:
        return _whole(jax_values.to_numpy, array).__reduce_ex__(5)

    def reduce_jax_device(self, device: Any) -> Any:
        return type(device), ("cpu",)  # a notebook without torchax has no device "jax"


def _whole(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except jax_values.Spread as spread:
        raise Unshippable(
            str(spread),
            "Return `xla_nb.torchax.gather(x)`, which every rank must call, or this rank's part, "
            "`x.addressable_data(0)` of the JAX array",
        ) from None


def _typed_storage(raw: Any, dtype: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=raw, dtype=dtype, _internal=True)


def _raw_storage(memory: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    if len(memory) == 0:
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _reduce_stream(obj: Any) -> Any:
    for name in ("stdout", "stderr", "stdin"):
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    files = io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO
    if isinstance(obj, files):
        raise Unshippable("an open file", "Open it inside the function")
    if isinstance(obj, socket.socket):
        raise Unshippable("an open socket", "Connect inside the function")
    if isinstance(obj, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        raise Unshippable("a generator", "Send a list of its items, or create it in the function")
    return NotImplemented


# ---------------------------------------------------------------- locks and queues


def _reduce_shared(obj: Any) -> Any:
    """A primitive of multiprocessing, as a new one created before ranks are forked."""
    match obj:
        case synchronize.Event():
            return _fresh_event, (obj.is_set(),)
        case synchronize.Condition() | synchronize.Barrier() | synchronize.SemLock():
            return _shared, (type(obj).__name__, _arguments(obj))
        case queues.SimpleQueue() | queues.Queue():
            return _shared, (type(obj).__name__, _arguments(obj))
    return NotImplemented


def _arguments(obj: Any) -> tuple[Any, ...]:
    match obj:
        case synchronize.Condition():
            return (obj._lock,)  # type: ignore[attr-defined]
        case synchronize.Barrier():
            return (obj.parties,)
        case synchronize.BoundedSemaphore():
            return (obj._semlock.maxvalue,)  # type: ignore[attr-defined]
        case synchronize.Semaphore():
            return (obj.get_value(),)
        case queues.Queue():
            return (obj._maxsize,)  # type: ignore[attr-defined]
    return ()


def _shared(kind: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(multiprocessing.get_context("fork"), kind)(*arguments)


def _fresh_event(is_set: bool) -> Any:
    event = multiprocessing.get_context("fork").Event()
    if is_set:
        event.set()
    return event


# ---------------------------------------------------------------- parcels


def send(groups: Sequence[Mapping[str, object]], by_name: Container[str]) -> int:
    """A memfd with the groups; the caller closes it. Raises what pickling raises."""
    fd = os.memfd_create("xla_nb-parcel", os.MFD_CLOEXEC)
    try:
        _write(fd, groups, _Pickler, by_name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def send_home(fd: int, value: object, by_name: Container[str]) -> int:
    """Write a rank's result to an open file; returns the size in bytes."""
    return _write(fd, [{"result": value}], _HomePickler, by_name)


def _write(
    fd: int,
    groups: Sequence[Mapping[str, object]],
    pickler: type[_Pickler],
    by_name: Container[str],
) -> int:
    pieces: list[memoryview] = []  # in file order
    places: dict[tuple[int, int], int] = {}  # memory that two groups share is written once
    table = []
    writers = []  # keep alive the memory that buffers point to
    for group in groups:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        # list.append returns None, which tells pickle "out of band".
        writers.append(pickler(stream, by_name, buffers.append))
        writers[-1].dump(dict(group))
        pieces.append(stream.getbuffer())
        numbers = [len(pieces) - 1]
        for buffer in buffers:
            raw = buffer.raw()
            key = _address(raw), raw.nbytes
            if key not in places:
                pieces.append(raw)
                places[key] = len(pieces) - 1
            numbers.append(places[key])
        table.append(numbers)
    return _lay_out(fd, pieces, table)


def _address(raw: memoryview) -> int:
    if raw.readonly or not raw.nbytes:  # bytes, for instance; the object outlives this call
        return id(raw.obj)
    return ctypes.addressof(ctypes.c_char.from_buffer(raw))


def _lay_out(fd: int, pieces: list[memoryview], table: list[list[int]]) -> int:
    sizes = [piece.nbytes for piece in pieces]
    index = json.dumps({"sizes": sizes, "groups": table}).encode()
    os.pwrite(fd, b"%0*d" % (_HEAD, len(index)) + index, 0)
    offset = _aligned(_HEAD + len(index))
    for piece in pieces:
        at, rest = offset, piece
        while rest.nbytes:
            written = os.pwrite(fd, rest, at)
            at, rest = at + written, rest[written:]
        offset = _aligned(offset + piece.nbytes)
    os.ftruncate(fd, max(offset, 1))
    return offset


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _content(fd: int) -> Any:
    size = os.fstat(fd).st_size
    if size <= _SMALL:  # a map keeps a file descriptor open
        return bytearray(os.pread(fd, size, 0))
    # Private: a rank that writes to an array gets its own copy of the page.
    return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


class Parcel:
    """A received parcel. The garbage collector closes it, since its values may live longer."""

    def __init__(self, fd: int) -> None:
        self._map = memoryview(_content(fd))
        length = int(bytes(self._map[:_HEAD]))
        index = json.loads(bytes(self._map[_HEAD : _HEAD + length]))
        self._groups: list[list[int]] = index["groups"]
        self._pieces = []
        offset = _aligned(_HEAD + length)
        for size in index["sizes"]:
            self._pieces.append(self._map[offset : offset + size])
            offset = _aligned(offset + size)

    def group(
        self, number: int, resolve: Callable[[str], object] | None = None
    ) -> dict[str, object]:
        """The values of a group, by name; `resolve` finds names of ``__main__``."""
        stream, *buffers = (self._pieces[piece] for piece in self._groups[number])
        reader = _Unpickler(io.BytesIO(stream), buffers=buffers)
        reader.resolve = resolve
        values: dict[str, object] = reader.load()
        return values


class _Unpickler(pickle.Unpickler):
    resolve: Callable[[str], object] | None = None

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__" or self.resolve is None:
            return super().find_class(module, name)
        first, *rest = name.split(".")
        value = self.resolve(first)
        for part in rest:
            value = getattr(value, part)
        return value


# ---------------------------------------------------------------- errors

_ADVICE = {
    "_thread.lock": "Use the `lock` parameter, or a lock of multiprocessing",
    "_thread.RLock": "Use the `lock` parameter, or a lock of multiprocessing",
    "socket": "Connect inside the function",
    "Connection": "Connect inside the function",
    "Cursor": "Connect inside the function",
    "module": "Import it inside the function",
}


def explain(
    groups: Sequence[Mapping[str, object]],
    by_name: Container[str],
    origins: Mapping[str, str],
    problem: Exception,
) -> ShippingError:
    """An error that names the variable that cannot be pickled, its cell, and what to do."""
    for group in groups:
        for name, value in group.items():
            try:
                _Pickler(io.BytesIO(), by_name, lambda _: None).dump(value)
            except Exception as fault:
                return ShippingError(_sentence(name, value, origins.get(name, ""), fault))
    return ShippingError(f"Cannot send the notebook's values to ranks: {problem}")


def _sentence(name: str, value: object, origin: str, fault: Exception) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    details = f"{kind}, defined in {origin}" if origin else kind
    return f"Cannot send `{name}` ({details}) to ranks: {fault}. {_advice(fault)}."


def _advice(fault: Exception) -> str:
    if isinstance(fault, Unshippable):
        return fault.advice
    advice = next((text for key, text in _ADVICE.items() if key in str(fault)), None)
    return advice or "Create it inside the function, or pass what it is built from"
