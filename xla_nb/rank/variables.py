"""Describe a rank's variables so that ranks can be compared (monitor/variable_comparison.py).

A variable is described by its leaves: a tensor is one leaf, a model has one for each parameter and
buffer. Each leaf has a digest, so ranks can be compared without sending values. The only user code
that runs is `__repr__`, under a short time limit; nothing is computed on a device unless requested;
and each name has a time limit.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import hashlib
import importlib
import inspect
import itertools
import math
import pathlib
import sys
import time
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from xla_nb import untrusted
from xla_nb.pickling.libraries import jax_values
from xla_nb.program.rank_cell import PREDEFINED
from xla_nb.rank.preview import is_numpy, short_repr
from xla_nb.wording import in_one_line

T = TypeVar("T")

#: known    the digest is available
#: pending  lazily recorded on the device and not computed yet
#: late     the time limit expired
#: opaque   it cannot be compared; `why` gives the reason
State = Literal["known", "pending", "late", "opaque"]

MOST = 2000  #: most leaves of a variable that are compared
_ALL, _EACH = 20.0, 10.0  # time limits in seconds: for all names, and for one of them
_MAX_TEXT = 60  # characters of a plain value
_MAX_ITEMS = 100  # most items of a dict of plain values with a leaf each
_LARGEST_INT = 1 << 53  # up to which a float represents every whole number
_PIECE = 1 << 16  # elements read at once, few enough for the processor's cache
#: Types whose `repr` distinguishes unequal values.
_COMPARED_BY_REPR = {
    *(type(None), bool, int, float, complex, str, range, slice, type(...)),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath),
}


@dataclass(frozen=True)
class Leaf:
    """A tensor, array, number, text or the like inside a variable.

    path    path from the variable: `.fc1.weight`, `['lr']`; "" for the variable itself
    shape   of a tensor or array; None for anything else
    nbytes  size of its elements in bytes
    digest  of its elements, with all NaNs made the same and -0.0 made 0.0; "" unless known
    nans    number of NaN elements
    norm    square root of the sum of squares of the finite elements; None if they are not numbers
    finite  all elements are finite
    value   a single number or a short text, as Python writes it
    part    this rank's part of a sharded tensor, so that ranks differ by design
    """

    path: str
    kind: str
    state: State
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    nbytes: int = 0
    digest: str = ""
    nans: int = 0
    norm: float | None = None
    finite: bool = True
    value: str = ""
    why: str = ""
    part: bool = False


@dataclass(frozen=True)
class Variable:
    """One name of a rank's namespace; `text` is its value in at most 80 characters.

    nbytes: total size of its tensors and arrays, each counted once."""

    name: str
    type: str
    leaves: tuple[Leaf, ...]
    text: str = ""
    nbytes: int = 0


# ---------------------------------------------------------------- questions to live ranks


def asked(names: Sequence[str], compute: bool) -> list[Variable]:
    """Describe these names of the rank, by default all of the user's."""
    namespace = vars(sys.modules["__main__"])
    return describe(namespace, names or names_of(namespace), compute=compute)


def names_of(namespace: Mapping[str, object]) -> list[str]:
    """The user's names, sorted: no modules, no `_names`, no names predefined on ranks."""
    return sorted(
        name
        for name, value in list(namespace.items())  # a user's thread may add some meanwhile
        if type(name) is str and not name.startswith("_") and name not in PREDEFINED
        if type(value) is not types.ModuleType
    )


def describe(
    namespace: Mapping[str, object], names: Sequence[str], *, compute: bool = False
) -> list[Variable]:
    """Describe the values of the names, omitting unbound ones; those past the time limit without
    content. `compute`: compute pending values first. All ranks must then be given the same names,
    since their graphs may contain collectives."""
    values = {name: namespace[name] for name in names if name in namespace}
    if compute:
        for value in values.values():
            _compute(value)
    cache: dict[int, tuple[Any, Leaf]] = {}  # by id; holds the tensor so that the id stays valid
    end = time.monotonic() + _ALL
    return [
        _variable(name, value, compute, min(end, time.monotonic() + _EACH), cache)
        for name, value in values.items()
    ]


def _compute(value: object) -> None:
    """Have torch_xla compute what is pending in a value, in one graph."""
    with contextlib.suppress(Exception):  # the leaf has the reason
        parts = itertools.islice(_parts(value), MOST)
        tensors = [part for _, part, leaf in parts if not leaf and _obstacle(part)[0] == "pending"]
        if tensors:
            _native()._xla_sync_multi(tensors, devices=[], wait=True, sync_xla_data=True)


def _variable(
    name: str, value: object, compute: bool, end: float, cache: dict[int, tuple[Any, Leaf]]
) -> Variable:
    kind, seconds, nbytes = untrusted.name_of(type(value)), max(0.0, end - time.monotonic()), 0
    try:
        leaves, nbytes = untrusted.within(seconds, lambda: _collect(value, compute, end, cache))
    except untrusted.TooLong:
        return Variable(name, kind, (Leaf("", kind, "late", why="inspecting it takes too long"),))
    except Exception as problem:
        leaves = (Leaf("", kind, "opaque", why=_describe_error(problem)),)
    return Variable(name, kind, leaves, short_repr(value), nbytes)


def _until(end: float, items: Iterable[T]) -> Iterator[T]:
    """The items, as long as there is time. Raises `untrusted.TooLong`, to end abandoned work."""
    for item in items:
        if time.monotonic() >= end:
            raise untrusted.TooLong
        yield item


def _collect(
    value: object, compute: bool, end: float, cache: dict[int, tuple[Any, Leaf]]
) -> tuple[tuple[Leaf, ...], int]:
    """The leaves of a value, and their total bytes. Tensors shared among models, optimizers and
    names are read once. `__torch_function__` of tensor subclasses is bypassed."""
    leaves: list[Leaf] = []
    sizes: dict[int, int] = {}
    torch: Any = sys.modules.get("torch")
    with torch._C.DisableTorchFunction() if torch else contextlib.nullcontext():
        for path, part, leaf in _until(end, _parts(value)):
            if len(leaves) == MOST:
                why = f"only the first {MOST:,} parts are compared"
                leaves.append(Leaf("…", "", "opaque", why=why))
                break
            if leaf is None and id(part) not in cache:
                cache[id(part)] = part, _leaf(part, compute, end)
            leaves.append(leaf or replace(cache[id(part)][1], path=path))
            sizes[id(part)] = leaves[-1].nbytes
    return tuple(leaves), sum(sizes.values())


def _leaf(value: Any, compute: bool, end: float) -> Leaf:
    """The leaf of a value with elements, without its path."""
    kind, metadata = untrusted.name_of(type(value)), _metadata(value)
    try:
        state, why = _obstacle(value, compute)
        if why:
            return Leaf("", kind, state, **metadata, why=why)
        content = _content(_read(value), end)
    except untrusted.TooLong:
        raise
    except Exception as problem:
        return Leaf("", kind, "opaque", **metadata, why=_describe_error(problem))
    if "shape" not in metadata:  # a number, or a list of some
        content["value"] = repr(value) if type(value) in (int, float) else ""
    return Leaf("", kind, "known", **metadata, **content)


def _plain_leaf(path: str, kind: str, text: bytes, value: str = "") -> Leaf:
    """The leaf of a plain value, with equal bytes for equal ones."""
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return Leaf(path, kind, "known", digest=digest, value=in_one_line(value, _MAX_TEXT))


def _describe_error(problem: Exception) -> str:
    """The reason, for any error, including a device's for deleted memory (a donated array)."""
    message = in_one_line(untrusted.message_of(problem), 120)
    return f"reading it raised {untrusted.name_of(type(problem))}: {message}"


# ---------------------------------------------------------------- the parts of a variable


def _parts(
    value: Any, path: str = "", ancestors: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any, Leaf | None]]:
    """The parts, each with its path, and its leaf unless it has elements: models by parameter and
    buffer, optimizers by state, containers by item, and instances of Python classes by
    attribute."""
    kind = untrusted.name_of(type(value))
    if _has_elements(value):
        yield path, value, None
    elif (text := _text(value)) is not None:
        shown = repr(value)[: 2 * _MAX_TEXT] if type(value) in _COMPARED_BY_REPR else ""
        yield path, value, _plain_leaf(path, kind, text, shown)
    elif id(value) in ancestors:
        yield path, value, _plain_leaf(path, kind, b"cycle%d" % ancestors[::-1].index(id(value)))
    elif (children := _children(value)) is None:
        why = f"values of type {kind} cannot be compared"
        yield path, value, Leaf(path, kind, "opaque", why=why)
    else:
        yield path, value, _plain_leaf(path, kind, f"{kind} {len(children)}".encode())
        for step, child in children:
            yield from _parts(child, path + step, (*ancestors, id(value)))


def _has_elements(value: Any) -> bool:
    """Whether it is a tensor, an array, a number, or a list of numbers (treated as an array)."""
    numbers = value if type(value) in (list, tuple) and value else [value]
    is_numeric = all(
        type(x) is float or (type(x) is int and abs(x) <= _LARGEST_INT) for x in numbers
    )
    return is_numeric or _array(value) is not None


def _text(value: Any) -> bytes | None:
    """Equal bytes for equal plain values; None for other values, and for containers whose items
    are better described one by one."""
    cls, torch = type(value), sys.modules.get("torch")
    if cls in (bytes, bytearray):
        return bytes(value)
    if cls in _COMPARED_BY_REPR:
        return repr(value).encode()
    if torch is not None and cls in (torch.dtype, torch.layout, torch.device):
        return str(value).partition(":")[0].encode()  # each rank may have another device's number
    if isinstance(value, enum.Enum):
        return f"{untrusted.name_of(cls)}.{value._name_}".encode()
    if inspect.isroutine(value) or isinstance(value, type | types.ModuleType):
        return f"{getattr(value, '__module__', '')}.{value.__name__}".encode(errors="replace")
    if cls in (list, tuple, set, frozenset) or (cls is dict and len(value) > _MAX_ITEMS):
        items = value.items() if cls is dict else value
        atoms = [*value, *value.values()] if cls is dict else value
        if _COMPARED_BY_REPR.issuperset(map(type, atoms)):
            texts = map(repr, items)
            return f"{cls.__name__} {[*texts] if cls in (list, tuple) else sorted(texts)}".encode()
    return None


def _children(value: Any) -> Sequence[tuple[str, object]] | None:
    """The parts of a container or object, each with its path step; None if they may not be all."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        attrs = sorted(untrusted.attributes(value).items())
        plain = {name: child for name, child in attrs if not name.startswith("_")}
        children = untrusted.registered(value) | plain
        return [(f".{name}", child) for name, child in children.items() if child is not None]
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        # Parameters by number; not an override in the user's class.
        return [(f".{key}", item) for key, item in torch.optim.Optimizer.state_dict(value).items()]
    if isinstance(value, dict):
        pairs = [(_text(key), child) for key, child in dict.items(value)]
        keys = sorted((key.decode(errors="replace"), n) for n, (key, _) in enumerate(pairs) if key)
        return [(f"[{key}]", pairs[n][1]) for key, n in keys] if len(keys) == len(pairs) else None
    if isinstance(value, list | tuple):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [(f"[{number}]", item) for number, item in enumerate(items)]
    if _has_attributes_only(type(value)):
        return [(f".{name}", child) for name, child in sorted(untrusted.attributes(value).items())]
    return None


def _has_attributes_only(cls: type) -> bool:
    """Whether instances have the memory layout of a plain class's. Not for a class of an installed
    package other than torch: a matplotlib figure has a thousand parts, many keyed by address."""
    module = untrusted.module_of(cls)
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    is_installed = "-packages/" in file and module.partition(".")[0] != "torch"
    return _layout(cls) == _layout(_Plain) and not is_installed


def _layout(cls: type) -> tuple[int, ...]:
    return cls.__basicsize__, cls.__itemsize__, cls.__dictoffset__, cls.__weakrefoffset__


class _Plain:
    pass


# ---------------------------------------------------------------- tensors and arrays


def _array(value: Any) -> Any:
    """The tensor, JAX array (of a torchax tensor too) or NumPy array with the elements, or None."""
    array = vars(value).get("_elem", value) if jax_values.is_torchax(value) else value
    is_array = jax_values.is_torch(array) or jax_values.is_jax(array)
    return array if is_array or is_numpy(array, "ndarray", "generic") else None


def _metadata(value: Any) -> dict[str, Any]:
    """The fields of a Leaf that do not depend on its elements; none for a number or numbers."""
    if _array(value) is None:
        return {}
    shape, is_torch = tuple(map(int, value.shape)), jax_values.is_torch(value)
    return {
        "shape": shape,
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device) if is_torch else "jax" if jax_values.is_jax(value) else "",
        "nbytes": math.prod(shape) * value.dtype.itemsize,
        "part": is_torch and "_is_sharded" in vars(value),  # set by torch_xla's FSDP
    }


def _obstacle(value: Any, is_computed: bool = False) -> tuple[State, str]:
    """Why the elements of a tensor or array cannot be read; ("known", "") if they can."""
    array, why = _array(value), ""
    if jax_values.is_jax(array):
        why = "" if jax_values.is_here(array) else "this rank holds only a part of it"
    elif jax_values.is_torch(array):
        torch: Any = sys.modules["torch"]
        device = array.device.type
        if type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            why = f"values of type {untrusted.name_of(type(array))} cannot be compared"
        elif array.layout is not torch.strided or array.is_quantized or array.is_nested:
            why = "only dense tensors can be compared"
        elif device not in ("cpu", "xla"):
            why = f"tensors on device {device} cannot be compared"
        elif device == "xla" and not is_computed:
            if _native()._check_tensor_need_materialization([array])[0]:
                return "pending", "it has not been computed yet"
            if _native()._get_xla_sharding_spec(array) not in ("", "{replicated}"):
                why = "it is sharded; reading it would run a computation"
    elif array is not None:
        # Equal wider numbers (padding), and equal records, may have different bytes.
        widest = {"V": 0, "f": 8, "c": 16}.get(array.dtype.kind, array.dtype.itemsize)
        if array.dtype.hasobject or array.dtype.itemsize > widest:
            why = f"elements of dtype {array.dtype} cannot be compared"
    return ("opaque", why) if why else ("known", "")


def _native() -> Any:
    return importlib.import_module("torch_xla")._XLAC


def _read(value: Any) -> Any:
    """The elements, as a NumPy array or a CPU tensor. Waits for a device."""
    numpy: Any = importlib.import_module("numpy")
    array = _array(value)
    if jax_values.is_jax(array):
        numbers = numpy.asarray(array)
        return numbers.astype("float32") if numbers.dtype.kind == "V" else numbers  # bfloat16, say
    if jax_values.is_torch(array):
        is_lazy = array.device.type == "xla"
        return (_native()._xla_get_cpu_tensors([array])[0] if is_lazy else array).detach()
    # Without the methods of an array's own class.
    return numpy.asarray(value) if array is not None else numpy.array(value, dtype="float64")


def _content(array: Any, end: float) -> dict[str, Any]:
    """The fields of a Leaf that depend on its elements: equal numbers have equal digests. Read in
    small pieces, which takes little extra memory."""
    numpy: Any = importlib.import_module("numpy")
    hasher, nans, squares, finite = hashlib.sha256(), 0, 0.0, True
    flat, kind, value = array.reshape(-1), "", ""
    for start in _until(end, range(0, len(flat), _PIECE)):
        piece = _canonical(flat[start : start + _PIECE])
        hasher.update(piece.view(numpy.uint8).data)
        kind, value = piece.dtype.kind, str(piece[0]) if len(flat) == 1 else ""
        if kind in "biufc":
            nans += int(numpy.isnan(piece).sum())
            # Not with BLAS, whose threads would take cores from the other ranks.
            magnitudes = numpy.abs(piece[numpy.isfinite(piece)]).astype(numpy.float64)
            squares += float(numpy.square(magnitudes).sum())
            finite = finite and magnitudes.size == piece.size
    norm = math.sqrt(squares) if kind in "biufc" and math.isfinite(squares) else None
    statistics = {"nans": nans, "norm": norm, "finite": finite, "value": value}
    return {"digest": hasher.hexdigest()[:32], **statistics}


def _canonical(flat: Any) -> Any:
    """A 1-D array or CPU tensor as a NumPy array, with all NaNs made the same and -0.0 made 0.0;
    dtypes that NumPy lacks (bfloat16) as float32."""
    numpy: Any = importlib.import_module("numpy")
    if jax_values.is_torch(flat):
        torch: Any = sys.modules["torch"]
        flat = flat.resolve_conj().resolve_neg()
        try:
            flat = flat.numpy()
        except TypeError:
            flat = flat.to(torch.complex64 if flat.is_complex() else torch.float32).numpy()
    flat = flat.astype(flat.dtype.newbyteorder("="), order="C", copy=False)
    if flat.dtype.kind in "fc":
        with numpy.errstate(all="ignore"):  # signalling NaNs
            flat = flat + flat.dtype.type(0)
        flat[numpy.isnan(flat)] = numpy.nan
    return flat
