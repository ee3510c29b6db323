"""Detection of lists and dicts that a program changed, without running user code."""

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import pytest

from xla_nb.rank.program import Changes


class Meta(type):
    def __eq__(cls, other):
        raise AssertionError("compared")

    __hash__ = None


class Touchy(metaclass=Meta):
    """Must not be compared, hashed again once it is a key, or shown."""

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


def lost(names, change, result=None):
    """The names whose values the statements in `change` modify; `result` is an expression."""
    names = dict(names)
    changes = Changes(names, list(names))
    exec(change, {}, names)
    return changes.lost(eval(result, {}, names) if result else None)


CHANGED = {
    "append": ([], "x.append(1)"),
    "assigned item": ([None] * 4, "x[0] = 0"),
    "-1 and -2 have one hash": ([-1], "x[0] = -2"),
    "True for 1": ([1], "x[0] = True"),
    "assigned value": ({"loss": 1.0}, "x['loss'] = 0.5"),
    "renamed key": ({"a": 1}, "x['b'] = x.pop('a')"),
    "nested": ({"loss": ([], {})}, "x['loss'][1]['a'] = 3"),
    "set add": ({1}, "x.add(2)"),
    "counter": (Counter("ab"), "x['a'] += 1"),
    "defaultdict": (defaultdict(list), "x['a'].append(1)"),
    "ordered dict": (OrderedDict(a=1), "x['a'] = 2"),
    "rotated deque": (deque([1, 2, 3]), "x.rotate(1)"),
    "replaced object": ([Touchy()], "x[0] = type('Other', (), {})()"),
    "append to long list": ([0] * 20_000, "x.append(0)"),
    "rebound": ([], "x = [1]"),
}


@pytest.mark.parametrize(("value", "change"), CHANGED.values(), ids=CHANGED)
def test_change_is_detected(value, change):
    assert lost({"x": value}, change) == ("x",)


NOT_CHANGED = {
    "only read": ({"lr": 0.1, "nan": float("nan")}, "y = x['lr'], [*x.values()]"),
    "assigned an equal value": ([1, "a"], "x[1] = 'ab'[:1]"),
    "changed back": ([1], "x.append(2); x.pop()"),
    "rebound to an equal value": ({"a": [1]}, "x = {'a': [1]}"),
    "subclass of a container": (type("Own", (list,), {})(), "x.append(1)"),
    "rebound constant": (3, "x += 1"),
    "item of a long list": ([0] * 20_000, "x[0] = 1"),
}


@pytest.mark.parametrize(("value", "change"), NOT_CHANGED.values(), ids=NOT_CHANGED)
def test_unchanged_or_unchecked_value_is_not_reported(value, change):
    assert lost({"x": value}, change) == ()


@pytest.mark.parametrize("result", ["x", "[1, x]", "{'history': x}", "Result(x)"])
def test_changed_value_in_the_result_is_not_lost(result):
    names = {"x": [], "y": [], "Result": Result}
    assert lost(names, "x.append(1); y.append(1)", result) == ("y",)


@pytest.mark.parametrize("result", ["[*x]", "(1, x.copy())"])
def test_copy_of_a_changed_value_in_the_result_counts(result):
    assert lost({"x": [], "y": []}, "x.append(1); y.append(2)", result) == ("y",)


def test_growth_of_one_list_does_not_mark_another():
    names = {"x": [0] * 4_000, "y": [0] * 4_000}
    assert lost(names, "x += [0] * 9_000") == ("x",)


def test_self_referencing_list_is_inspected_once():
    held = [1]
    held.append(held)
    assert lost({"x": held}, "x[0] = 2") == ("x",)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_user_objects_are_not_compared_or_hashed(kind):
    names = {"x": kind([(Touchy(), Touchy())]), "y": [Touchy()], "z": Touchy()}
    changes = Changes(names, names)
    Touchy.asked = True
    try:
        assert changes.lost(Touchy()) == ()
    finally:
        Touchy.asked = False
