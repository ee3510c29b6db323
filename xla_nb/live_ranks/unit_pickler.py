"""Pickle values for live ranks, each name on its own: the classes and functions that a value refers
to are written as tokens. A function with a closure is part of what refers to it."""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from xla_nb.pickling import code_facts, definition_table, module_objects, own_modules, rebuild
from xla_nb.pickling.functions_and_classes import NO_USES, Live, Notebook
from xla_nb.pickling.own_modules import Key, Uses
from xla_nb.pickling.pickler import LivePickler
from xla_nb.pickling.rebuild import Call

#: Prefix of internal names in the ranks' namespace.
OURS = "_xla_nb_"


class Tokens:
    """Numbers for classes and functions, each given once for the lifetime of the object. They are
    valid for ranks that import modules as they are when this is created, or later."""

    def __init__(self) -> None:
        self._imported = module_objects.of_this_process().numbers()
        self._tokens: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._sentinels: dict[int, tuple[int, object]] = {}
        self._next = 1

    def of(self, definition: type | types.FunctionType) -> int:
        token, ref = self._tokens.get(id(definition), (0, None))
        if ref is None or ref() is not definition:
            former = module_objects.of_this_process().former(definition)
            if former is not None:
                token = self.of(former)
            else:
                token, self._next = self._next, self._next + 1
            self._tokens[id(definition)] = token, weakref.ref(definition)
        return token

    def of_sentinel(self, sentinel: object) -> int:
        """Return the token of an `object()`, which is kept: nothing signals when it goes."""
        token, _ = self._sentinels.setdefault(id(sentinel), (self._next, sentinel))
        self._next += token == self._next
        return token

    def is_behind(self, module: str) -> bool:
        """True if the notebook has re-imported one of the user's own modules since."""
        return module_objects.of_this_process().is_behind(module, self._imported)

    def place(self, definition: Any) -> Key | None:
        """Return where ranks' import holds the definition that gets a token now; None if
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
        """Return the definitions by their numbers in results."""
        pairs = ((key, ref()) for key, (_, ref) in self._tokens.items())
        return {key: definition for key, definition in pairs if definition is not None}

    def ended(self) -> set[int]:
        """Return and forget the tokens of definitions that no longer exist."""
        ended = {key: token for key, (token, ref) in self._tokens.items() if ref() is None}
        for key in ended:
            del self._tokens[key]
        return set(ended.values())


class LiveUnits(Live):
    """Like `Live`, and collects the same; what it pickles is opened with a table.

    `on_ranks` are the tokens that the ranks have (None: all); definitions with others are written
    whole, as are `sends`, by their tokens, even if nothing refers to them. `gone` are names and
    tokens to be forgotten; `sets` is what modules are given, `there` what ranks have of that;
    `held` has calls by which ranks find what they have, by the id of the object here; `imports` are
    modules that the notebook had not imported before; `keeps` gives new names to what ranks have. A
    pickle also collects

    refers   the classes and functions that it names or contains, by token
    written  the tokens of those that it contains whole
    """

    def __init__(
        self,
        notebook: Notebook,
        tokens: Tokens,
        uses: Uses = NO_USES,
    ) -> None:
        self.tokens = tokens
        self.on_ranks: Container[int] | None = frozenset()
        self.sends: Mapping[int, Any] = {}
        self.gone: tuple[Iterable[str], Iterable[int]] = (), ()
        self.sets: Mapping[Key, object] = {}
        self.there: Container[Any] = ()
        self.held: Mapping[int, Call] = {}
        self.keeps: Mapping[str, Call] = {}
        self.refers: dict[int, Any] = {}
        self.written: set[int] = set()
        super().__init__(notebook, uses=uses)

    @property
    def definitions(self) -> dict[int, Any]:
        return {**super().definitions, **self.tokens.definitions()}

    def collected(self) -> dict[str, Any]:
        additional = {"refers": dict(self.refers), "written": set(self.written)}
        return {**super().collected(), **additional}

    def part_of(self, sends: Mapping[int, Any], on_ranks: Container[int] | None) -> LiveUnits:
        """Return a LiveUnits for another pickle of the same notebook, of these definitions."""
        live = LiveUnits(self.notebook, self.tokens)
        live.sends, live.on_ranks = sends, on_ranks
        if on_ranks is None:  # reduce instances alike whether or not their class is found
            live._made_here = functools.cache(_is_made_here)
        return live

    def _is_whole(self, token: int) -> bool:
        return token in self.sends or (self.on_ranks is not None and token not in self.on_ranks)

    def _by_token(self, definition: Any, reduce: Callable[[Any], Any], refill: object) -> Any:
        token = self.tokens.of(definition)
        self.refers[token] = definition
        if not self._is_whole(token):
            return definition_table.found, (token,)
        self.written.add(token)
        make, arguments, state, *_ = reduce(definition)
        place = self.tokens.place(definition)
        if place is not None:
            kept_arguments = token, place, make, *arguments
            return definition_table.kept, kept_arguments, state, None, None, refill
        return definition_table.made, (token, make, *arguments), state, None, None, refill

    def is_behind(self, module: str) -> bool:
        return self.tokens.is_behind(module)

    def is_there(self, key: Key) -> bool:
        return key in self.there

    def reduce(self, obj: Any) -> Any:
        kind = type(obj)
        is_same = self.on_ranks is None  # even if the module is re-imported
        if issubclass(kind, enum.Enum) and (is_same or self.is_behind(kind.__module__)):
            return self._member(obj)
        if not issubclass(kind, type | types.FunctionType) or not _is_own(obj):
            return super().reduce(obj)
        self.met.uses.add(obj)
        if self.is_behind(obj.__module__):
            return self._function(obj) if isinstance(obj, types.FunctionType) else self._class(obj)
        if is_same:
            return definition_table.found, (self.tokens.of(obj),)
        return super().reduce(obj)

    def _class(self, cls: type) -> Any:
        return self._by_token(cls, super()._class, definition_table.refill_class)

    def _function(self, function: types.FunctionType) -> Any:
        # Shared variables cannot be put into a function that ranks already have.
        if function.__closure__ or isinstance(self._globals_of(function), dict):
            return super()._function(function)
        return self._by_token(function, super()._function, definition_table.refill_function)

    def _subclass(self, cls: type) -> None:
        self.met.names.setdefault(cls.__name__, [])  # a unit of its own

    def _carried(self, used: Mapping[str, object]) -> dict[str, object]:
        return {}  # each is a unit of its own

    def _member(self, member: enum.Enum) -> Any:
        # %autoreload gave members of a former class, which keeps them, the current class.
        cls: Any = vars(member).get("__objclass__", type(member))
        token = self.tokens.of(cls)
        if self._is_whole(token):  # ranks have it once, even if its class is refilled
            make, (kind, _, args), state, *rest = super()._member(member)
            arguments = (token, member.name), make, kind, cls, args
            return definition_table.made, arguments, (state, {"__class__": type(member)}), *rest
        if getattr(cls, member.name or "", None) is member:
            return getattr, (cls, member.name)
        return cls, (member.value,)


class UnitPickler(LivePickler):
    """Writes the definitions that are sent, and values with names."""

    _live: LiveUnits

    def write_definitions(self) -> None:
        live = self._live
        names, tokens = sorted(live.gone[0]), sorted(live.gone[1])
        for name, call in live.keeps.items():  # before others are bound
            self.part(name, call)
        for key, value in live.sets.items():  # before others refer to restored originals
            if rebuild.is_in_place(*key, value):
                self._set.add(key)
                setter = own_modules.sent(key, value, live.is_behind(key[0]))
                self.part(".".join(key), setter, late=True)
        if tokens:
            self.part("", Call(definition_table.dropped, (tokens,)), late=True)
        if names:
            unbound = Call(definition_table.unbound, (Call(rebuild.namespace, ()), names))
            self.part("", unbound, late=True)
        for definition in live.sends.values():
            self.part(definition.__qualname__, Call(rebuild.known, (definition,)), late=True)

    def persistent_id(self, obj: Any) -> Any:
        if call := self._live.held.get(id(obj)):
            return [call]
        token = super().persistent_id(obj)
        if token is None and type(obj) is object:  # only its identity counts
            token = [Call(definition_table.made, (self._live.tokens.of_sentinel(obj), object))]
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
