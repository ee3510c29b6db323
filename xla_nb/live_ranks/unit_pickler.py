"""Functions, classes and values for live ranks, each pickled on its own: the definitions that one
refers to are told by their tokens, and names that functions use are no part of them.
"""

from __future__ import annotations

import enum
import io
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from xla_nb.pickling import code_facts, definition_table, own_modules, rebuild
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.own_modules import Key, Uses
from xla_nb.pickling.pickler import LivePickler
from xla_nb.pickling.rebuild import EMPTY, Call

_REFILL = {
    rebuild.fill_function: definition_table.refill_function,
    rebuild.fill_class: definition_table.refill_class,
}
#: How a name begins that is ours, in the ranks' namespace.
OURS = "_xla_nb_"


class Tokens:
    """Numbers for definitions. One that was given is not given again while its object is there."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, object]] = {}
        self._weak: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._next = 1

    def of(self, obj: object) -> int:
        if (held := self._held.get(id(obj))) is not None:
            return held[0]
        token, ref = self._weak.pop(id(obj), (0, None))
        if ref is None or ref() is not obj:
            token, self._next = self._next, self._next + 1
        self._held[id(obj)] = token, obj
        return token

    def only(self, used: Container[int]) -> set[int]:
        """Hold those that are used; of others what is still there keeps its token, and those are
        returned whose token stands for nothing any more."""
        before = {token for token, _ in (*self._held.values(), *self._weak.values())}
        for key, (token, obj) in list(self._held.items()):
            if token not in used:
                del self._held[key]
                if isinstance(obj, type) or (isinstance(obj, types.FunctionType) and _open(obj)):
                    self._weak[key] = token, weakref.ref(obj)
                del obj
        self._weak = {key: pair for key, pair in self._weak.items() if pair[1]() is not None}
        return before - {token for token, _ in (*self._held.values(), *self._weak.values())}


def _open(function: types.FunctionType) -> bool:
    """Whether it has no variables that it shares, which go by tokens of their own."""
    return function.__closure__ is None


class LiveUnits(Live):
    """As `Live`, of which it collects the same; what it pickles is opened with a table.

    `on_ranks` are the tokens that the ranks have; definitions with others are written whole, as
    are `sends`, by their tokens, whether or not anything refers to them. `gone` are names and
    tokens to be forgotten; `sets` is what modules are given. A pickle collects also

    refers   the definitions that it names or has, by token
    written  the tokens of those that it has whole
    names    the names that functions use and classes have in their hints
    """

    def __init__(
        self,
        held: Mapping[str, object],
        labelled: Callable[[types.CodeType], types.CodeType | None],
        newer: Container[str] = (),
        known: Container[str] = (),
        source: Callable[[Uses], None] = lambda uses: None,
        tokens: Tokens | None = None,
    ) -> None:
        self.tokens = tokens or Tokens()
        self.on_ranks: Container[int] = frozenset()
        self.sends: Mapping[int, object] = {}
        self.gone: tuple[Iterable[str], Iterable[int]] = (), ()
        self.sets: Mapping[Key, object] = {}
        super().__init__(held, labelled, newer, known, source=source)

    def begin(self) -> None:
        super().begin()
        self.refers: dict[int, Any] = {}
        self.written: set[int] = set()
        self.names: set[str] = set()
        self._other = {}

    def anew(self) -> LiveUnits:
        made = self.part_of(self.sends, self.on_ranks, self._source)
        made.gone, made.owned, made.sets = self.gone, self.owned, self.sets
        return made

    def part_of(
        self,
        sends: Mapping[int, object],
        on_ranks: Container[int],
        source: Callable[[Uses], None] = lambda uses: None,
    ) -> LiveUnits:
        """For another pickle of the same notebook's, of these definitions."""
        held, labelled, newer = self._held, self._labelled, self._newer
        made = LiveUnits(held, labelled, newer, self._known, source, self.tokens)
        made.sends, made.on_ranks = sends, on_ranks
        return made

    def rest(self) -> LiveUnits:
        """For a pickle of what is neither a definition nor a value with a name."""
        return self.part_of({}, EVERYTHING, self._source)

    def take(self, other: LiveUnits) -> None:
        """Collect what another has collected."""
        self.used |= other.used
        self.wanted |= other.wanted
        self.absent = other.absent | self.absent
        self.named |= other.named
        self.assigned |= other.assigned
        self.outdated |= other.outdated
        self.shell += other.shell
        self.seen |= other.seen
        self.uses.take(other.uses)

    def look_again(self, obj: Any, names: Iterable[str]) -> None:
        """Collect what pickling a definition again would, which uses these names."""
        if isinstance(obj, types.FunctionType):
            for name in names:
                self._uses(name, obj)
            self._bound(obj)
        elif isinstance(obj, type):
            self.used |= {n: self._held[n] for n in names if self.holds(n)}
            self._bound(obj)

    def holds(self, name: str) -> bool:
        """Whether the notebook's value of a name is what ranks are to see."""
        return name in self._held and name not in self._newer

    def is_newer(self, name: str) -> bool:
        """Whether source that ranks execute binds the name."""
        return name in self._newer

    def value(self, name: str) -> object:
        return self._held[name]

    def subclasses(self, cls: type) -> Iterator[type]:
        """Those that the notebook has under their names."""
        found: list[type] = type.__subclasses__(cls)
        return (one for one in found if self._is_current(one))

    # Definitions

    def _is_whole(self, token: int) -> bool:
        return token in self.sends or token not in self.on_ranks

    def _by_token(self, obj: Any, reduce: Callable[[Any], Any]) -> Any:
        token = self.tokens.of(obj)
        self.refers[token] = obj
        if not self._is_whole(token):
            return definition_table.found, (token,)
        self.written.add(token)
        make, args, *rest = reduce(obj)
        if len(rest) == 4:
            rest[3] = _REFILL.get(rest[3], rest[3])
        return definition_table.made, (token, make, *args), *rest

    def _function(self, function: types.FunctionType) -> Any:
        return self._by_token(function, super()._function)

    def _class(self, cls: type) -> Any:
        return self._by_token(cls, super()._class)

    def _cell(self, cell: types.CellType) -> Any:
        return self._by_token(cell, super()._cell)

    def _member(self, member: enum.Enum) -> Any:
        cls = type(member)
        if self._is_whole(self.tokens.of(cls)):
            own = self.tokens.of(member)  # the ranks have it once, also where its class is refilled
            self.refers[own] = member
            make, args, *rest = super()._member(member)
            return definition_table.made, (own, make, *args), *rest
        if cls.__members__.get(member.name or "") is member:
            return getattr, (cls, member.name)
        return cls, (member.value,)

    # Names

    def _globals_of(self, function: types.FunctionType) -> Any:
        place = super()._globals_of(function)
        if isinstance(place, dict):  # of no module: functions share it, whenever they are sent
            token = self.tokens.of(function.__globals__)
            self.refers[token] = function.__globals__
            call = Call(definition_table.found, (token,))
            if self._is_whole(token):
                self.written.add(token)
                call = Call(definition_table.made, (token, dict, place))
            self._other[id(function.__globals__)] = place = call
        return place

    def _globals_sent(
        self, function: types.FunctionType, used: Mapping[str, object]
    ) -> dict[str, Any]:
        if self._globals_of(function) is not self._own:
            return super()._globals_sent(function, used)
        self.names |= used.keys()
        return {}

    def _fill_globals(self, globals_: object, late: Mapping[str, object]) -> None:
        if globals_ is not self._own:
            super()._fill_globals(globals_, late)
        else:
            self.names |= late.keys()

    def _uses(self, name: str, function: types.FunctionType) -> bool:
        self.names.add(name)  # also one that is not there yet
        return super()._uses(name, function)

    def _bound(self, definition: Any) -> Call | None:
        """A name is sent on its own, and so are those of definitions."""
        super()._bound(definition)
        return None

    def _fill_content(self, function: Any, cell: types.CellType, content: object) -> object:
        if self._is_whole(self.tokens.of(cell)):
            return super()._fill_content(function, cell, content)
        return EMPTY


class UnitPickler(LivePickler):
    """Writes the definitions that are sent, and values with names."""

    _live: LiveUnits

    def write_definitions(self) -> None:
        live = self._live
        if not live.asks_for_more:  # it is tried whether a part can be sent
            return
        names, tokens = sorted(live.gone[0]), sorted(live.gone[1])
        for key, value in live.sets.items():  # before others refer to what is back there
            if rebuild.is_in_place(*key, value):
                self._set.add(key)
                self.part(".".join(key), own_modules.call(key, value), late=True)
        if tokens:
            self.part("", Call(definition_table.dropped, (tokens,)), late=True)
        if names:
            self.part(
                "", Call(definition_table.unbound, (Call(rebuild.namespace, ()), names)), late=True
            )
        for obj in live.sends.values():
            if isinstance(obj, types.CellType):
                fill = Call(definition_table.refill_cell, (obj, content := code_facts.content(obj)))
                if code_facts.holds_what_is_ready(content):
                    self.part(_name(obj), fill, late=True)
                else:
                    live.later.append((_name(obj), fill))
            elif not isinstance(obj, dict):
                self.part(_name(obj), Call(rebuild.known, (obj,)), late=True)

    def another(self, file: io.BytesIO, keep: Any, live: Live, whole: bool) -> LivePickler:
        return UnitPickler(file, keep, live, whole)

    def in_modules(self) -> Mapping[Key, object]:
        """What was found by looking at each unit."""
        return self._live.sets if self._live.asks_for_more else {}

    def write_subclass(self, cls: type) -> None:
        self._live.names.add(cls.__name__)  # a unit of its own


class _Everything:
    def __contains__(self, token: object) -> bool:
        return True


EVERYTHING = _Everything()


def _name(definition: object) -> str:
    return str(getattr(definition, "__qualname__", "a variable of a closure"))
