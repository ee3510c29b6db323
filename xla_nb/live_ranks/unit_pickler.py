"""Pickle values for live ranks, each name on its own: the classes and functions that a value refers
to are written as numbers. A function with a closure is part of what refers to it."""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from xla_nb.pickling import code_facts, module_objects, own_modules, rebuild
from xla_nb.pickling.functions_and_classes import Live, Notebook
from xla_nb.pickling.own_modules import Key
from xla_nb.pickling.pickler import LivePickler
from xla_nb.pickling.rebuild import Call

#: Prefix of internal names in the ranks' namespace.
OURS = "_xla_nb_"


class Numbers:
    """Numbers for classes and functions, each given once for the lifetime of the object. They are
    valid for ranks that import modules as they are when this is created, or later."""

    def __init__(self) -> None:
        self._imported = module_objects.of_this_process().numbers()
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._sentinels: dict[int, tuple[int, object]] = {}
        self._next = 1

    def of(self, definition: type | types.FunctionType) -> int:
        number, ref = self._numbers.get(id(definition), (0, None))
        if ref is None or ref() is not definition:
            former = module_objects.of_this_process().former(definition)
            if former is not None:
                number = self.of(former)
            else:
                number, self._next = self._next, self._next + 1
            self._numbers[id(definition)] = number, weakref.ref(definition)
        return number

    def of_sentinel(self, sentinel: object) -> int:
        """Return the number of an `object()`, which is kept: nothing signals when it goes."""
        number, _ = self._sentinels.setdefault(id(sentinel), (self._next, sentinel))
        self._next += number == self._next
        return number

    def is_behind(self, module: str) -> bool:
        """True if the notebook has re-imported one of the user's own modules since."""
        return module_objects.of_this_process().is_behind(module, self._imported)

    def place(self, definition: Any) -> Key | None:
        """Return where ranks' import holds the definition that gets a number now; None if
        nowhere."""
        module = definition.__module__
        if not isinstance(module, str) or not self.is_behind(module):
            return None
        modules = module_objects.of_this_process()
        while (former := modules.former(definition)) is not None:
            definition = former
        is_imported = modules.is_of(definition, self._imported.get(module, 1))
        return (module, definition.__qualname__) if is_imported else None

    def definitions(self) -> dict[int, Any]:
        """Return the definitions by their numbers, the latest of each."""
        pairs = ((number, ref()) for number, ref in self._numbers.values())
        return {number: definition for number, definition in pairs if definition is not None}

    def ended(self) -> set[int]:
        """Return and forget the numbers of definitions that no longer exist."""
        ended = {key: number for key, (number, ref) in self._numbers.items() if ref() is None}
        for key in ended:
            del self._numbers[key]
        return set(ended.values()).difference(number for number, _ in self._numbers.values())


class LiveUnits(Live):
    """Like `Live`, and collects the same; what it pickles is opened with a table.

    Definitions are written by their numbers, except those that it `sends`, by number, even if
    nothing refers to them. `looks`: nothing is sent. `gone` are names and numbers to be forgotten;
    `sets` is what modules are given, `there` what ranks have of that; `held` has calls by which
    ranks find what they have, by the id of the object here; `imports` are modules that the notebook
    had not imported before; `keeps` gives new names to what ranks have.
    """

    def __init__(self, notebook: Notebook, numbers: Numbers) -> None:
        self.numbers = numbers
        self.looks = False
        self.sends: Mapping[int, Any] = {}
        self.gone: tuple[Iterable[str], Iterable[int]] = (), ()
        self.sets: Mapping[Key, object] = {}
        self.there: Container[Any] = ()
        self.held: Mapping[int, Call] = {}
        self.keeps: Mapping[str, Call] = {}
        super().__init__(notebook)

    @property
    def definitions(self) -> dict[int, Any]:
        return super().definitions | self.numbers.definitions()

    def number(self, definition: Any) -> int:
        return self.numbers.of(definition)

    def part_of(self, sends: Mapping[int, Any], looks: bool) -> LiveUnits:
        """Return a LiveUnits for another pickle of the same notebook, of these definitions."""
        live = LiveUnits(self.notebook, self.numbers)
        live.sends, live.looks = sends, looks
        if looks:  # reduce instances alike whether or not their class is found
            live._made_here = functools.cache(_is_made_here)
        return live

    def _by_number(self, definition: Any, reduce: Callable[[Any], Any]) -> Any:
        number = self.numbers.of(definition)
        self.met.refers[number] = definition
        if number not in self.sends:
            return rebuild.found, (number,)
        make, arguments, *filling = reduce(definition)
        if (place := self.numbers.place(definition)) is not None:
            return rebuild.imported, (place, *arguments), *filling
        return make, arguments, *filling

    def is_behind(self, module: str) -> bool:
        return self.numbers.is_behind(module)

    def is_there(self, key: Key) -> bool:
        return key in self.there

    def reduce(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, enum.Enum) and (self.looks or self.is_behind(kind.__module__)):
            return self._member(obj)
        if not issubclass(kind, type | types.FunctionType) or not _is_own(obj):
            return super().reduce(obj)
        self.met.uses.add(obj)
        if self.is_behind(obj.__module__):
            return self._function(obj) if isinstance(obj, types.FunctionType) else self._class(obj)
        if self.looks:  # the same even if the module is re-imported
            return rebuild.found, (self.numbers.of(obj),)
        return super().reduce(obj)

    def _class(self, cls: type) -> Any:
        return self._by_number(cls, super()._class)

    def _function(self, function: types.FunctionType) -> Any:
        # Shared variables cannot be put into a function that ranks already have.
        if function.__closure__ or isinstance(self._globals_of(function), dict):
            return super()._function(function)
        return self._by_number(function, super()._function)

    def _subclass(self, cls: type) -> None:
        self.met.names.setdefault(cls.__name__, [])  # a unit of its own

    def _carried(self, used: Mapping[str, object]) -> dict[str, object]:
        return {}  # each is a unit of its own

    def _member(self, member: enum.Enum) -> Any:
        # %autoreload gave members of a former class, which keeps them, the current class.
        cls: Any = vars(member).get("__objclass__", type(member))
        number = self.numbers.of(cls)
        if number in self.sends:  # ranks have it once, even if its class is refilled
            make, (_, *arguments), state, *rest = super()._member(member)
            return make, (cls, *arguments), (state, {"__class__": type(member)}), *rest
        if getattr(cls, member.name or "", None) is member:
            return getattr, (cls, member.name)
        return cls, (member.value,)


class UnitPickler(LivePickler):
    """Writes the definitions that are sent, and values with names."""

    _live: LiveUnits

    def write_definitions(self) -> None:
        live = self._live
        names, numbers = sorted(live.gone[0]), sorted(live.gone[1])
        for name, call in live.keeps.items():  # before others are bound
            self.part(name, call)
        for key, value in live.sets.items():  # before others refer to restored originals
            if rebuild.is_in_place(*key, value):
                self._set.add(key)
                setter = own_modules.sent(key, value, live.is_behind(key[0]))
                self.part(".".join(key), setter, late=True)
        if numbers:
            self.part("", Call(rebuild.drop, (numbers,)), late=True)
        if names:
            self.part("", Call(rebuild.unbind, (names,)), late=True)
        for definition in live.sends.values():
            self.part(definition.__qualname__, Call(rebuild.known, (definition,)), late=True)

    def persistent_id(self, obj: Any) -> Any:
        if call := self._live.held.get(id(obj)):
            return [call]
        token = super().persistent_id(obj)
        if token is None and type(obj) is object:  # only its identity counts
            token = [Call(rebuild.sentinel, (self._live.numbers.of_sentinel(obj),))]
        return token

    def in_modules(self) -> Mapping[Key, object]:
        """Return what looking at each unit found."""
        return self._live.sets

    def names_met(self) -> dict[str, object]:
        """Return nothing: each name is a unit of its own."""
        return {}


def _is_own(definition: Any) -> bool:
    """True if one of the user's own modules holds it under its name."""
    if not code_facts.importable(definition):
        return False
    return module_objects.is_own(sys.modules[definition.__module__])


def _is_made_here(cls: type) -> bool:
    """True if a class was defined by the notebook or a module of the user's own."""
    module = sys.modules.get(cls.__module__)
    return code_facts.is_made_here(cls) or (module is not None and module_objects.is_own(module))
