"""How an object is sent that a module holds: as that module's own, with what it holds here.

Its content is put into the module's object, so that all who have that see it. An object that says
itself how it is pickled is put into the module in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xla_nb.pickling import code_facts, rebuild
from xla_nb.pickling.module_objects import Place, of_this_process
from xla_nb.pickling.rebuild import Call

_AS_IMPORTED = (
    "`{}` is on ranks as `import {}` makes it: what it holds in the notebook cannot be sent"
)


class Owned(NamedTuple):
    """A module's object, and how it is sent: `make` gives the module's, `refill` what it holds;
    without `make` it is sent like any other, and put into the module."""

    place: Place
    make: Call | None
    refill: Call | None = None


class OwnedByModules:
    """What modules hold of the objects of one parcel, which may be pickled several times; `notes`
    are for the user."""

    def __init__(self) -> None:
        self.notes: set[str] = set()
        self._owned: dict[int, Owned] = {}
        self._modules = of_this_process()
        self.ids = self._modules.ids  # of what may be a module's

    def of(self, obj: Any, can_be_sent: Callable[[object], bool]) -> Owned | None:
        """The object as a module's own; None if no module holds it. `can_be_sent` tries."""
        if id(obj) not in self._owned:
            place = self._modules.place(obj)
            if place is None:
                return None
            self._decide(obj, place, can_be_sent)
        return self._owned[id(obj)]

    def _decide(self, obj: Any, place: Place, can_be_sent: Callable[[object], bool]) -> None:
        as_imported = Call(rebuild.held_by_module, (place.module, place.name, type(obj).__name__))
        alone = Owned(place, as_imported)
        if place.alone or code_facts.is_without_state(obj):
            self._owned[id(obj)] = alone
            return
        self._owned[id(obj)] = owned = _filled(obj, place)  # also while its content is tried
        if not can_be_sent(owned.refill or obj):
            self._owned[id(obj)] = alone
            self.notes.add(_AS_IMPORTED.format(place, place.module))


def _filled(obj: Any, place: Place) -> Owned:
    kind = type(obj)
    where = place.module, place.name
    if (base := code_facts.container(kind)) is not None:
        made = Call(
            rebuild.module_object,
            (*where, base, kind, *code_facts.arguments_of_container(base, obj)),
        )
        own = rebuild.fill_instance, obj.__getstate__()
        content = *code_facts.held_by_container(base, obj), *own
        return Owned(place, made, Call(rebuild.refill_container, (obj, base, content)))
    if code_facts.is_refillable(kind):
        state = object.__reduce_ex__(obj, 2)[2]
        made = Call(rebuild.module_object, (*where, object, kind))
        return Owned(place, made, Call(rebuild.refill_instance, (obj, state)))
    return Owned(place, None)
