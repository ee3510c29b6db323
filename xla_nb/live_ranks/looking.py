"""Look at what the notebook holds, unit by unit: what there is now, and what that refers to.

A unit whose very objects are those of last time is not pickled again.
"""

from __future__ import annotations

import enum
import hashlib
import json
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from xla_nb.live_ranks import sharing
from xla_nb.live_ranks.array_memory import Memory
from xla_nb.live_ranks.glances import glance, same
from xla_nb.live_ranks.unit_pickler import EVERYTHING, LiveUnits, UnitPickler
from xla_nb.pickling import code_facts, module_objects, own_modules
from xla_nb.pickling.parcel import Packed, merged
from xla_nb.pickling.pickler import packed

#: A name, the token of a definition, or what is set in a module; and what belongs to none.
Key: TypeAlias = str | int | own_modules.Key | None
REST: Key = None  # what the cell's source reads of modules


@dataclass
class Unit:
    """What was found out of one by pickling it, and what it shares with others.

    `digest` is that of its pickle but for `memory`, the arrays' and tensors'. `glanced` are the
    objects that it consists of, if these alone tell whether it changed, together with `modules`.
    `refers` are the definitions in it by token, `names` those that it uses, `labels` those of the
    cells that its code is from, `uses` what it leads to in modules. `itself` gives the value, if
    another that is equal would not do: one that was made anew.
    """

    digest: bytes
    memory: Memory
    glanced: list[object] | None
    modules: tuple[object, ...]
    refers: Mapping[int, Any]
    names: Set[str]
    labels: Set[str]
    shares: sharing.Parts
    uses: own_modules.Uses
    itself: Callable[[], object]
    links: sharing.Links = frozenset()


class Look:
    """One look, by which `live` collects what it does where all is sent. `before` are the units
    that were sent; `objects` is what there is.

    reads  the names that the cell's functions, and theirs, read
    lost   names that ranks had, that the cell does not need and that cannot be sent, with why
    """

    def __init__(self, before: Mapping[Key, Unit], live: LiveUnits) -> None:
        self.objects: dict[Key, Any] = {}
        self.reads: Set[str] = frozenset()
        self.lost: dict[str, BaseException] = {}
        self._before = before
        self._live = live
        self._units: dict[Key, Unit] = {}
        self._todo: dict[Key, Any] = {}
        self._alive: list[Packed] = []  # or an object made for one pickle has the id of another's

    def at(self, names: Mapping[str, object], others: Mapping[Key, object]) -> dict[Key, Unit]:
        """All that these names lead to, which the cell needs, and then that of `others`, which
        ranks have: what is missing there, or no magic of ranks, is not for this cell to tell."""
        live = self._live
        self._units[REST] = self._pickled(live.rest(), {})
        self._reach(names)
        self.reads = frozenset().union(*(unit.names for unit in self._units.values()))
        absent, shell = dict(live.absent), list(live.shell)
        self._reach({name: one for name, one in others.items() if name not in self.objects}, True)
        live.absent, live.shell = absent, shell
        return self._units

    def _reach(self, keys: Mapping[Any, object], spare: bool = False) -> None:
        """Look at all that these lead to; `spare`: they need not be sent."""
        self._live.used.update({key: one for key, one in keys.items() if type(key) is str})
        self._todo.update(keys)
        while self._todo or self._has_more():
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
                    raise
                continue
            self._live.uses.take(unit.uses)
            for token, definition in unit.refers.items():
                if token not in self.objects and not isinstance(definition, enum.Enum | dict):
                    self._todo.setdefault(token, definition)
            if isinstance(obj, type):
                self._live.used.update((one.__name__, one) for one in self._live.subclasses(obj))

    def _has_more(self) -> bool:
        """Whether something came up that was not looked at yet; it is to be looked at next."""
        self._todo.update(self._named())
        if not self._todo:
            self._todo.update(self._in_modules())
        return bool(self._todo)

    def _in_modules(self) -> dict[Key, object]:
        """What is to be set in modules, and was not looked at yet."""
        return {key: one for key, one in self._live.in_modules().items() if key not in self.objects}

    def _named(self) -> Iterator[tuple[str, object]]:
        """Names that came up, of code and of definitions."""
        for name, value in (self._live.used | self._live.named).items():
            if name not in self.objects and self._live.holds(name):
                yield name, value

    def _unit(self, key: Key, obj: Any) -> Unit:
        is_definition = isinstance(key, int)
        glanced = glance(obj, is_definition)
        before = self._before.get(key)
        again = module_objects.of_this_process().again[key[0]] if isinstance(key, tuple) else 0
        if before is not None and same(before.glanced, glanced):
            if is_definition:
                self._live.look_again(obj, before.names)
                self._live.seen |= before.labels
            if before.modules == (*self._modules(before.names), again):
                return before
        live = self._live.part_of({key: obj} if isinstance(key, int) else {}, EVERYTHING)
        live.sets = {key: obj} if isinstance(key, tuple) else {}
        values = {key: obj} if isinstance(key, str) else {}
        is_value = not (is_definition or code_facts.is_ready(obj))
        return self._pickled(live, values, glanced, again, _itself(obj if is_value else None))

    def _modules(self, names: Set[str]) -> tuple[object, ...]:
        """The modules that code uses by these names, and how many there are: those inside packages
        may have been imported since."""
        held = ((self._live.value(name)) for name in sorted(names) if self._live.holds(name))
        found = tuple(one for one in held if isinstance(one, types.ModuleType))
        return (*found, len(sys.modules)) if found else ()

    def _pickled(
        self,
        live: LiveUnits,
        values: dict[str, object],
        glanced: list[object] | None = None,
        again: int = 0,
        itself: Callable[[], object] = lambda: None,
    ) -> Unit:
        made = packed(values, live, UnitPickler)
        self._alive.append(made)
        self._live.take(live)
        objects = sharing.changeable(made.writer.memo.copy(), made.writer.of_modules)
        if glanced is not None:  # only what it holds itself is the same next time
            held = set(map(id, glanced))
            objects = {one: number for one, number in objects.items() if one in held}
        memory = Memory(made)
        pieces = (*((start, start + size) for start, size in memory.places), *made.writer.gaps)
        digest = hashlib.blake2b(made.stream, digest_size=32)
        digest.update(json.dumps(_layout(made)).encode())
        digest.update(json.dumps(_reloads(made)).encode())
        return Unit(
            digest=digest.digest(),
            memory=memory,
            glanced=glanced,
            modules=(*self._modules(live.names), again),
            refers=live.refers,
            names=live.names,
            labels=live.seen,
            shares=sharing.Parts(objects, pieces),
            uses=live.uses,
            itself=itself,
        )


def _itself(value: object) -> Callable[[], object]:
    """Gives a value as long as it is there; one that Python does not refer to weakly, as a list,
    is kept, so that no other can be taken for it."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _reloads(made: Packed) -> list[tuple[str, int]]:
    """The user's modules that it may name and that were imported again: what has their names is
    something else then."""
    again = module_objects.of_this_process().again
    stream = bytes(made.stream) if again else b""
    return [(name, count) for name, count in again.items() if name.encode() in stream]


def _layout(made: Packed) -> list[tuple[int, int, int]]:
    """Which buffers are of the same memory, and where in it."""
    order: dict[int, int] = {}
    _, slices = merged([buffer.raw() for buffer in made.buffers])
    return [(order.setdefault(n, len(order)), start, size) for n, start, size in slices]
