"""Look at what the notebook holds, unit by unit: its current content and what that refers to.

A unit that consists of the same objects as last time is not pickled again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from xla_nb.live_ranks import sharing
from xla_nb.live_ranks.array_memory import Memory
from xla_nb.live_ranks.glances import glance, same
from xla_nb.live_ranks.unit_pickler import LiveUnits, UnitPickler
from xla_nb.pickling import code_facts, own_modules
from xla_nb.pickling.functions_and_classes import Met
from xla_nb.pickling.libraries import pandas_values
from xla_nb.pickling.parcel import Packed, merged
from xla_nb.pickling.pickler import packed
from xla_nb.pickling.rebuild import Call

#: A name, the number of a definition, or a module and a name set in it.
Key: TypeAlias = str | int | own_modules.Key


@dataclass
class Unit:
    """The result of pickling a unit, and what it shares with others.

    `digest` is that of its pickle without `memory`, the memory of its arrays and tensors. `glanced`
    are the objects of which it consists, if these suffice to detect a change, `met` what was met in
    it. `itself` returns the value, if an equal one that was created again would not do.
    """

    digest: bytes
    memory: Memory
    glanced: list[object] | None
    met: Met
    shares: sharing.Parts
    itself: Callable[[], object]


class Look:
    """One look at the notebook, during which `live` collects what it does when everything is sent.
    `before` are the units that were sent; `objects` are the current ones.

    reads  the names that the cell's functions, and functions that they call, read
    lost   names that ranks had, that the cell does not need and that cannot be sent, with the error
    """

    def __init__(self, previous: Mapping[Key, Unit], live: LiveUnits) -> None:
        self.objects: dict[Key, Any] = {}
        self.reads: Set[str] = frozenset()
        self.lost: dict[str, BaseException] = {}
        self._previous = previous
        self._live = live
        self._others: Mapping[Key, object] = {}
        self._units: dict[Key, Unit] = {}
        self._todo: dict[Key, Any] = {}
        self._alive: list[Packed] = []  # so that no later pickle's objects reuse their ids

    def at(self, names: Mapping[str, object], others: Mapping[Key, object]) -> dict[Key, Unit]:
        """Return the units of all that these names lead to, which the cell needs, and then those of
        `others`, which ranks have: missing names and unsupported magics in these are not reported
        for this cell."""
        live, met, self._others = self._live, self._live.met, others
        self._reach(names)
        self.reads = {name for name, code in met.names.items() if code}
        needed = {name: list(code) for name, code in met.names.items()}
        self._reach({name: obj for name, obj in others.items() if name not in self.objects}, True)
        existing = (name for name in met.names if name in live.notebook.values)
        met.names = {**{name: [] for name in existing}, **needed}
        return self._units

    def _reach(self, keys: Mapping[Any, object], spare: bool = False) -> None:
        """Look at everything these lead to; `spare`: they need not be sent."""
        for name in keys:
            if isinstance(name, str):
                self._live.met.names.setdefault(name, [])
        self._todo.update(keys)
        while self._todo or self._queue_new():
            key = next(iter(self._todo))
            obj = self._todo.pop(key)
            self.objects[key] = obj
            try:
                self._units[key] = unit = self._unit(key, obj)
            except Exception as problem:
                if isinstance(key, tuple):
                    self._live.notes.add(own_modules.note_of(key, obj))
                elif spare and isinstance(key, str):
                    self.lost[key] = problem
                else:
                    name = key if isinstance(key, str) else obj.__qualname__
                    self._live.writing = name, obj
                    raise
                continue
            self._live.met.take(unit.met)
            self._todo.update(self._not_seen(unit.met.refers))
            if isinstance(obj, type):
                for subclass in self._live.subclasses(obj):
                    self._live.met.names.setdefault(subclass.__name__, [])

    def _queue_new(self) -> bool:
        """True if something came up that was not looked at yet; it is queued."""
        self._todo.update(self._not_seen(self._live.names_met()))
        if not self._todo:
            values = self._live.in_modules()  # current values of what was set there before
            self._todo.update(self._not_seen({n: self._others.get(n, values[n]) for n in values}))
        return bool(self._todo)

    def _not_seen(self, objects: Mapping[Any, object]) -> dict[Key, object]:
        return {key: obj for key, obj in objects.items() if key not in self.objects}

    def _unit(self, key: Key, obj: Any) -> Unit:
        glanced = glance(obj, whole=isinstance(key, int))
        previous = self._previous.get(key)
        if previous is not None and same(previous.glanced, glanced):
            return previous
        live, parcel, memory, shares = self._packed({key: obj})
        if glanced is not None:  # only these objects are the same next time
            ids = set(map(id, glanced))
            objects = {obj_id: number for obj_id, number in shares.objects.items() if obj_id in ids}
            shares = replace(shares, objects=objects)
        if pandas_values.is_apart(obj):
            objects = {id(obj): shares.objects.get(id(obj), 0)}
            shares = sharing.Parts(objects, shares.memory, "frame")
        elif isinstance(obj, _array_types()):
            shares = replace(shares, kind="array")
        digest = hashlib.blake2b(parcel.stream, digest_size=32)
        digest.update(json.dumps(_layout(parcel)).encode())
        is_comparison = isinstance(obj, own_modules.Told)  # created for this look
        is_constant = isinstance(key, int) or is_comparison or code_facts.is_ready(obj)
        if type(obj) is types.FunctionType and obj.__closure__:  # its calls may change it
            is_constant = False
        return Unit(
            digest=digest.digest(),
            memory=memory,
            glanced=glanced,
            met=live.met,
            shares=shares,
            itself=_reference_to(None if is_constant else obj),
        )

    def of_former(self, name: Key, value: object) -> Unit | None:
        """Return the unit of a value that the notebook no longer has under this name; None if it
        cannot be sent."""
        try:
            return self._unit(name, value)
        except Exception:
            return None

    def shares_but_for(self, keys: Iterable[Key], calls: Mapping[int, Call]) -> sharing.Parts:
        """Return the mutable parts of these units together, without what ranks find by
        these calls and its contents."""
        return self._packed({key: self.objects[key] for key in keys}, calls)[3]

    def _packed(
        self, values: Mapping[Key, Any], calls: Mapping[int, Call] = {}
    ) -> tuple[LiveUnits, Packed, Memory, sharing.Parts]:
        """Pickle these alone, for ranks that have all definitions and what they find by the calls.
        Returns what the pickle collected, the pickle, its memory, and its mutable parts."""
        live = self._live.part_of({k: value for k, value in values.items() if type(k) is int}, True)
        live.sets = {key: value for key, value in values.items() if isinstance(key, tuple)}
        live.held = calls
        named = {key: value for key, value in values.items() if isinstance(key, str)}
        self._live.trail = live.trail
        parcel = packed(named, live, UnitPickler)
        live.trail.clear()
        self._alive.append(parcel)
        memory = Memory(parcel)
        memo = parcel.writer.memo.copy()
        objects = sharing.changeable(memo) | dict.fromkeys(live.namespaces, 0)
        fixed = pandas_values.places_of_indices(value for _, value in memo.values())
        places = ((start, start + size) for start, size in memory.places if start not in fixed)
        pieces = (*places, *parcel.writer.gaps)
        return live, parcel, memory, sharing.Parts(objects, pieces)


def _array_types() -> tuple[type, ...]:
    numpy, torch = map(sys.modules.get, ("numpy", "torch"))
    kinds = getattr(numpy, "ndarray", None), getattr(torch, "Tensor", None)
    return tuple(filter(None, kinds))


def _reference_to(value: object) -> Callable[[], object]:
    """Return a function that returns a value while it exists; a value without weak references, such
    as a list, is kept, so that no other can be taken for it."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _layout(parcel: Packed) -> list[tuple[int, int, int]]:
    """Return which buffers are in the same memory, and where in it."""
    order: dict[int, int] = {}
    _, slices = merged([buffer.raw() for buffer in parcel.buffers])
    return [(order.setdefault(n, len(order)), start, size) for n, start, size in slices]
