"""Keys that say themselves how they are hashed and compared, in containers to which they lead.

Where a pickle is opened, an object that is a key of what it leads to is hashed before it has its
attributes. Such containers are made empty, and filled as soon as all of the objects that lead to
each other are complete: first in the pickle, so that what else is opened finds them filled.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from xla_nb.protocol import parts, remake
from xla_nb.protocol.cycles import Graph, groups
from xla_nb.protocol.refusals import Unshippable
from xla_nb.protocol.remake import Call

_COMPOSITE = (tuple, frozenset, weakref.ref)  # whose hash is that of others
_PLAIN = {str, int, bytes}
#: Weak containers, each with how a part is put into it.
_WEAK: dict[type, Any] = {
    weakref.WeakSet: weakref.WeakSet.add,
    weakref.WeakKeyDictionary: weakref.WeakKeyDictionary.__setitem__,
}
#: Packages whose methods for pickling put a state into an object without looking into it.
_ONLY_PUT = {*sys.stdlib_module_names, "attr", "numpy", "torch"} - {"__main__"}


class Keys:
    """Of one parcel, which may be pickled several times.

    kinds   classes that say in Python how their instances are hashed or compared
    late    containers that are made empty, by id
    """

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.late: dict[int, Any] = {}
        self._groups: list[list[Any]] = []
        self._told: set[int] = set()
        self._met: set[type] = set()

    def note(self, kind: type) -> None:
        """An instance of this class is about to be pickled."""
        if kind not in self._met:
            self._met.add(kind)
            if _says_how_it_is_hashed(kind):
                self.kinds.add(kind)

    def among(self, objects: Iterable[object]) -> dict[int, Any]:
        """The containers with such keys, by id."""
        found: dict[int, Any] = {}
        for one in objects:
            kind = type(one)
            if kind is dict and _PLAIN.issuperset(map(type, one)):  # type: ignore[call-overload]
                continue  # the attributes of one of a million
            if _is_hashed(kind) and self._has(one):
                found[id(one)] = one
        return found

    def settle(self, found: dict[int, Any], graph: Graph) -> bool:
        """Find out to which of these containers their keys lead: whether others are told than
        before.

        Raises Unshippable where what a class says of pickling would see one empty, or makes one.
        """

        def leads_to(obj: Any) -> Iterable[object]:
            base = None if id(obj) not in found else _base(obj)
            if base is None or type(obj) is base is dict or type(obj) is set:
                return graph.parts(obj)
            held = [part for column in _content(base, obj)[1] for part in column]
            return [*held, *graph.reduced(obj)[2:3]]

        self._groups, made_anew = [], []
        for group in groups(found.values(), leads_to):
            inside = {id(one) for one in group}
            cyclic = [one for one in self.among(group).values() if self._has(one, inside)]
            made_anew += [one for one in cyclic if id(one) not in found]
            if known := [one for one in cyclic if id(one) in found]:
                self._groups.append(known)
            for one in group if cyclic else ():
                _refuse_to_open(one, graph.reduced(one), cyclic[0])
        before = self._told
        each = [one for group in self._groups for one in group]
        self._told = {id(one) for one in each}
        self.late = {id(one): one for one in each if _base(one) is not None}
        if before == self._told and made_anew:
            raise _unshippable(type(made_anew[0]), "a class's own way of pickling makes it")
        return before != self._told

    def bare(self) -> Iterator[tuple[Any, Call]]:
        """Those that a pickler does not ask how to reduce, each with what makes an empty one."""
        for one in self.late.values():
            if type(one) in (dict, set):
                yield one, Call(type(one), ())

    def reduce(self, obj: Any) -> Any:
        """A late container as a reducer's value: empty, with its own attributes."""
        base = _base(obj) if id(obj) in self.late else None
        if base is None:
            return NotImplemented
        return (base, ()) if base in _WEAK else parts.reduced_container(obj, base, empty=True)

    def calls(self) -> Iterator[tuple[str, Call]]:
        """What fills them, each with a name for it: what others lead to first."""
        for group in self._groups:
            rows = []
            for one in group:
                base = _base(one)
                content = (None, [keys_of(one)]) if base is None else _content(base, one)
                rows.append((one, base, *content))
            told = next(self._own_kinds(group[0]), type(group[0])).__name__
            yield told, Call(remake.fill_by_hash, (rows,))

    def _has(self, container: Any, inside: set[int] | None = None) -> bool:
        """Whether it has such keys; those that are `inside` alone count, if that is given."""
        keys = keys_of(container)
        kinds = set(map(type, keys))
        if kinds <= _PLAIN:
            return False
        if self.kinds.isdisjoint(kinds) and not any(issubclass(k, _COMPOSITE) for k in kinds):
            return False
        return any(
            (inside is None or id(key) in inside) and next(self._own_kinds([key]), None) is not None
            for key in keys
        )

    def _own_kinds(self, keys: Iterable[Any]) -> Iterator[type]:
        """The `kinds` that are hashed where these are."""
        for key in keys:
            if type(key) in self.kinds:
                yield type(key)
            elif issubclass(type(key), _COMPOSITE):
                held = (key(),) if issubclass(type(key), weakref.ref) else _iterated(key)
                yield from self._own_kinds(held)


def _says_how_it_is_hashed(kind: type) -> bool:
    if issubclass(kind, getattr(sys.modules.get("torch"), "Tensor", ())):
        return False  # by `id`
    own = (parts.in_class(kind, name) for name in ("__hash__", "__eq__"))
    hashed, compared = own
    slot = types.WrapperDescriptorType
    return hashed is not None and not (isinstance(hashed, slot) and isinstance(compared, slot))


def _is_hashed(kind: type) -> bool:
    return kind in _WEAK or issubclass(kind, (dict, set, frozenset))


def _base(obj: object) -> type | None:
    """The built-in container that it is, if it can be made empty and filled."""
    if type(obj) in _WEAK:
        return type(obj)
    base = parts.container(type(obj))
    return base if base is not None and issubclass(base, (dict, set)) else None


def _content(base: type, obj: Any) -> tuple[Any, list[list[Any]]]:
    """How parts are put into a container, and what it holds: keys and values, or items."""
    if base is weakref.WeakSet:
        return _WEAK[base], [list(obj)]
    if base in _WEAK:
        return _WEAK[base], [list(column) for column in zip(*obj.items(), strict=True)] or [[], []]
    return parts.held_by_container(base, obj)


def keys_of(container: Any) -> list[Any]:
    return list(container) if type(container) in _WEAK else list(_iterated(container))


def _iterated(container: Any) -> Iterator[Any]:
    """Not by what the class says of this."""
    kinds = dict, set, frozenset, tuple
    base: Any = next(one for one in kinds if issubclass(type(container), one))
    items: Iterator[Any] = base.__iter__(container)
    return items


def _refuse_to_open(obj: Any, reduced: tuple[Any, ...], container: object) -> None:
    """Where an object of such a cycle is given its state by code of its own, which might look into
    the container. Raises Unshippable."""
    setter = parts.in_class(type(obj), "__setstate__") if any(reduced[2:3]) else None
    makes = reduced[0] if reduced else None
    if isinstance(makes, type):
        makes = next((parts.in_class(makes, n) for n in ("__new__", "__init__")), None)
    for method in (setter, makes):
        if isinstance(method, types.FunctionType) and not _only_puts(method):
            raise _unshippable(type(container), f"`{type(obj).__qualname__}.{method.__name__}`")


def _only_puts(method: types.FunctionType) -> bool:
    name = method.__globals__.get("__name__")
    top = str(name).partition(".")[0]
    return top in {*_ONLY_PUT, __package__.partition(".")[0], "cloudpickle"}


def _unshippable(kind: type, what: str) -> Unshippable:
    return Unshippable(
        f"a {kind.__name__} whose keys say how they are hashed and lead back to it, where {what} "
        "would see it empty",
        "Fill it inside the function, or leave to Python how the objects are pickled",
    )
