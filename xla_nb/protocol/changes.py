"""Which of the objects that came in a parcel are no longer as they came.

Both sides are opened from one parcel, so that the numbers of its pickle tell which object is which.
No code of the objects is run.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from xla_nb.protocol import parts

_CHUNK = 16 << 20  # bytes
_ATOMS = (*parts.PLAIN, types.BuiltinFunctionType, types.ModuleType)


def changed(fresh: Mapping[int, object], now: Mapping[int, object]) -> set[int]:
    """The numbers of the objects in `now` that are not as in `fresh`."""
    numbers = [{id(one): number for number, one in each.items()} for each in (fresh, now)]
    return {
        number
        for number in fresh.keys() & now.keys()
        if _differ(fresh[number], now[number], *numbers)
    }


def inside(value: object, wanted: set[int]) -> bool:
    """Whether an object is, or leads to, one whose id is wanted."""
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            todo += [part for _, part in _content(one)]
    return False


def _differ(
    fresh: object, now: object, numbers: dict[int, int], numbers_now: dict[int, int]
) -> bool:
    if not _of_one_class(fresh, now, numbers, numbers_now):
        return False  # a stand-in
    before = [(name, _key(part, numbers)) for name, part in _content(fresh)]
    after = [(name, _key(part, numbers_now)) for name, part in _content(now)]
    if set(before) != set(after) if isinstance(fresh, set) else before != after:
        return True
    return not _same_memory(fresh, now)


def _of_one_class(
    fresh: object, now: object, numbers: Mapping[int, int], numbers_now: Mapping[int, int]
) -> bool:
    """Whether two objects have one class, or each its own of the notebook's."""
    kinds = type(fresh), type(now)
    number = numbers.get(id(kinds[0]))
    return kinds[0] is kinds[1] or (number is not None and number == numbers_now.get(id(kinds[1])))


def _key(part: object, numbers: Mapping[int, int]) -> Hashable:
    """What two objects have in common that are one: the number, or the value of a constant."""
    if isinstance(part, tuple) and type(part) is tuple:
        return tuple(_key(one, numbers) for one in part)
    if type(part) in _ATOMS or parts.is_of_a_module(part):
        return type(part).__name__, repr(part) if isinstance(part, float | complex) else _id_of(
            part
        )
    return numbers.get(id(part), type(part).__name__)


def _id_of(part: object) -> Hashable:
    return part if isinstance(part, int | str | bytes | bool) else id(part)


def _content(value: object) -> Iterator[tuple[Hashable, object]]:
    """What an object holds, each with the place where it does."""
    match value:
        case dict():
            for n, (key, part) in enumerate(dict.items(value)):
                yield ("key", n), key
                yield ("value", n), part
        case list():
            yield from enumerate(list.__iter__(value))
        case tuple():
            yield from enumerate(tuple.__iter__(value))
        case deque():
            yield from enumerate(deque.__iter__(value))
        case set():
            yield from (("item", part) for part in set.__iter__(value))
        case types.FunctionType():
            yield "defaults", value.__defaults__
            yield "kwdefaults", value.__kwdefaults__
            yield from _contents(value)
        case type() if parts.is_made_here(value):
            yield from ((n, part) for n, part in vars(value).items() if n[:2] != "__")
            return
        case type() | types.ModuleType():
            return
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").items()
    yield from _slots(value)


def _slots(value: object) -> Iterator[tuple[Hashable, object]]:
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for name, member in vars(kind).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # nothing is set
                        yield name, member.__get__(value)


def _contents(function: types.FunctionType) -> Iterator[tuple[Hashable, object]]:
    for n, cell in enumerate(function.__closure__ or ()):
        yield ("closure", n), parts.content(cell)


def _same_memory(fresh: Any, now: Any) -> bool:
    """Whether two arrays or tensors have the same bytes, shape and type; True for other objects."""
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    if isinstance(fresh, bytearray):
        return bool(fresh == now)
    if numpy is not None and isinstance(fresh, numpy.ndarray) and not fresh.dtype.hasobject:
        if (fresh.shape, fresh.dtype) != (now.shape, now.dtype):
            return False
        flat = [numpy.ascontiguousarray(one).reshape(-1).view("u1") for one in (fresh, now)]
        starts = range(0, flat[0].size, _CHUNK)
        return all(numpy.array_equal(*(one[n : n + _CHUNK] for one in flat)) for n in starts)
    if torch is not None and isinstance(fresh, torch.Tensor) and fresh.device.type == "cpu":
        if (fresh.shape, fresh.dtype) != (now.shape, now.dtype):
            return False
        with contextlib.suppress(RuntimeError):  # a layout without bytes in a row
            flat = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (fresh, now)]
            return bool(torch.equal(*flat))
    return True
