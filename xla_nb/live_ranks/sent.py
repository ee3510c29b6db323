"""Track what live ranks have from the notebook, and what has changed since they got it.

A *unit* is a name with its value, or a definition. Each is pickled on its own, to see whether it
differs from what was sent. Units that share mutable state are sent together, as one graph of
objects, so that they share it on the ranks as well.
"""

from __future__ import annotations

import collections
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from xla_nb.live_ranks import sharing
from xla_nb.live_ranks.array_memory import copies_of
from xla_nb.live_ranks.looking import Key, Look, Unit
from xla_nb.live_ranks.unit_pickler import OURS, LiveUnits, Numbers, UnitPickler
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.pickling import (
    code_facts,
    module_objects,
    own_modules,
    rebuild,
    refusals,
)
from xla_nb.pickling.parcel import Packed, Parcel
from xla_nb.pickling.pickler import packed
from xla_nb.pickling.rebuild import Call
from xla_nb.wording import listed

#: Prefix of ranks' names for values that the notebook has renamed or no longer names.
_FORMER = f"{OURS}former_"
_NOT_KEPT = (
    "replaced the ranks' former `{}`, whose data the notebook still uses, with the notebook's"
)


@dataclass(frozen=True)
class SentParcel(Packed):
    """A parcel that keeps the memory in the file it was written to, which is compared with the
    notebook's."""

    copies: list[memoryview] = field(default_factory=list)

    def write(self, fd: int, share: bool = False) -> int:
        size = super().write(fd, share)
        self.copies[:] = Parcel(fd).buffers if self.buffers else []
        return size


class Sent:
    """Records what one group of live ranks has been sent: `pack` returns what it lacks, and once
    ranks have received that, call `confirm`. After a restart of the ranks, call `forget`.

    made   the names that ranks have bound, each with the code of the statements that bound it, and
           the names in that code which these do not bind
    notes  sentences for the user about what `pack` has packed
    reads  the names read by the functions that the cell needs
    """

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.notes: list[str] = []
        self._awaited: set[str] = set()
        # Set in modules, even on ranks that may have lost everything else.
        self._set_keys: set[own_modules.Key] = set()
        self._last_set_keys: set[own_modules.Key] = set()
        self.forget()

    def forget(self) -> None:
        """Forget what was sent: the ranks have nothing, or it is unknown what they have, above all
        of what was sent last."""
        self._last_set_keys = set()
        self._units: dict[Key, Unit] = {}
        self._links: Mapping[Key, sharing.Links] = {}  # between these
        self._imports = module_objects.of_this_process().numbers()
        self._imported: set[str] = set()
        self._dropped: set[int] = set()
        self.reads: Set[str] = frozenset()
        self._staged: Callable[[], None] | None = None  # to call once ranks have what was packed
        self._is_sure = True
        self._former_names: list[str] = []  # original names, by number
        self._deleted: set[str] = set()
        self._told: Set[str] = frozenset()
        self.made: dict[str, dict[types.CodeType, Set[str]]] = {}

    def awaits(self, names: Iterable[str]) -> None:
        """Record names read by the ranks' own functions that the notebook does not have yet."""
        self._awaited.update(names)

    def lacks_again(self, names: Iterable[str]) -> None:
        """Record names that ranks have deleted."""
        self._deleted.update(names)

    def pack(
        self,
        roots: Mapping[str, object],
        live: LiveUnits,
        remote: Collection[str],
    ) -> Packed:
        """Return what ranks lack of these names and of those sent before, except the `remote` ones.

        `live` collects as it does when everything is sent. Raises what pickling raises.
        """
        modules = module_objects.of_this_process()
        modules.look()
        # After a failed launch it is unknown whether ranks opened what it sent.
        self._is_sure, self._staged, self.notes = self._staged is None, None, []
        if not self._is_sure:
            self._units = {key: unit for key, unit in self._units.items() if not _is_former(key)}
        self._dropped |= self.numbers.ended()
        reloaded, numbers = modules.imported_since(self._imports), modules.numbers()
        for key, unit in list(self._units.items()):  # ranks may have set constants there
            if isinstance(key, tuple) and key[0] in reloaded and unit.itself() is None:
                del self._units[key]
        deleted, self._deleted = self._deleted, set()
        # Arguments are new for each call: ranks' changes to the last ones do not count.
        for name in (ARGUMENTS, *deleted, *remote):
            self._units.pop(name, None)
        self._set_keys |= self._last_set_keys
        live.imported, self._last_set_keys = self._imported, set()
        look = Look(self._units, live)
        roots = {name: value for name, value in roots.items() if name not in remote}
        units = look.at(roots, self._known(live, remote))
        kept = self._find_former(units, look, live.notebook.values)
        self.reads = look.reads
        self._note_lost(look)
        shared = sharing.links({key: unit.shares for key, unit in units.items()})
        sent, calls, holders = self._to_send(units, shared, look)
        gone = {key for key in self._units if type(key) is str and key not in units}
        gone = {name for name in gone if not (name in remote or name in live.notebook.newer)}
        numbers_sent = sorted(key for key in sent if type(key) is int)
        final = live.part_of({number: look.objects[number] for number in numbers_sent}, False)
        final.gone = gone, self._dropped
        final.sets = {key: look.objects[key] for key in sent if isinstance(key, tuple)}
        final.there = units.keys() - sent
        final.held, final.imports, final.keeps = calls, live.imports - self._imported, kept
        values = {key: look.objects[key] for key in _in_order(sent, look)}
        plain = packed(values, final, UnitPickler)
        live.notes |= final.notes
        live.notes, self._told = live.notes - self._told, self._told | live.notes
        parcel = SentParcel(plain.stream, plain.buffers, plain.writer, plain.imports)
        set_keys = {key for key, obj in final.sets.items() if not isinstance(obj, own_modules.Told)}
        imports = live.imports

        def record() -> None:
            # The parcel may refer to values of the holders on ranks.
            copies = copies_of(parcel, parcel.copies, (unit.memory for unit in holders))
            parcel.copies.clear()
            for key in sent:
                units[key].memory.keep(copies)
            self._units, self._links, self._last_set_keys = units, shared, set_keys
            self._awaited = (self._awaited | gone).difference(units)
            self._dropped.clear()
            self._imported |= imports
            self._imports = numbers

        self._staged = record
        return parcel

    def confirm(self) -> None:
        """Record that the ranks have received what was packed last."""
        record, self._staged = self._staged, None
        if record is not None:
            record()

    def _known(self, live: LiveUnits, remote: Collection[str]) -> dict[Key, object]:
        """Return the notebook's current values of names that ranks have values of, or wait for,
        also in its own modules."""
        known = {key for key in self._units if type(key) is str} | self._awaited
        values, newer = live.notebook.values, live.notebook.newer
        objects: dict[Key, object] = {
            n: values[n] for n in sorted(known.difference(remote)) if n in values and n not in newer
        }
        for key, unit in self._units.items():
            if _is_former(key) and _is_held(unit):
                objects[key] = unit.itself()
        return objects | own_modules.known(self._set_keys, self._imported)

    def _find_former(
        self, units: dict[Key, Unit], look: Look, values: Mapping[str, object]
    ) -> dict[str, Call]:
        """Return how ranks find values to be kept under internal names: former values, unchanged
        since they were sent, that the notebook still holds, or parts of them, after their names
        were deleted or rebound."""
        kept: dict[str, Call] = {}
        previous_units = self._units.items() if self._is_sure else ()
        for key, previous in [(k, unit) for k, unit in previous_units if not isinstance(k, int)]:
            current = values.get(key) if isinstance(key, str) else code_facts.value_of(*key)
            if any(previous.itself() is other for other in (None, current, look.objects.get(key))):
                continue
            is_held, value = _is_held(previous), previous.itself()
            if any(unit.itself() is value for n, unit in self._units.items() if _is_former(n)):
                continue
            if not is_held and _objects(units.values()).isdisjoint(previous.shares.objects):
                continue
            unit = look.of_former(key, value)
            if unit is None or self._is_changed(key, unit):
                continue
            self._former_names.append(key if isinstance(key, str) else ".".join(key))
            name = f"{_FORMER}{len(self._former_names)}"
            if (unit := look.of_former(name, value)) is not None:
                self._units[name] = replace(previous, digest=unit.digest)
                units[name], look.objects[name] = unit, value
                kept[name] = _call_for(key, value)
        return kept

    def _note_lost(self, look: Look) -> None:
        for name, problem in look.lost.items():
            if name in self._units and not _is_former(name):
                reason = refusals.fault_in_words(problem)
                self.notes.append(
                    f"removed `{name}` from the ranks: it can no longer be sent ({reason})"
                )

    def _to_send(
        self, units: dict[Key, Unit], shared: Mapping[Key, sharing.Links], look: Look
    ) -> tuple[set[Key], Mapping[int, Call], list[Unit]]:
        """Return the units that have changed, with those that share something with them; the others
        stay as they were when they were sent. If ranks can find what is shared in what they have,
        by these calls and in these units, that stays too."""
        changed = {key for key, unit in units.items() if self._is_changed(key, unit)}
        # A unit keeps what it shared with a changed one, under any name.
        steady = {key for key in units.keys() - changed if not _is_former(key)}
        changed |= {
            key
            for key in steady
            if _links_to(self._links.get(key, ()), steady) != _links_to(shared.get(key, ()), steady)
        }
        sent, calls, holders = self._find_shared(changed, shared, units, look)
        self._note_replaced(changed, sent, shared, units, look)
        units |= {key: self._units[key] for key in units.keys() - sent}
        return sent, calls, holders

    def _find_shared(
        self,
        changed: set[Key],
        shared: Mapping[Key, sharing.Links],
        units: Mapping[Key, Unit],
        look: Look,
    ) -> tuple[set[Key], Mapping[int, Call], list[Unit]]:
        """Return what is sent: what has changed, and what shares with that anything other than
        values that ranks have, and parts of them in new values; and how ranks find those, by id.
        What ranks had before is sent with all its contents: parts that they have trained do not fit
        parts from the notebook, except those of an optimizer, which belong to a model. Arguments
        are always the notebook's."""
        sent = sharing.together(changed, shared)
        if not changed or ARGUMENTS in changed or not self._is_sure:
            return sent, {}, []
        others, sent = sent - changed, set(changed)
        while others:
            new = {k for k in sent if self._is_new(k, units[k]) or _is_optimizer(look.objects[k])}
            old = _objects(units[key] for key in sent - new)
            parts = _objects(units[key] for key in new) - old
            calls = _calls_for(others, look.objects, parts & _objects(units[key] for key in others))
            shares = {key: units[key].shares for key in others}
            links = sharing.links({**shares, ARGUMENTS: look.shares_but_for(sent, calls)})
            linked = {key for _, key, _ in links.get(ARGUMENTS, ())}
            if not linked:
                return sent, calls, [self._units[key] for key in others]
            for key in filter(_is_former, linked):
                former_name = self._former_names[int(str(key).removeprefix(_FORMER)) - 1]
                self.notes.append(_NOT_KEPT.format(former_name))
            sent |= linked & others
            others -= linked
        return sent, {}, []

    def _is_new(self, key: Key, unit: Unit) -> bool:
        """True if ranks have another object or none: the name is new or was rebound."""
        previous = self._units.get(key)
        return previous is None or previous.itself() is not unit.itself()

    def _is_changed(self, key: Key, unit: Unit) -> bool:
        previous = self._units.get(key)
        if previous is None or previous.digest != unit.digest:
            return True
        if self._is_new(key, unit):  # ranks' changes to theirs are lost
            return True
        if unit.memory is previous.memory:  # not pickled again
            return False
        return not previous.memory.is_as_sent(unit.memory)

    def _note_replaced(
        self,
        changed: Set[Key],
        sent: Set[Key],
        shared: Mapping[Key, sharing.Links],
        units: Mapping[Key, Unit],
        look: Look,
    ) -> None:
        """Add notes on values that ranks had and that are the notebook's again: ranks' changes to
        them are lost, except in parts with a name of their own that is not sent. Rebound names are
        not noted, since the user knows of them."""
        todo = {key for key in sent if self._is_restored(key, units[key])}
        definitions = {key: look.objects[key] for key in changed if isinstance(key, int)}
        todo |= {key for key, obj in definitions.items() if self._is_refilled(key, obj)}
        unsent = units.keys() - sent
        named = {key for key in unsent if isinstance(key, str) and not key.startswith(OURS)}
        while todo:
            group = sharing.together({min(todo, key=repr)}, shared)
            replaced, causes, todo = group & todo, group & changed, todo - group
            new = causes - self._units.keys() - replaced
            if ARGUMENTS in causes:
                reason = "shared with the arguments"
            elif new:
                reason = f"shared with the new {_listed(new, look)}"
            else:
                reason = f"{_listed(causes, look)} changed there"
            note = f"replaced the ranks' {_listed(replaced, look)} with the notebook's"
            objects = _objects(units[key] for key in replaced)
            if excepted := {key for key in named if id(look.objects[key]) in objects}:
                note += f", except {_listed(excepted, look)}"
            self.notes.append(f"{note}: {reason}")

    def _is_refilled(self, key: int, definition: Any) -> bool:
        """True if ranks had this definition, if only by importing its module, and may have set
        something in it."""
        if key not in self._units and self.numbers.place(definition) is None:
            return False
        return isinstance(definition, type) or bool(vars(definition))

    def _is_restored(self, key: Key, unit: Unit) -> bool:
        """True if ranks had this very value and it is mutable."""
        previous, value = self._units.get(key), unit.itself()
        if previous is None or previous.itself() is not value:
            return False
        if isinstance(key, tuple):  # values that share nothing with the module's content
            return not (code_facts.is_ready(value) or isinstance(value, code_facts.FUNCTIONS))
        can_change = unit.shares.objects or unit.shares.memory
        return bool(can_change) and not (isinstance(key, str) and key.startswith(OURS))


def _calls_for(keys: Set[Key], objects: Mapping[Key, Any], parts: Set[int]) -> dict[int, Call]:
    """Return how ranks find the values of these units, and these parts of those with names, by
    id."""
    calls = dict[int, Call]()
    places: dict[int, list[rebuild.Place]] = collections.defaultdict(list)
    names = sorted(key for key in keys if isinstance(key, str))
    for name in names if parts else ():
        for part, way in sharing.ways(objects[name], parts):
            places[id(part)].append((name, way))
            calls[id(part)] = _call_for_part(part, *places[id(part)])
    named = (key for key in keys if not isinstance(key, int))
    return calls | {id(objects[key]): _call_for(key, objects[key]) for key in named}


def _call_for(key: str | own_modules.Key, value: object) -> Call:
    """Return how ranks find their value of a name or of a module's attribute."""
    if isinstance(key, tuple):
        return Call(rebuild.held_by_module, (*key, _class_name(value)))
    return _call_for_part(value, (key, ()))


def _is_former(key: Key) -> bool:
    return isinstance(key, str) and key.startswith(_FORMER)


def _is_held(unit: Unit) -> bool:
    """True if the notebook still holds a value somewhere: more than its unit refers to it."""
    value = unit.itself()
    known_references = sum(obj is value for obj in unit.glanced or ())
    known_references += not isinstance(unit.itself, weakref.ref)
    return value is not None and sys.getrefcount(value) - 2 > known_references


def _is_optimizer(value: object) -> bool:
    """True for an optimizer or a learning rate scheduler."""
    optim, rates = map(sys.modules.get, ("torch.optim", "torch.optim.lr_scheduler"))
    kinds = getattr(optim, "Optimizer", ()), getattr(rates, "LRScheduler", ())
    return isinstance(value, kinds)


def _call_for_part(value: object, *places: rebuild.Place) -> Call:
    return Call(rebuild.part_held, (places, _class_name(value)))


def _class_name(value: object) -> str:
    """Return its class's name if ranks must have the same class; a function may be replaced by a
    callable of another."""
    return "" if hasattr(type(value), "__get__") else type(value).__name__


def _objects(units: Iterable[Unit]) -> set[int]:
    return set[int]().union(*(unit.shares.objects for unit in units))


def _links_to(links: Iterable[tuple[Any, Any, Any]], units: Set[Key]) -> sharing.Links:
    return frozenset(link for link in links if link[1] in units)


def _names(keys: Iterable[Any], look: Look) -> list[str]:
    """Return what units are called: a name and the definition that it holds are called the same."""
    names = (look.objects[key].__qualname__ if isinstance(key, int) else key for key in keys)
    return sorted({name if isinstance(name, str) else ".".join(name) for name in names})


def _listed(keys: Iterable[Any], look: Look) -> str:
    return listed([f"`{name}`" for name in _names(keys, look)])


def _in_order(sent: Set[Key], look: Look) -> list[str]:
    """Return names, first those whose values others may read while they are created."""
    names = [key for key in look.objects if key in sent and isinstance(key, str)]
    return sorted(names, key=lambda name: not code_facts.holds_what_is_ready(look.objects[name]))
