"""Find which units share mutable state: objects, and memory of arrays and tensors."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import logging
import pathlib
import re
import sys
import types
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from xla_nb.pickling import code_facts, module_objects, rebuild
from xla_nb.pickling.code_facts import is_made_here
from xla_nb.pickling.libraries import pandas_values
from xla_nb.pickling.rebuild import Call

#: For one unit: its part, the other unit, and the other's part, of the same object or memory.
Links: TypeAlias = frozenset[tuple[Hashable, Any, Hashable]]

_FIXED_TYPES: set[type] = {
    *(*code_facts.PLAIN, types.FunctionType, types.ModuleType, types.BuiltinFunctionType),
    *(types.GenericAlias, types.MappingProxyType, Call, range, slice),
    *(datetime.date, datetime.datetime, datetime.timedelta, datetime.time),
    *(object, functools.partial, types.MethodType, tuple, type(rebuild.NOT_YET)),
}
#: Immutable types of Python.
_VALUE_TYPES = (
    *(pathlib.PurePath, re.Pattern, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(datetime.tzinfo, bytes),
)
#: Types, also of Cython, that are sent by name: functions, methods (`dict.__setitem__`), NaT.
_TYPE_NAMES = {
    *("wrapper_descriptor", "method_descriptor", "classmethod_descriptor"),
    *("cython_function_or_method", "fused_cython_function", "NaTType"),
}
#: Library types whose identity does not matter.
_CONSTANT_TYPES = {
    "numpy": ("dtype", "ufunc", "generic"),
    "torch": ("dtype", "device", "Size", "layout", "memory_format"),
    "pandas": ("Timestamp", "Timedelta", "Period", "Interval", "Index"),
    "pandas.api.extensions": ("ExtensionDtype",),
    "multiprocessing.context": ("BaseContext",),
    "multiprocessing.heap": ("Arena",),  # mapped by each holder
}
_MAX_OBJECTS = 1_000_000  # objects
_NOT_FOLLOWED = type | types.ModuleType | types.FrameType | types.CodeType | enum.Enum
_FILES = io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.FileIO


@dataclass(frozen=True)
class Parts:
    """The mutable parts of one unit: its `objects`, by id, each with its number in the pickle, and
    the addresses around its `memory`. Two pandas frames cannot observe that they share memory,
    because they copy on write; a frame and an `array` of it can."""

    objects: Mapping[int, int] = field(default_factory=dict)
    memory: tuple[tuple[int, int], ...] = ()
    kind: Literal["frame", "array", "other"] = "other"

    def may_share_with(self, other: Parts) -> bool:
        """True if sharing memory between both can be observed."""
        kinds = {self.kind, other.kind}
        return "frame" not in kinds or kinds == {"frame", "array"}


def changeable(memo: Mapping[int, tuple[int, object]]) -> dict[int, int]:
    """Return the pickled objects, by id, that are mutable and do not belong to a library, which
    ranks have."""
    kinds: dict[type, bool] = dict.fromkeys(_FIXED_TYPES, True)
    constants = tuple(
        getattr(sys.modules[module], name)
        for module, names in _CONSTANT_TYPES.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)  # its import may be unfinished
    )
    numbers: dict[int, int] = {}
    excluded = {id(sys.stdin), id(sys.stdout), id(sys.stderr)}  # each rank has its own
    for key, (number, obj) in memo.items():
        kind = type(obj)
        if kind not in kinds:
            is_value = issubclass(kind, (*_VALUE_TYPES, *constants)) and not is_made_here(kind)
            is_value |= issubclass(kind, (type, enum.Enum, logging.Logger))
            kinds[kind] = is_value or kind.__name__ in _TYPE_NAMES or kind.__module__ == "typing"
        if isinstance(obj, types.FunctionType):
            excluded.update(map(id, _stateless_parts(obj)))
        elif issubclass(kind, type) and code_facts.importable(obj):
            excluded.update(map(id, _class_parts(obj)))
        elif kind is functools.partial:
            excluded.add(id(obj.keywords))  # type: ignore[attr-defined]
        elif isinstance(obj, constants):  # for an index also its array and that array's base
            attributes = getattr(obj, "__dict__", {})
            excluded.add(id(attributes))
            excluded.update(id(value) for value in attributes.values())
            excluded.update(id(getattr(value, "_ndarray", None)) for value in attributes.values())
        if kind is types.CellType and _is_of_class(obj):
            continue
        if not kinds[kind] and not code_facts.is_ready(obj):
            numbers[key] = number
    return {key: number for key, number in numbers.items() if key not in excluded}


def _is_of_class(cell: Any) -> bool:
    """True for the cell through which methods of a class refer to it: `super` and `__class__`."""
    cls = rebuild.content(cell)
    methods = vars(cls).values() if isinstance(cls, type) else ()
    functions = (function for method in methods for function in rebuild.unwrapped(method))
    return any(rebuild.cells(function).get("__class__") is cell for function in functions)


def held(values: Iterable[object]) -> Set[int]:
    """Return the ids of the mutable objects that these values hold; empty if there are too many.
    Files are excluded: a rank's streams lead to everything it has."""
    objects: dict[int, tuple[int, object]] = {}
    todo: list[Any] = list(values)
    while todo and len(objects) < _MAX_OBJECTS:
        part = todo.pop()
        if id(part) in objects or isinstance(part, _FILES):
            continue
        objects[id(part)] = 0, part
        objects[id(type(part))] = 0, type(part)
        if isinstance(part, types.FunctionType):
            todo += [*(part.__closure__ or ()), part.__defaults__, part.__kwdefaults__]
        elif isinstance(part, type) and is_made_here(part):
            todo += vars(part).values()
        elif not isinstance(part, _NOT_FOLLOWED):
            todo += (obj for obj in gc.get_referents(part) if type(obj) not in code_facts.PLAIN)
    return frozenset() if todo else changeable(objects).keys()


def ways(value: object, wanted: Set[int]) -> Iterator[tuple[Any, rebuild.Way]]:
    """Yield the objects in a value whose ids are `wanted`, each with the shortest path to it by
    attributes, keys and indices. There may be none."""
    for part, way in code_facts.ways(value, wanted, _steps):
        yield part, tuple(step for step, _ in way)


def _steps(holder: Any) -> Iterator[tuple[tuple[bool, str | int], Any]]:
    kind = type(holder)
    if kind is types.FunctionType or isinstance(holder, _NOT_FOLLOWED):
        return
    if pandas_values.is_pandas(kind):  # they hold caches that come and go
        return
    for (place, key), part in code_facts.parts(holder):
        is_attribute = place == code_facts.ATTRIBUTE
        if is_attribute or (place == code_facts.ITEM and type(key) in (str, int)):
            yield (is_attribute, key), part


def _stateless_parts(function: types.FunctionType) -> list[object]:
    """Return what is not state: a function's annotations, which its wrappers share, and for a
    library's function, or one that a library created, everything that holds its state."""
    module = module_objects.module_of(function)
    if module is sys.modules["__main__"] or module is None or module_objects.is_own(module):
        return [function.__annotations__]
    closure = function.__closure__ or ()
    parts = [function.__annotations__, function.__kwdefaults__, vars(function)]
    return [*parts, closure, *closure]


@functools.lru_cache(maxsize=4096)
def _class_parts(cls: type) -> list[object]:
    """Return what a library's class holds, which objects created from it share."""
    parts = [part for base in cls.__mro__ for part in vars(base).values()]
    parts = [part for part in parts if type(part) not in _FIXED_TYPES]
    return parts + [vars(part) for part in parts if hasattr(part, "__dict__")]


def links(units: Mapping[Any, Parts]) -> dict[Any, Links]:
    """Return what each unit shares with others."""
    shared: dict[Any, set[tuple[Hashable, Any, Hashable]]] = collections.defaultdict(set)
    holders: dict[int, list[tuple[Any, Hashable]]] = collections.defaultdict(list)
    for key, unit in units.items():
        for obj_id, number in unit.objects.items():
            holders[obj_id].append((key, number))
    for group in holders.values():
        if len(group) > 1:
            _link(shared, group)
    for pair in _overlapping(units):
        _link(shared, pair)
    return {key: frozenset(unit_links) for key, unit_links in shared.items()}


def _link(shared: dict[Any, set[Any]], group: list[tuple[Any, Hashable]]) -> None:
    for key, part in group:
        shared[key].update((part, other, other_part) for other, other_part in group if other != key)


def _overlapping(units: Mapping[Any, Parts]) -> list[list[tuple[Any, Hashable]]]:
    """Return pairs of overlapping pieces of memory, the same ones in whichever order the units were
    looked at."""
    pieces = [
        (start, end, n, key)
        for key, unit in units.items()
        for n, (start, end) in enumerate(unit.memory)
        if 0 <= start < end
    ]
    pieces.sort(key=lambda piece: (*piece[:2], repr(piece[3])))
    pairs: list[list[tuple[Any, Hashable]]] = []
    open_pieces: list[tuple[int, int, int, Any]] = []
    for start, end, n, key in pieces:
        open_pieces = [piece for piece in open_pieces if piece[1] > start]
        pairs += (
            [(other, ("memory", m)), (key, ("memory", n, start - first))]
            for first, _, m, other in open_pieces
            if other != key and units[other].may_share_with(units[key])
        )
        open_pieces.append((start, end, n, key))
    return pairs


def together(changed: Set[Any], shared: Mapping[Any, Links]) -> set[Any]:
    """Return these units and those that share with them, directly or through others."""
    group, todo = set(changed), list(changed)
    while todo:
        for _, other, _ in shared.get(todo.pop(), ()):
            if other not in group:
                group.add(other)
                todo.append(other)
    return group
