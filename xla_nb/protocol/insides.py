"""What an object holds: elements, attributes, defaults, contents, memory.

No code of the notebook's is run: its own objects are looked into, and those of libraries are asked
only for what a pickle of them has.
"""

from __future__ import annotations

import abc
import contextlib
import copyreg
import ctypes
import enum
import functools
import gc
import hashlib
import io
import logging
import pickle
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from xla_nb.protocol import abstract, loggers, parts
from xla_nb.protocol.tensors import HELD as HELD_BY_TENSORS

_CHUNK = 16 << 20  # bytes
_ATOMS = {*parts.PLAIN, types.ModuleType} - {types.CodeType}
_LOOKED_INTO = (
    *(types.FunctionType, types.ModuleType, type, functools._lru_cache_wrapper, enum.Enum),
    *(bytearray, set, frozenset, logging.Logger),
)
_LINKS = "__cause__", "__context__", "__suppress_context__"  # of exceptions
_CTYPES = ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union
_MADE_BY_READING = "_value2member_map_"  # of an enum: `Flag.A | Flag.B` adds to it
_CACHE = "_cache"  # where pandas keeps what it has computed
_BY_VALUE = {int, str, bytes, bool}
_BARE = {dict, list, tuple, set, frozenset}  # which have no attributes
_CONTAINERS = {dict, list, set, bytearray, deque, OrderedDict, defaultdict, Counter}
_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")

T = TypeVar("T")


def _once(function: Callable[[type], T]) -> Callable[[type], T]:
    """Computes the same of a class only once."""
    return functools.cache(function)


class Kept(NamedTuple):
    """The place of a result that is kept to be computed once; one that is added or dropped is no
    change, since whoever reads it computes it again."""

    name: Hashable


class Memory(NamedTuple):
    """The bytes of an array, a tensor or a bytearray, and what else tells it from another one."""

    about: tuple[Hashable, ...]
    flat: Any

    def copy(self) -> Memory:
        return Memory(self.about, self.flat.copy())


@dataclass(frozen=True)
class Form:
    """What one object holds, in terms that two openings of a parcel have in common: the `kind`,
    keys of what is `held`, each by its place, and the `memory` of an array or a tensor."""

    kind: Hashable
    held: tuple[tuple[Hashable, Hashable], ...]
    memory: Memory | None

    def copy(self) -> Form:
        """What stays as it is when the object is written to."""
        return replace(self, memory=self.memory and self.memory.copy())

    def differs(self, other: Form) -> bool:
        if self.kind != other.kind:
            return True
        if self.held != other.held and self._beside(other) != other._beside(self):
            return True
        return _differ(self.memory, other.memory)

    def _beside(self, other: Form) -> list[tuple[Hashable, Hashable]]:
        kept = {place for place, _ in other.held if isinstance(place, Kept)}
        return [one for one in self.held if not isinstance(one[0], Kept) or one[0] in kept]


class Insides:
    """Looks into objects of which those that have a number are told apart by it."""

    def __init__(self, objects: Mapping[int, object]) -> None:
        self.objects = dict(objects)
        self._numbers = {id(one): number for number, one in objects.items()}

    def add(self, number: int, value: object) -> None:
        self.objects[number] = value
        self._numbers[id(value)] = number

    def is_new(self, part: object) -> bool:
        """Whether an object that has an identity has no number yet."""
        return not _is_atom(part) and type(part) is not tuple and id(part) not in self._numbers

    def is_made_beside(self, part: object) -> bool:
        """Whether it is new, and a container or the notebook's, not a library's."""
        kind: Any = type(part)
        return (kind in _CONTAINERS or is_made_here(kind)) and self.is_new(part)

    def reach(self, values: Iterable[object]) -> set[int]:
        """Number all that these values lead to; gives the numbers that are new."""
        first, todo = min(self.objects, default=0) - 1, list(values)
        while todo:
            one = todo.pop()
            if self.is_new(one):
                self.add(min(first, 0) - len(self.objects), one)
            elif type(one) is not tuple:
                continue
            todo += [part for _, part in self.content(one)]
        return {number for number in self.objects if number <= first}

    def form(self, value: object, content: Iterable[tuple[Hashable, object]] | None = None) -> Form:
        """`content` is the object's own, where the caller has it already."""
        pairs = self.content(value) if content is None else content
        held = [(place, self.key(part)) for place, part in pairs]
        if isinstance(value, set | frozenset | abc.ABCMeta):  # in the order of addresses
            held.sort(key=repr)
        return Form(self.kind(value), tuple(held), memory(value))

    def kind(self, value: object) -> Hashable:
        kind: Any = type(value)
        number_or_class: Hashable = self._numbers.get(id(kind), kind)
        return number_or_class

    def key(self, part: object) -> Hashable:
        """What two objects have in common that are one: the number, or the value of a constant."""
        kind = type(part)
        if kind in _BY_VALUE:
            return kind, part
        if kind is tuple:
            return tuple(map(self.key, part))  # type: ignore[call-overload]
        if _is_atom(part):
            exact = isinstance(part, float | complex)
            return kind.__name__, repr(part) if exact else id(part)
        return self._numbers.get(id(part), type(part).__name__)

    def content(self, value: object) -> Iterator[tuple[Hashable, object]]:
        """What an object holds, each with the place where it does."""
        if _is_constant(type(value)):
            return
        if _is_pickled(type(value)):
            yield from self._pickled(value)
            yield from _elements(value)
        elif isinstance(value, type):
            yield from _members(value) if is_made_here(value) else ()
        elif not isinstance(value, types.ModuleType):
            if isinstance(value, functools._lru_cache_wrapper):
                for args, named, result in parts.results(value):
                    yield Kept((self.key(args), self.key(tuple(named.items())))), result
            yield from _elements(value)
            if type(value) not in _BARE:
                yield from _attributes(value)
                yield from _slots(value)

    def _pickled(self, value: object) -> Iterator[tuple[Hashable, object]]:
        """The pickle in which all other objects are numbers, and these objects."""
        file, beside = io.BytesIO(), hashlib.blake2b()
        pickler = _Shallow(file, value, self, lambda buffer: beside.update(buffer.raw()))
        with contextlib.suppress(Exception):
            _without_caches(value)
            pickler.dump(value)
            yield "pickle", file.getvalue()
            yield "memory", beside.digest()
            yield from enumerate(pickler.met)

    def by_value(self, part: Any) -> object:
        """What is written for a part that is the same wherever it is; None for others."""
        if isinstance(part, set | frozenset):
            return "set", sorted(repr(self.key(one)) for one in part)
        if isinstance(part, _of_torch("Tensor")) and self.is_new(part):
            return type(part).__name__, memory(part)
        return None

    def is_apart(self, part: object) -> bool:
        """Whether it is no part of the object whose pickle has it, but one of its own."""
        if type(part) in parts.PLAIN or type(part) is tuple:
            return False
        code = isinstance(part, (*parts.CODE, _of_torch("UntypedStorage")))
        kind: Any = type(part)
        return code or not self.is_new(part) or is_made_here(kind)


class _Shallow(pickle.Pickler):
    """Writes one object, and other objects by what `insides` says of them; `met` are these."""

    def __init__(self, file: io.BytesIO, whole: object, insides: Insides, keep: Any) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.fast = True  # which of equal strings are one is no matter
        self.met: list[object] = []
        self._whole = whole
        self._insides = insides

    def persistent_id(self, part: Any) -> Any:
        if part is self._whole:
            self._whole = None  # from here on it is a number as well
            return None
        if self._insides.is_apart(part):
            self.met.append(part)
            return self._insides.key(part)
        return self._insides.by_value(part)


@_once
def _is_pickled(kind: type) -> bool:
    """Whether what its objects hold is what their class, of a module, says to pickle."""
    numpy: Any = sys.modules.get("numpy")
    if kind in _ATOMS or issubclass(kind, (*_LOOKED_INTO, _of_torch("Tensor"), *_pickled_by_us())):
        return False
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return bool(kind.__reduce__ is not numpy.ndarray.__reduce__) and not is_made_here(kind)
    names = [name for name in _PICKLING if hasattr(kind, name)]
    says = [next(base for base in kind.__mro__ if name in vars(base)) for name in names]
    if any(map(is_made_here, says)):
        return False
    return kind in copyreg.dispatch_table or any(base is not object for base in says)


def _pickled_by_us() -> tuple[Any, ...]:
    """Classes that are sent as they are, not as they say."""
    optimizer = getattr(sys.modules.get("torch.optim"), "Optimizer", ())
    return optimizer, _of_torch("UntypedStorage"), _of_torch("TypedStorage")


@_once
def _is_constant(kind: type) -> bool:
    """Whether its objects hold nothing that can be changed: constants, what has a hash of its own
    and says itself how it is pickled (a date, a path), and what matplotlib computes as needed."""
    transforms: Any = sys.modules.get("matplotlib.transforms")
    if transforms is not None and issubclass(kind, transforms.TransformNode):
        return True
    own: Any = kind.__hash__
    methods = types.MethodType, types.BuiltinMethodType
    hashed = own not in (None, object.__hash__) and kind not in methods
    return kind in _ATOMS or (hashed and _is_pickled(kind))


@_once
def is_made_here(kind: type) -> bool:
    return parts.is_made_here(kind)


def _of_torch(name: str) -> Any:
    return getattr(sys.modules.get("torch"), name, ())


def _is_atom(part: object) -> bool:
    if type(part) in _ATOMS:
        return True
    if isinstance(part, types.BuiltinFunctionType):
        return isinstance(part.__self__, types.ModuleType | type | None)
    return isinstance(part, parts.CODE) and parts.is_of_a_module(part)


def _elements(value: object) -> Iterator[tuple[Hashable, object]]:
    match value:
        case _ if parts.is_disguised(type(value)):
            pass
        case dict():
            for n, (key, part) in enumerate(dict.items(value)):
                yield ("key", n), key
                yield ("value", n), part
        case list():
            yield from enumerate(list.__iter__(value))
        case tuple():
            yield from enumerate(tuple.__iter__(value))
        case set():
            yield from (("item", part) for part in set.__iter__(value))
        case frozenset():
            yield from (("item", part) for part in frozenset.__iter__(value))
        case types.FunctionType():
            yield from _of_function(value)
        case _ if isinstance(value, _of_torch("Tensor")):
            yield from _of_tensor(value)
        case _ if _holds_objects(value):
            yield from enumerate(value.flat)  # type: ignore[attr-defined]
        case _:
            yield from _behind(value)


def _behind(value: object) -> Iterator[tuple[Hashable, object]]:
    """What objects of Python's own refer to, of which their pickles do not tell."""
    match value:
        case staticmethod() | classmethod():
            yield "function", value.__func__
        case property():
            yield from (("get", value.fget), ("set", value.fset), ("delete", value.fdel))
        case BaseException():
            yield from ((name, getattr(value, name)) for name in _LINKS)
        case types.MappingProxyType():
            yield "shown", gc.get_referents(value)[0]
        case types.BuiltinMethodType():
            yield "self", value.__self__


def _of_function(function: types.FunctionType) -> Iterator[tuple[Hashable, object]]:
    yield "name", (function.__name__, function.__qualname__, function.__doc__)
    yield "code", function.__code__
    yield "defaults", function.__defaults__
    yield "kwdefaults", function.__kwdefaults__
    for n, cell in enumerate(function.__closure__ or ()):
        yield ("closure", n), parts.content(cell)


def _members(cls: type) -> Iterator[tuple[Hashable, object]]:
    """What the class holds, but for what Python notes of it under names of its own."""
    yield "name", (cls.__name__, cls.__qualname__, vars(cls).get("__doc__"))
    for name, part in list(vars(cls).items()):
        said = hasattr(type(part), "__get__") and not parts.is_made_by_type(cls, part)
        if said if name[:2] == "__" else name != _MADE_BY_READING:
            yield name, part
    if abstract.is_abstract(cls):
        yield from (("item", other) for other in abstract.registered(cls))
    for one in abstract.registrations().get(cls, ()):
        yield ("registered with", one.__qualname__), one


def _without_caches(value: object) -> None:
    """What pandas computes when it is asked for it; it pickles some of that."""
    with contextlib.suppress(AttributeError):
        object.__getattribute__(value, "__dict__").pop(_CACHE, None)


def own_dicts(value: object) -> Iterator[object]:
    """The dicts of an object of a library's, which are no objects of their own."""
    if not is_made_here(type(value)):
        with contextlib.suppress(AttributeError):
            held = object.__getattribute__(value, "__dict__")
            if _is_pickled(type(value)):
                yield held
            yield held.get(_CACHE)


def _attributes(value: object) -> Iterator[tuple[Hashable, object]]:
    if isinstance(value, logging.Logger):
        yield from loggers.state(value).items()
        return
    with contextlib.suppress(AttributeError):
        for name, part in object.__getattribute__(value, "__dict__").items():
            kept = name == _CACHE or name in _kept_names(type(value))
            yield Kept(name) if kept else name, part


@_once
def _kept_names(kind: type) -> set[str]:
    """Attributes that are computed when they are read, and kept from then on."""
    found = {name: one for base in reversed(kind.__mro__) for name, one in vars(base).items()}
    return {name for name, one in found.items() if isinstance(one, functools.cached_property)}


def _slots(value: object) -> Iterator[tuple[Hashable, object]]:
    for name, member in _members_of_slots(type(value)):
        with contextlib.suppress(AttributeError):  # nothing is set
            yield name, member.__get__(value)


@_once
def _members_of_slots(kind: type) -> list[tuple[str, Any]]:
    slotted = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    found = [pair for content in slotted for pair in content.items()]
    return [(name, one) for name, one in found if isinstance(one, types.MemberDescriptorType)]


def _of_tensor(tensor: Any) -> Iterator[tuple[Hashable, object]]:
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        held = [("requires_grad", tensor.requires_grad)]
        held += [(name, getattr(tensor, name)) for name in HELD_BY_TENSORS if tensor.is_leaf]
    yield from held


def _holds_objects(value: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject


def memory(value: Any) -> Memory | None:
    """What an array, a tensor or a bytearray has in memory; None for other objects."""
    return _memory(value) if _has_memory(type(value)) else None


@_once
def _has_memory(kind: type) -> bool:
    array = getattr(sys.modules.get("numpy"), "ndarray", ())
    return issubclass(kind, (bytearray, *_CTYPES, array, _of_torch("Tensor")))


def _memory(value: Any) -> Memory | None:
    if isinstance(value, bytearray):
        return Memory((), value)
    if isinstance(value, _CTYPES):
        return Memory((), bytearray(value))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not _is_pickled(type(value)):
        flat = numpy.empty(0, "u1") if value.dtype.hasobject else _bytes_of_array(value)
        return Memory((value.shape, str(value.dtype)), flat)
    if isinstance(value, _of_torch("Tensor")) and value.device.type == "cpu":
        about = tuple(value.shape), str(value.dtype), str(value.layout)
        with contextlib.suppress(RuntimeError):  # a layout without bytes in a row
            each = [_bytes_of_tensor(part) for part in _parts_of_tensor(value.detach())]
            return Memory(about, each[0] if len(each) == 1 else sys.modules["numpy"].hstack(each))
    return None


def _parts_of_tensor(tensor: Any) -> tuple[Any, ...]:
    """The dense tensors that a sparse one consists of; a dense one itself."""
    torch: Any = sys.modules["torch"]
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def _bytes_of_tensor(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    flat = tensor.contiguous().view(-1)
    if flat.numel() == 1:  # whose stride may be any
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy()


def _bytes_of_array(array: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.ascontiguousarray(array).reshape(-1).view("u1", numpy.ndarray)


def _differ(one: Memory | None, other: Memory | None) -> bool:
    if one is None or other is None or isinstance(one.flat, bytearray):
        return one != other
    numpy: Any = sys.modules["numpy"]
    if one.about != other.about:
        return True
    pieces = (slice(n, n + _CHUNK) for n in range(0, one.flat.size, _CHUNK))
    return not all(numpy.array_equal(one.flat[piece], other.flat[piece]) for piece in pieces)
