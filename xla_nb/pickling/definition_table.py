"""The classes and functions that live ranks hold from the notebook, by their tokens.

A token denotes a definition for as long as the notebook has it: what is sent later refers to the
same object on ranks, and a definition changed in place is filled again. A pickle names the
functions of this module.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, TypeAlias

from xla_nb.pickling import code_facts, rebuild
from xla_nb.wording import listed

#: For a member of an enum: the token of its class, and its name.
Token: TypeAlias = int | tuple[int, str]
_IMPORTED_SINCE = "the notebook has since imported {}: ranks now use the notebook's values there"


class Definitions(dict[Token, Any]):
    """A table that lives as long as the ranks; `there` are the modules that they had imported
    before the pickle is opened: in others they cannot have set anything yet. `sent` are those that
    pickles have imported, `taken` see `rebuild.Opening`."""

    there: Set[str] = frozenset()

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.taken: dict[int, tuple[tuple[str, str], object]] = {}


def _table() -> Definitions:
    table: Definitions = rebuild.opening.get().table
    return table


def made(token: Token, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return the definition of a token; the first time, create it with this call."""
    table = _table()
    if token not in table:
        table[token] = make(*arguments)
    elif make is rebuild.new_class:
        _renew_class(table[token], *arguments)
    elif make is rebuild.new_function:
        _renew_function(table[token], *arguments)
    return table[token]


def kept(token: int, place: tuple[str, str], make: Any, *arguments: Any) -> Any:
    """Like `made`, but the first time use what a module itself defined under a name."""
    existing, table = rebuild.own(*place), _table()
    if token not in table and not getattr(existing, "__closure__", None):
        kinds = {rebuild.new_class: type, rebuild.new_function: types.FunctionType}
        if isinstance(existing, kinds[make]):
            table[token] = existing
            for name, member in vars(existing).get("_member_map_", {}).items():  # of an enum
                table[token, name] = member
    return made(token, make, *arguments)


def found(token: int) -> Any:
    """Return the definition of a token that exists already."""
    return _table()[token]


def dropped(tokens: Collection[int]) -> None:
    """Drop definitions that the notebook no longer has."""
    table = _table()
    for key in [key for key in table if (key[0] if isinstance(key, tuple) else key) in tokens]:
        rebuild.forget(table.pop(key))


def imported(names: Iterable[str]) -> None:
    """Import modules that the notebook has imported since; ranks may have done so before."""
    table, names = _table(), list(names)
    if quoted := [f"`{name}`" for name in names if name in table.there - table.sent]:
        rebuild.notices.append(lambda: _IMPORTED_SINCE.format(listed(quoted)))
    table.sent.update(names)
    rebuild.import_all(names)


def unbound(globals_: dict[str, Any], names: Iterable[str]) -> None:
    """Remove names that the notebook no longer has."""
    for name in names:
        globals_.pop(name, None)


def _renew_function(
    function: Any, code: types.CodeType, _: object, name: str, __: object, number: int
) -> None:
    rebuild.numbered(function, number)
    function.__code__, function.__name__ = code, name


def _renew_class(
    cls: Any, _: type, name: str, bases: tuple[type, ...], initial: Mapping[str, Any], number: int
) -> None:
    rebuild.numbered(cls, number)
    type.__setattr__(cls, "__name__", name)
    for attribute in ("__qualname__", "__doc__"):
        type.__setattr__(cls, attribute, initial.get(attribute))
    if cls.__bases__ != bases:
        type.__setattr__(cls, "__bases__", bases)


def refill_function(function: types.FunctionType, state: Mapping[str, Any]) -> None:
    """Give a function, new or not, exactly these attributes."""
    for name in vars(function).keys() - state["dict"].keys():
        del vars(function)[name]
    rebuild.fill_function(function, {**state, "dict": _without_placeholders(function, state)})


#: Attributes that every class has, or gets at its creation.
_FIXED = {"__module__", "__slots__", "__doc__", "__slotnames__", "_abc_impl", "__abstractmethods__"}


def refill_class(cls: type, state: Mapping[str, Any]) -> None:
    """Give a class, new or not, exactly these attributes."""
    names = _FIXED | state["dict"].keys()
    for name, part in list(vars(cls).items()):
        if name not in names and not code_facts.is_made_by_type(cls, part):
            type.__delattr__(cls, name)
    rebuild.fill_class(cls, {**state, "dict": _without_placeholders(cls, state)})


def _without_placeholders(definition: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return its new attributes, without placeholders for what ranks have: the pickle may refer to
    that."""
    there = vars(definition)
    parts = state["dict"].items()
    return {n: part for n, part in parts if part is not rebuild.NOT_YET or n not in there}
