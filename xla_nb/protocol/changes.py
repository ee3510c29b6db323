"""Which objects that came in a parcel, or that source has made, are no longer as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xla_nb.protocol.insides import Insides, own_dicts


def changed(
    fresh: Mapping[int, object], now: Mapping[int, object], namespace: Mapping[str, object]
) -> list[object]:
    """The objects of `now` that are not as in `fresh`, but for the `namespace` of a module.

    Both are opened from one parcel, so that the numbers of its pickle tell which object is which.
    What opening has made beside them (a `__setstate__`) gets a number by its place.
    """
    before, after = Insides(fresh), Insides(now)
    apart = {id(held) for one in now.values() for held in own_dicts(one)} | {id(namespace)}
    found, todo = [], [n for n in fresh.keys() & now.keys() if id(now[n]) not in apart]
    for number in todo:  # which grows
        then, one = before.objects[number], after.objects[number]
        held, holds = list(before.content(then)), list(after.content(one))
        for (place, part), (there, other) in zip(held, holds, strict=False):
            beside = before.is_made_beside(part) and after.is_made_beside(other)
            if beside and place == there != "item" and before.kind(part) == after.kind(other):
                todo.append(-len(todo) - 1)
                before.add(todo[-1], part)
                after.add(todo[-1], other)
        form = before.form(then, held)
        # What is not the same twice (a pickle with a counter) tells nothing.
        if form.differs(after.form(one, holds)) and not form.differs(before.form(then)):
            found.append(one)
    return found


class Snapshot:
    """What some objects lead to, as it is now; what is in `known` is left out."""

    def __init__(self, values: Iterable[object], known: Mapping[int, object]) -> None:
        self._insides = Insides(known)
        reached = self._insides.reach(values)
        objects = self._insides.objects
        self._forms = {number: self._insides.form(objects[number]).copy() for number in reached}

    def changed(self) -> list[object]:
        """The objects that are no longer as they were."""
        objects = self._insides.objects
        return [
            objects[number]
            for number, form in self._forms.items()
            if form.differs(self._insides.form(objects[number]))
        ]


def names_of(
    objects: Iterable[object], given: Mapping[str, object], known: Mapping[int, object]
) -> set[str]:
    """The names under which these objects are, or lead to them where no name is their own."""
    wanted = {id(one) for one in objects}
    direct = {name for name, value in given.items() if id(value) in wanted}
    left = wanted - {id(given[name]) for name in direct}
    insides, led = Insides(known), dict[int, list[object]]()
    return direct | {
        name for name, value in given.items() if left and _leads(value, left, insides, led)
    }


def _leads(value: object, wanted: set[int], insides: Insides, led: dict[int, list[object]]) -> bool:
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            if id(one) not in led:
                led[id(one)] = [part for _, part in insides.content(one)]
            todo += led[id(one)]
    return False
