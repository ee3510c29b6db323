"""The classes and functions that live ranks hold of the notebook's, by their tokens.

A token stands for one as long as the notebook has it: what is sent later refers to the same one on
the ranks, and one that was changed in place is filled anew. A pickle names the functions here;
an Unpickler has those of its ranks' table for them.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Any, TypeAlias

from xla_nb.pickling import code_facts, rebuild
from xla_nb.wording import listed

#: Of an enum's member the token of its class and its name.
Token: TypeAlias = int | tuple[int, str]


#: What a class or a function holds of its own, of which one can tell whether it has changed.
_STATE = {*code_facts.PLAIN, *code_facts.CONTAINERS, tuple, frozenset} - {types.CodeType}
_OWN = re.compile(r"__|_\w+_$")  # Python's and enum's
_LOST = "ranks have {} as in the notebook, and no longer as {} there"


class Definitions:
    """A table that lives as long as the ranks do."""

    def __init__(self) -> None:
        self._made: dict[Token, Any] = {}
        self._before: list[tuple[Any, dict[str, Any]]] = []
        self._there: Set[str] = frozenset()

    def begin(self) -> None:
        """Something is to be opened: modules that are imported for that are as they are made."""
        self._there = sys.modules.keys() | ()

    def take_lost(self) -> Iterator[str]:
        """Sentences on what ranks had set in definitions and the notebook has sent anew since the
        last time."""
        while self._before:
            definition, before = self._before.pop(0)
            now, name = _state(definition), _name(definition)
            if lost := [f"`{name}.{key}`" for key in before if _differ(before[key], now.get(key))]:
                was = "it was" if len(lost) == 1 else "they were"
                yield _LOST.format(listed(lost, most=5), was)

    def __len__(self) -> int:
        return len(self._made)

    def function(self, name: str) -> Callable[..., Any]:
        """What a pickle of this table calls by a name of this module's."""
        own: dict[str, Callable[..., Any]] = {
            made.__name__: self._make,
            kept.__name__: self._keep,
            found.__name__: self._made.__getitem__,
            dropped.__name__: self._drop,
            imported.__name__: self._import,
            refill_class.__name__: functools.partial(self._refill, refill_class),
            refill_function.__name__: functools.partial(self._refill, refill_function),
        }
        return own[name] if name in own else globals()[name]

    def _make(self, token: Token, make: Callable[..., Any], *arguments: Any) -> Any:
        if token not in self._made:
            self._made[token] = make(*arguments)
        elif make is rebuild.new_class:
            _renew_class(self._made[token], *arguments)
        elif make is rebuild.new_function:
            _renew_function(self._made[token], *arguments)
        return self._made[token]

    def _keep(self, token: int, place: tuple[str, str], make: Any, *arguments: Any) -> Any:
        there = rebuild.own(*place)
        if token not in self._made and not getattr(there, "__closure__", None):
            kinds = {rebuild.new_class: type, rebuild.new_function: types.FunctionType}
            if isinstance(there, kinds[make]):
                self._made[token] = there
                for name, member in vars(there).get("_member_map_", {}).items():  # of an enum
                    self._made[token, name] = member
        return self._make(token, make, *arguments)

    def _refill(self, refill: Callable[..., None], definition: Any, state: Any) -> None:
        self._before.append((definition, _state(definition)))
        refill(definition, state)

    def _import(self, names: Iterable[str]) -> None:
        held = [sys.modules[name] for name in names if name in self._there]
        self._before += [(module, _state(module)) for module in held]
        rebuild.import_all(names)

    def _drop(self, tokens: Collection[int]) -> None:
        for token in tokens:
            self._made.pop(token, None)
        members = [one for one in self._made if isinstance(one, tuple) and one[0] in tokens]
        for one in members:
            del self._made[one]


def made(token: Token, make: Callable[..., Any], *arguments: Any) -> Any:
    """The definition of a token; the first time what the call makes."""
    raise LookupError("this pickle is for live ranks")


def kept(token: Token, place: tuple[str, str], make: Callable[..., Any], *arguments: Any) -> Any:
    """As `made`; the first time what a module itself has made under a name."""
    raise LookupError("this pickle is for live ranks")


def found(token: int) -> Any:
    """The definition of a token, which is there already."""
    raise LookupError("this pickle is for live ranks")


def dropped(tokens: Collection[int]) -> None:
    """No longer hold what the notebook has no more."""
    raise LookupError("this pickle is for live ranks")


def imported(names: Iterable[str]) -> None:
    """Import these modules, which the notebook has by now; ranks may have done so before."""
    raise LookupError("this pickle is for live ranks")


def unbound(globals_: dict[str, Any], names: Iterable[str]) -> None:
    """Take away names that the notebook has no more."""
    for name in names:
        globals_.pop(name, None)


def _name(definition: Any) -> str:
    return str(getattr(definition, "__qualname__", definition.__name__))


def _state(definition: Any) -> dict[str, Any]:
    """What ranks may have set in a class, a function or a module; copies, as it may be refilled."""
    defaults = getattr(definition, "__defaults__", None) or ()
    held = {name: one for name, one in vars(definition).items() if not _OWN.match(name)}
    held |= {f"defaults[{place}]": one for place, one in enumerate(defaults)}
    return {name: copy.copy(one) for name, one in held.items() if type(one) in _STATE}


def _differ(one: Any, other: Any) -> bool:
    try:
        return type(one) is not type(other) or one != other
    except Exception:  # by what is in a container
        return True


def _renew_function(function: Any, code: types.CodeType, _: object, name: str, *__: object) -> None:
    function.__code__, function.__name__ = code, name


def _renew_class(
    cls: Any, _: type, name: str, bases: tuple[type, ...], given: Mapping[str, Any]
) -> None:
    type.__setattr__(cls, "__name__", name)
    type.__setattr__(cls, "__qualname__", given["__qualname__"])
    if cls.__bases__ != bases:
        type.__setattr__(cls, "__bases__", bases)


def refill_function(function: types.FunctionType, state: Mapping[str, Any]) -> None:
    """Let a function, new or not, have these attributes alone."""
    for name in vars(function).keys() - state["dict"].keys():
        del vars(function)[name]
    rebuild.fill_function(function, state)


#: What every class has, or is given where it is made.
_GIVEN = {"__module__", "__slots__", "__doc__", "__slotnames__", "_abc_impl", "__abstractmethods__"}


def refill_class(cls: type, state: Mapping[str, Any]) -> None:
    """Let a class, new or not, have these attributes alone."""
    kept = _GIVEN | state["dict"].keys()
    for name, part in list(vars(cls).items()):
        if name not in kept and not code_facts.is_made_by_type(cls, part):
            type.__delattr__(cls, name)
    rebuild.fill_class(cls, state)
