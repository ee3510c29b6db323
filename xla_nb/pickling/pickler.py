"""Pickle values across processes: the notebook's values to ranks, and their results back.

Nothing here imports torch, which takes seconds; if a value is a tensor, torch is already imported.
"""

from __future__ import annotations

import ctypes
import functools
import io
import logging
import math
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from itertools import accumulate
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling import (
    builtin_types,
    code_facts,
    keys,
    loggers,
    mapped_files,
    module_objects,
    multiprocess,
    own_modules,
    rebuild,
    refusals,
)
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.libraries import jax_values, pandas_values, torch_values
from xla_nb.pickling.parcel import Packed, bounds_of, module_of_nan
from xla_nb.pickling.rebuild import Call
from xla_nb.pickling.refusals import OnDevice, Unshippable

_MOVE_ADVICE = ", and use `.to({})` inside the function"

_COPY_NOTE = (
    "a view with gaps is a copy on ranks: writes to it there do not reach the array it is part of"
)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle ships no types
    """cloudpickle, with storages out of band."""

    _live: Live
    memo: Any  # of the C pickler: for each id written, its number and the object

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]):
        # list.append returns None, which tells pickle "out of band".
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._file, self._buffers = file, buffers
        self._hashes_in_python: dict[type, bool] = {}  # whether a class hashes in Python
        self._alive: dict[int, object] = {}
        self._ordinary_types: set[type] = {type, types.FunctionType, types.CodeType, types.CellType}
        self._refused: Callable[[type], Any] = functools.cache(refusals.refused)
        self._storages: dict[tuple[int, int], Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        self._live.trail.append(obj)
        if kind in self._ordinary_types:  # there may be a million
            return self.reduce_code(obj)
        stream = refusals.reduce_stream(obj)
        if stream is not NotImplemented:
            return stream
        if refused := self._refused(kind):
            raise Unshippable(*refused)
        if code_facts.is_disguised(kind):
            return self.reduce_code(obj)
        if kind not in self._hashes_in_python:
            self._hashes_in_python[kind] = keys.says_how_it_is_hashed(kind)
        reduced = self._reduce_by_type(obj)
        if reduced is not NotImplemented:
            return reduced
        if code_facts.is_ordinary(kind) and not pandas_values.is_counted(kind):
            self._ordinary_types.add(kind)
        return self.reduce_code(obj)

    def _reduce_by_type(self, obj: Any) -> Any:
        """Reduce objects that need special handling here; NotImplemented for all others."""
        for reduce in (
            self.reduce_shared,
            builtin_types.exception,
            self.reduce_array,
            pandas_values.reduced,
            self._reduce_jax,
            self._reduce_torch,
        ):
            reduced = reduce(obj)
            if reduced is not NotImplemented:
                return reduced
        return NotImplemented

    def write(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            self.part(name, value)
        while self._fill():
            pass
        self.have_keys_checked()

    def have_keys_checked(self) -> None:
        """Make the opener of the pickle check that containers find their keys."""
        kinds = {kind for kind, in_python in self._hashes_in_python.items() if in_python}
        written = [obj for _, obj in self.memo.copy().values()] if kinds else []
        if containers := keys.containers(written, kinds):
            name = min(kind.__qualname__ for kind in kinds)
            self.part(name, Call(keys.check, (containers,)), late=True)

    def part(self, name: str, value: object, late: bool = False) -> None:
        """Write a pickle of its own after its name, so that the name is known if it cannot be
        opened."""
        self.dump((name, late))
        self.dump(value)

    def _fill(self) -> bool:
        """Write the contents of definitions that are not code. Returns whether there were any."""
        late, self._live.later = self._live.later, []
        for name, holder, call in late:
            self._live.writing = name, holder
            Pickler.part(self, name, call, late=True)
        return bool(late)

    def reduce_code(self, obj: Any) -> Any:
        if type(obj) is type and code_facts.is_unnamed(obj):  # cloudpickle would create a class
            raise Unshippable("a built-in type without a name", "Call `type` inside the function")
        return super().reducer_override(obj)

    def reduce_as_sent(self, obj: Any) -> Any:
        """Reduce an object as the notebook's are for ranks."""
        reduced = self._live.reduce(obj)
        return Pickler.reduce_code(self, obj) if reduced is NotImplemented else reduced

    def reduce_array(self, obj: Any) -> Any:
        return NotImplemented

    def reduce_shared(self, obj: Any) -> Any:
        return NotImplemented

    def _reduce_torch(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "UntypedStorage"):  # its import is unfinished
            return NotImplemented
        kind = type(obj)
        if kind.__name__ == "XLAShardedTensor" and kind.__module__.startswith("torch_xla."):
            whole = obj.global_tensor  # what xs.mark_sharding has wrapped
            reduced = self._reduce_torch(whole)
            return whole.__reduce_ex__(5) if reduced is NotImplemented else reduced
        if isinstance(obj, torch.Tensor) and obj.device.type == "xla":
            return self.reduce_xla_tensor(obj)
        if isinstance(obj, torch.Tensor):
            return self.reduce_tensor(obj)
        if type(obj).__module__ == "torch.nn.utils.parametrize" and isinstance(
            obj, torch.nn.Module
        ):
            # torch refuses because such a module has its own class; that class is sent too.
            return object.__new__, (type(obj),), dict(vars(obj))
        if isinstance(obj, getattr(sys.modules.get("torch.optim"), "Optimizer", ())):
            return self._reduce_optimizer(obj)
        if isinstance(obj, getattr(sys.modules.get("torch.utils.data"), "DataLoader", ())):
            return torch_values.reduced_loader(obj)
        reduced = torch_values.reduced_by_name(torch, obj)
        return self._reduce_storage(torch, obj) if reduced is NotImplemented else reduced

    def _reduce_storage(self, torch: Any, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            raw = obj._untyped_storage
            if raw.device.type != "cpu":
                return NotImplemented
            # Tensors that share a storage have a wrapper each: use one, so that it stays shared.
            raw = self._storages.setdefault((raw.data_ptr(), raw.nbytes()), raw)
            return torch_values.typed_storage, (raw, obj.dtype)
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return torch_values.raw_storage, (self._memory(obj), obj.is_shared())
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

    def reduce_tensor(self, tensor: Any) -> Any:
        return torch_values.reduced_tensor(tensor, self._held(tensor))

    def _held(self, tensor: Any) -> dict[str, object]:
        """Return what is sent in addition to what torch pickles of a tensor."""
        return torch_values.held(tensor)

    def _reduce_optimizer(self, optimizer: Any) -> Any:
        """Include hooks and attributes set by a custom class, which torch leaves out."""
        return object.__new__, (type(optimizer),), dict(vars(optimizer))

    def reduce_xla_tensor(self, tensor: Any) -> Any:
        raise OnDevice(tensor, "an XLA tensor", "{}.cpu()", _MOVE_ADVICE.format("device"))

    def reduce_torchax_tensor(self, tensor: Any) -> Any:
        raise OnDevice(tensor, "a torchax tensor", "{}.cpu()", _MOVE_ADVICE.format('"jax"'))

    def reduce_jax_array(self, array: Any) -> Any:
        raise OnDevice(array, "a JAX array", "numpy.asarray({})", ", which jax.numpy accepts")

    def reduce_jax_device(self, device: Any) -> Any:
        return NotImplemented


class LivePickler(Pickler):
    """Pickles for ranks: the notebook's functions and classes as they are now, tensors with
    gradients.

    NumPy copies an array with gaps into the pickle, which then no longer shares memory with others.
    So the memory around it is sent if that is at most twice as much (`a[::2]`). `gaps` are the
    addresses around all other such arrays.
    """

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], live: Live):
        super().__init__(file, buffers)
        self.gaps: list[tuple[int, int]] = []
        self._live = live
        self._modules = module_objects.of_this_process()
        self._tokens: dict[int, tuple[object, list[Call] | None]] = {}  # of possible module objects
        self._fallbacks: dict[str, list[tuple[str, object, Call]]] = {}  # for parts that fail
        self._set: set[own_modules.Key] = set()
        self.names: set[str] = set()  # written or waiting in one of these
        self._code: dict[str, object] = {}
        self._data: dict[str, object] = {}

    def write(self, values: dict[str, object]) -> None:
        """Write names and what follows from them: code and constants, their contents, and then the
        data whose methods they are."""
        self.write_definitions()
        self._queue(values)
        while self._code or self._write_late() or self._data:
            todo = self._code or self._data
            self._live.carries = todo is self._data
            if todo:
                name = next(iter(todo))
                self.part(name, todo.pop(name))
            self._queue(self.names_met())
        self.have_keys_checked()

    def part(self, name: str, value: object, late: bool = False) -> None:
        self._live.writing = name, value
        super().part(name, value, late)

    def write_definitions(self) -> None:
        """Write definitions that are sent even if no value refers to them."""

    def names_met(self) -> dict[str, object]:
        """Return names that came up and must be written."""
        return self._live.names_met()

    def _queue(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            if name not in self.names:
                self.names.add(name)
                is_ready = code_facts.holds_what_is_ready(value)
                (self._code if is_ready else self._data)[name] = value

    def _write_late(self) -> bool:
        """Write what waits until all code exists. Returns whether there was anything."""
        live = self._live
        values = {key: value for key, value in self.in_modules().items() if key not in self._set}
        self._set |= values.keys()
        for key, value in values.items():
            setter = own_modules.sent(key, value, live.is_behind(key[0]))
            part = ".".join(key), setter, own_modules.note_of(key, value)
            live.optional.append(part)
        optional, live.optional = live.optional, []
        has_written = self._fill()
        if optional and not self._try_to_write(optional):
            for part in optional:
                if not self._try_to_write([part]):
                    live.notes.add(part[2])
                    live.later += self._fallbacks.get(part[0], ())
        return has_written or bool(optional)

    def _try_to_write(self, parts: Iterable[tuple[str, object, str]]) -> bool:
        """Write these parts if they can be sent; otherwise restore the previous state and return
        False."""
        saved, size, buffers = pickle.Pickler(io.BytesIO()), self._file.tell(), len(self._buffers)
        saved.memo, gaps = self.memo, len(self.gaps)  # a fast copy
        collected, tokens = self._live.collected(), dict(self._tokens)
        try:
            for name, part, _ in parts:
                self.part(name, part, late=True)
            while self._fill():
                pass
        except Exception:
            self.memo = saved.memo
            self._file.seek(size)
            self._file.truncate()
            del self._buffers[buffers:], self.gaps[gaps:]
            vars(self._live).update(collected)
            self._tokens = tokens
            return False
        return True

    def in_modules(self) -> Mapping[own_modules.Key, object]:
        """Return what must be set in modules because of what was written so far, excluding what was
        returned before."""
        return self._live.in_modules()

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is float:  # of which there may be millions
            return module_of_nan(obj) if math.isnan(obj) else None
        if id(obj) not in self._modules.ids:
            return None
        if id(obj) not in self._tokens:
            self._tokens[id(obj)] = obj, self._module_call(obj)
        return self._tokens[id(obj)][1]

    def _module_call(self, obj: object) -> list[Call] | None:
        """Return a call that yields a module's object on ranks; None if it is sent like any
        other."""
        key = self._modules.place(obj)
        if key is None:
            return None
        if own_modules.is_of_this_thread(obj) and not module_objects.is_alone(key):
            self._live.notes.add(own_modules.note_of(key, obj))
        call, fill = module_objects.reduced(obj, key)
        as_imported = Call(rebuild.held_by_module, (*key, type(obj).__name__))
        if fill is not None and self._live.is_there(key):
            return [as_imported]
        if call and fill and self._reduce_by_type(obj) is not NotImplemented:
            call, fill = None, Call(rebuild.put_back, (*key, obj))
        if fill is not None:
            name = ".".join(key)
            self._live.optional.append((name, fill, own_modules.note_of(key, obj)))
            self._fallbacks[name] = [(name, obj, as_imported)]
        return [call] if call is not None else None

    def reduce_code(self, obj: Any) -> Any:
        if issubclass(type(obj), logging.Logger):
            self._live.notes.update(loggers.losses(obj))
            return loggers.reduced(obj)
        return self.reduce_as_sent(obj)

    def reduce_shared(self, obj: Any) -> Any:
        return multiprocess.reduced(obj, self._live.notes)

    def reduce_array(self, obj: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(obj) is numpy.memmap:  # NumPy would copy it into the pickle
            return mapped_files.as_memmap, (
                obj.view(numpy.ndarray),
                obj.filename,
                obj.offset,
                obj.mode,
            )
        if numpy is None or type(obj) is not numpy.ndarray or obj.dtype.hasobject:
            return NotImplemented
        if obj.flags.forc or not obj.size:
            return NotImplemented
        start, end = bounds_of(obj)
        if end - start > 2 * obj.nbytes:
            self.gaps.append((start, end))
            return NotImplemented
        self._alive[id(obj)] = obj
        memory = memoryview((ctypes.c_ubyte * (end - start)).from_address(start))
        content = pickle.PickleBuffer(memory if obj.flags.writeable else memory.toreadonly())
        offset = obj.__array_interface__["data"][0] - start
        return numpy.ndarray, (obj.shape, obj.dtype, content, offset, obj.strides)

    def reduce_tensor(self, tensor: Any) -> Any:
        if tensor.grad_fn is not None:
            name = self._live.writing[0]
            of = f" of `{name}`" if name in self._live.notebook.values else ""
            note = f"a tensor{of} is sent without its grad_fn: backward() stops there"
            self._live.notes.add(note)
        return super().reduce_tensor(tensor)


def pack(values: Mapping[str, object], live: Live) -> Packed:
    """Pack the notebook's values as one graph of objects. Raises what pickling raises."""
    module_objects.of_this_process().look()
    return packed(values, live, LivePickler)


def packed(values: Mapping[str, object], live: Live, kind: type[LivePickler]) -> Packed:
    parcel = pickled(dict(values), lambda file, buffers: kind(file, buffers, live))
    if parcel.overlaps(parcel.writer.gaps):
        live.notes.add(_COPY_NOTE)
    return importing(parcel, live.imports)


def importing(parcel: Packed, modules: Set[str]) -> Packed:
    """The parcel, before which ranks import these modules as well, in the notebook's order."""
    paths = {*parcel.imports, *modules}
    with_packages = {n for path in paths for n in accumulate(path.split("."), "{}.{}".format)}
    in_order = list(sys.modules) if paths else ()
    return replace(parcel, imports=tuple(name for name in in_order if name in with_packages))


def pickled(values: dict[str, object], pickler: Callable[..., Pickler]) -> Packed:
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    writer = pickler(stream, buffers)
    writer.write(values)
    # Not getbuffer(): Python 3.12.1 crashes where its garbage collector meets a stream with views.
    return Packed(memoryview(stream.getvalue()), tuple(buffers), writer)
