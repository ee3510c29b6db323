"""What a program has changed in lists and dicts, found without running anything of theirs."""

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import pytest

from xla_nb.rank.changes import Changes


class Meta(type):
    def __eq__(cls, other):
        raise AssertionError("compared")

    __hash__ = None


class Touchy(metaclass=Meta):
    """Must be neither compared nor hashed again once it is a key, nor shown."""

    asked = False

    def __hash__(self):
        assert not Touchy.asked
        return 1

    def __eq__(self, other):
        raise AssertionError("compared")

    __repr__ = __bool__ = __len__ = __iter__ = None


@dataclass
class Result:
    history: list


def lost(names, change, result=None, *, rebinds=True):
    """The names that `change`, statements, is found to have changed; `result` is an expression."""
    names = dict(names)
    changes = Changes(names, list(names), rebinds=rebinds)
    exec(change, {}, names)
    return changes.lost(eval(result, {}, names) if result else None)


CHANGED = {
    "appended": ([], "x.append(1)"),
    "an item": ([None] * 4, "x[0] = 0"),
    "-1 and -2 have one hash": ([-1], "x[0] = -2"),
    "True for 1": ([1], "x[0] = True"),
    "a value": ({"loss": 1.0}, "x['loss'] = 0.5"),
    "a key": ({"a": 1}, "x['b'] = x.pop('a')"),
    "within": ({"loss": ([], {})}, "x['loss'][1]['a'] = 3"),
    "added": ({1}, "x.add(2)"),
    "counted": (Counter("ab"), "x['a'] += 1"),
    "grouped": (defaultdict(list), "x['a'].append(1)"),
    "ordered": (OrderedDict(a=1), "x['a'] = 2"),
    "turned": (deque([1, 2, 3]), "x.rotate(1)"),
    "another object": ([Touchy()], "x[0] = type('Other', (), {})()"),
    "a long one grown": ([0] * 20_000, "x.append(0)"),
    "bound anew": ([], "x = [1]"),
}


@pytest.mark.parametrize(("value", "change"), CHANGED.values(), ids=CHANGED)
def test_a_change_is_found(value, change):
    assert lost({"x": value}, change) == ("x",)


NOT_CHANGED = {
    "read": ({"lr": 0.1, "nan": float("nan")}, "y = x['lr'], [*x.values()]"),
    "set to what it was": ([1, "a"], "x[1] = 'ab'[:1]"),
    "changed back": ([1], "x.append(2); x.pop()"),
    "bound to the like": ({"a": [1]}, "x = {'a': [1]}"),
    "no container of Python's own": (type("Own", (list,), {})(), "x.append(1)"),
    "a constant": (3, "x += 1"),
    "an item of a long one": ([0] * 20_000, "x[0] = 1"),
}


@pytest.mark.parametrize(("value", "change"), NOT_CHANGED.values(), ids=NOT_CHANGED)
def test_what_is_as_it_was_or_is_not_looked_at_is_not_told(value, change):
    assert lost({"x": value}, change) == ()


@pytest.mark.parametrize("result", ["x", "[1, x]", "{'history': x}", "Result(x)"])
def test_what_is_the_result_or_directly_in_it_comes_back(result):
    names = {"x": [], "y": [], "Result": Result}
    assert lost(names, "x.append(1); y.append(1)", result) == ("y",)


@pytest.mark.parametrize("result", ["[*x]", "(1, x.copy())"])
def test_so_does_a_copy(result):
    assert lost({"x": [], "y": []}, "x.append(1); y.append(2)", result) == ("y",)


def test_a_name_bound_anew_counts_only_where_that_is_asked_for():
    assert lost({"x": [1, 2]}, "x = x[1:]", rebinds=False) == ()


def test_one_that_has_grown_does_not_make_another_look_changed():
    names = {"x": [0] * 4_000, "y": [0] * 4_000}
    assert lost(names, "x += [0] * 9_000") == ("x",)


def test_what_holds_itself_is_looked_through_once():
    held = [1]
    held.append(held)
    assert lost({"x": held}, "x[0] = 2") == ("x",)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_objects_of_the_users_are_not_asked(kind):
    names = {"x": kind([(Touchy(), Touchy())]), "y": [Touchy()], "z": Touchy()}
    changes = Changes(names, names, rebinds=True)
    Touchy.asked = True
    try:
        assert changes.lost(Touchy()) == ()
    finally:
        Touchy.asked = False
