"""The classes and functions of the notebook that a value refers to and must be sent with it.

Only attributes and containers are searched, a bounded number of them, and never by user code: a
property may compute for hours.
"""

from __future__ import annotations

import contextlib
import dis
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from xla_nb.program.origins import module_of

PLAIN = (int, float, complex, str, bytes, bool, type(None))
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_REACH = 20_000  # objects to search at most
_LEAVES = (*PLAIN, ModuleType, BuiltinFunctionType, CodeType, range, slice, bytearray)


def reached(value: object, values: Mapping[str, object], mains: set[str]) -> set[str]:
    """The notebook's names of the classes and functions that a value refers to, at any depth.

    Those beyond the searched objects are pickled by value.
    """
    names: set[str] = set()
    seen: dict[int, object] = {}
    queue: deque[object] = deque([value])
    while queue and len(seen) < _REACH:
        part = queue.popleft()
        if isinstance(part, _LEAVES) or id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, type | FunctionType):
            if module_of(part) in mains:
                names |= _named_code(part, values, queue, outermost=part is value)
        else:
            queue.append(type(part))
            queue.extend(islice(contents(part), _REACH))
    return names


def _named_code(
    part: type | FunctionType, values: Mapping[str, object], queue: deque[object], outermost: bool
) -> set[str]:
    """The root name of a live definition; of others the names used in it, and queue its parts."""
    root, *rest = part.__qualname__.split(".")
    found: object = values.get(root)
    for name in rest:
        found = vars(found).get(name) if isinstance(found, type) else None
    if found is part and not outermost:
        return {root}
    if isinstance(part, type):
        queue.extend(part.__bases__)
        queue.extend(vars(part).values())
        return set()
    queue.extend(contents(part))
    queue.extend([part.__defaults__, part.__kwdefaults__])
    queue.extend(_cell_contents(part))
    return {name for name in _global_names(part.__code__) if name in values}


def contents(part: object) -> Iterator[object]:
    """What an object refers to directly: elements, attributes, slots, wrapped functions."""
    if isinstance(part, dict):
        yield from chain.from_iterable(dict.items(part))
    for kind in _SEQUENCES:
        if isinstance(part, kind):
            yield from kind.__iter__(part)
    if isinstance(part, partial):
        yield from (part.func, part.args, part.keywords)
    if isinstance(part, MethodType):
        yield from (part.__self__, part.__func__)
    if isinstance(part, staticmethod | classmethod):
        yield part.__func__
    if isinstance(part, property):
        yield from (part.fget, part.fset, part.fdel)
    with contextlib.suppress(AttributeError):
        yield object.__getattribute__(part, "__dict__")
    yield from _slots(part)


def _slots(part: object) -> Iterator[object]:
    for cls in type(part).__mro__:
        for descriptor in vars(cls).values():
            if isinstance(descriptor, MemberDescriptorType) and descriptor.__objclass__ is cls:
                try:
                    yield descriptor.__get__(part)
                except (AttributeError, TypeError):
                    continue


def _cell_contents(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell
            continue


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname:  # not co_names, which also has names of attributes
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
