"""What a variable is made of: its tensors and arrays, and the plain values beside them, with paths.

Models are taken apart by parameter and buffer, optimizers by state, containers by item, objects of
classes written in Python by attribute. None of their own code is run.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import hashlib
import math
import pathlib
import struct
import sys
import types
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xla_nb.protocol import hostile
from xla_nb.rank import static
from xla_nb.rank.deadline import Deadline


@dataclass(frozen=True)
class Elements:
    """A tensor or array, or a number or list of numbers, which is an array too."""

    path: str
    value: Any


@dataclass(frozen=True)
class Plain:
    """A value without numbers to be compared one by one; `data` is equal if it is."""

    path: str
    value: object
    data: bytes


@dataclass(frozen=True)
class Opaque:
    """What cannot be compared, and why."""

    path: str
    value: object
    why: str


Found: TypeAlias = Elements | Plain | Opaque

_DEEPEST = 50
_ITEMS = 100  # plain items that a dict has one by one
_NUMBERS = {int, float, bool}
_SCALARS = {*_NUMBERS, type(None), str, bytes, complex}
#: Whose `repr` tells equal ones from others, and runs no code of the user's.
_TOLD_BY_REPR = {
    range,
    slice,
    type(...),
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
}
_CODE = {types.FunctionType, types.BuiltinFunctionType, types.MethodType}
_LARGEST_INT = 1 << 53  # up to which a float holds every whole number


def leaves(value: object, deadline: Deadline) -> Iterator[Found]:
    """All leaves of a value. Raises `hostile.TooLong`."""
    yield from _of(value, "", deadline, ())


def _of(value: object, path: str, deadline: Deadline, above: tuple[int, ...]) -> Iterator[Found]:
    deadline.check()
    if any(is_one(value) for is_one in _WITH_ELEMENTS):
        yield Elements(path, value)
    elif (data := _encoded(value, deadline)) is not None:
        yield Plain(path, value, data)
    elif id(value) in above:
        yield Plain(path, "...", b"cycle%d" % above[::-1].index(id(value)))
    elif len(above) >= _DEEPEST:
        yield Opaque(path, value, f"it is nested more than {_DEEPEST} deep")
    else:
        inside = _inside(value, deadline)
        if inside is None:
            yield Opaque(path, value, f"values of type {_name(value)} cannot be compared")
            return
        yield Plain(path, value, f"{_name(value)} {len(inside)}".encode())
        for step, held in inside:
            yield from _of(held, path + step, deadline, (*above, id(value)))


def _name(value: object) -> str:
    return hostile.name_of(type(value))


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind is float or (kind is int and abs(value) <= _LARGEST_INT)


def _are_numbers(value: object) -> bool:
    """Whether it is a list of numbers that an array can hold."""
    if type(value) not in (list, tuple) or not value:
        return False
    items: Sequence[Any] = value  # type: ignore[assignment]
    kinds = set(map(type, items))
    if not kinds <= _NUMBERS or kinds == {bool}:
        return False
    return int not in kinds or all(abs(item) <= _LARGEST_INT for item in items if type(item) is int)


def _is_jax(value: object) -> bool:
    return static.jax_array(value) is not None


_WITH_ELEMENTS = static.is_tensor, static.is_array, _is_number, _are_numbers, _is_jax


# ---------------------------------------------------------------- what is inside


def _inside(value: Any, deadline: Deadline) -> Sequence[tuple[str, object]] | None:
    """The parts of a container or an object, with the steps to them; None where these are not
    all."""
    if static.is_module(value):
        return _of_module(value)
    if static.is_one(value, "torch.optim", "Optimizer"):
        return _of_optimizer(value)
    kinds = static.mro(type(value))
    if dict in kinds:
        return _of_dict(value, deadline)
    if list in kinds or tuple in kinds:
        items = list.__iter__(value) if list in kinds else tuple.__iter__(value)
        return [(f"[{number}]", item) for number, item in enumerate(items)]
    if set in kinds or frozenset in kinds or issubclass(type(value), type):
        return None
    if static.is_plain_object(value):
        return [(f".{name}", held) for name, held in sorted(static.attributes(value).items())]
    return None


def _of_module(module: Any) -> list[tuple[str, object]]:
    """Parameters, buffers and modules in it, and what its class keeps beside them."""
    held = static.attributes(module)
    found: list[tuple[str, object]] = []
    for kept in ("_parameters", "_buffers", "_modules"):
        items: Any = held.get(kept)
        if issubclass(type(items), dict):
            found += [(f".{name}", one) for name, one in dict.items(items) if one is not None]
    own = ((f".{name}", one) for name, one in sorted(held.items()) if not name.startswith("_"))
    return found + [(step, one) for step, one in own if not _is_code(one)]


def _of_optimizer(optimizer: Any) -> list[tuple[str, object]] | None:
    """Its settings by group and its state by parameter, which are numbered as `state_dict` does."""
    held = static.attributes(optimizer)
    groups: Any = held.get("param_groups")
    state: Any = held.get("state")
    if type(groups) is not list or not issubclass(type(state), dict):
        return None
    found: list[tuple[str, object]] = []
    numbers: dict[int, int] = {}
    for number, group in enumerate(groups):
        if type(group) is not dict or type(group.get("params")) is not list:
            return None
        for parameter in group["params"]:
            numbers.setdefault(id(parameter), len(numbers))
        settings = {name: one for name, one in group.items() if name != "params"}
        found.append((f".param_groups[{number}]", settings))
    for parameter, kept in dict.items(state):
        found.append((f".state[{numbers.get(id(parameter), '?')}]", kept))
    return found


def _of_dict(value: Any, deadline: Deadline) -> list[tuple[str, object]] | None:
    """Its items in the order of their keys, which may differ between ranks."""
    keyed = []
    for key, held in dict.items(value):
        data = _encoded(key, deadline)
        if data is None:
            return None
        keyed.append((data, key, held))
    keyed.sort(key=lambda item: item[0])
    return [(_step(number, key), held) for number, (_, key, held) in enumerate(keyed)]


def _step(number: int, key: object) -> str:
    """The path of an item; the number is its place among all."""
    if type(key) in _SCALARS:
        text = repr(key)
        return f"[{text}]" if len(text) <= 60 else f"[{text[:50]}… {number}]"
    return f"[{_name(key)} {number}]"


def _is_code(value: object) -> bool:
    return type(value) in _CODE or issubclass(type(value), type)


# ---------------------------------------------------------------- plain values as bytes


def _encoded(value: Any, deadline: Deadline, above: tuple[int, ...] = ()) -> bytes | None:
    """Equal bytes for equal values; None for what holds anything else than plain values, or has
    items that are better told one by one."""
    kind = type(value)
    if kind in _SCALARS or kind in _TOLD_BY_REPR:
        return _scalar(value)
    if kind is bytearray:
        return b"bytearray" + hashlib.sha256(value).digest()
    deadline.check()
    if id(value) in above or len(above) >= _DEEPEST:
        return None
    inside = (*above, id(value))
    if kind in (list, tuple, set, frozenset):
        items = (_encoded(item, deadline, inside) for item in value)
        return _joined(kind.__name__, items, kind in (set, frozenset))
    if kind is dict and (above or not value or len(value) > _ITEMS):
        pairs = (
            _joined("", [_encoded(key, deadline, inside), _encoded(held, deadline, inside)])
            for key, held in value.items()
        )
        return _joined("dict", pairs, True)
    if enum.Enum in static.mro(kind):
        return f"enum {hostile.name_of(kind)}.{static.attributes(value).get('_name_')}".encode()
    return _named(value)


def _scalar(value: Any) -> bytes:
    kind = type(value)
    if kind is float:
        return b"f" + struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)
    if kind is complex:
        return b"c" + struct.pack("<dd", value.real + 0.0, value.imag + 0.0)
    text = value if kind is str else repr(value)
    data: bytes = value if kind is bytes else text.encode(errors="surrogatepass")
    return kind.__name__.encode() + b" " + data


def _named(value: Any) -> bytes | None:
    """What is equal if its name is: functions, classes and modules, and torch's dtypes."""
    if type(value) in (types.FunctionType, types.BuiltinFunctionType):
        module = value.__module__
        where = module if type(module) is str else ""
        return f"function {where}.{value.__qualname__}".encode(errors="replace")
    if type(value) is types.ModuleType:
        return f"module {static.attributes(value).get('__name__')!s}".encode(errors="replace")
    if issubclass(type(value), type):
        name = f"class {hostile.module_of(value)}.{hostile.name_of(value)}"
        return name.encode(errors="replace")
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if type(value) is torch.device:  # whose number may be another one on each rank
        return f"device {value.type}".encode()
    if type(value) in (torch.dtype, torch.layout):
        return str(value).encode()
    return f"size {tuple(value)}".encode() if type(value) is torch.Size else None


def _joined(kind: str, items: Iterable[bytes | None], is_sorted: bool = False) -> bytes | None:
    """As one digest; None as soon as one of them is."""
    data = []
    for item in items:
        if item is None:
            return None
        data.append(hashlib.sha256(item).digest() if len(item) > 32 else item)
    if is_sorted:
        data.sort()
    hasher = hashlib.sha256()
    for item in data:
        hasher.update(b"%d " % len(item))
        hasher.update(item)
    return b"%s %d " % (kind.encode(), len(data)) + hasher.digest()
