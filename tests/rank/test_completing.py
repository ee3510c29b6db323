"""What Tab offers of a rank's names, attributes and keys."""

import collections
import types

import pytest
import torch
from torch import nn

from xla_nb.rank import completing
from xla_nb.rank.completing import complete


def never(*_):
    raise AssertionError("the user's code was run")


class Hostile:
    def __init__(self):
        self.layer = {"key": 1}

    def method(self):
        pass

    slow = property(never)
    __getattr__ = __dir__ = __len__ = __bool__ = __eq__ = __hash__ = __iter__ = never
    __class__ = property(never)


class Slotted:
    __slots__ = ("speed",)


def offered(text, **namespace):
    return [match.text for match in complete(namespace, text).matches]


def test_names_that_begin_so():
    assert offered("na", name=1, nan=2, other=3) == ["name", "nan"]
    assert offered("x = f(na", name=1) == ["name"]
    assert offered("first = 1\nna", name=1) == ["name"]


def test_names_with_an_underscore_only_where_it_is_typed():
    assert offered("", a=1, _b=2) == ["a"]
    assert offered("_", a=1, _b=2) == ["_b"]
    assert "__init__" not in offered("x.", x=Hostile())


def test_nothing_inside_a_text_or_behind_a_number():
    assert offered("'abc'.uppe", a=1) == []
    assert offered("f().a", a=1) == []


def test_attributes_of_an_object_without_its_own_code():
    thing = Hostile()
    assert {"layer", "method", "slow"} <= set(offered("thing.", thing=thing))
    assert offered("thing.layer['k", thing=thing) == ["key"]
    assert complete({"thing": thing}, "thing.slow.").knows is False


def test_slots_are_attributes():
    assert offered("x.sp", x=Slotted()) == ["speed"]


def test_kinds_are_those_of_ipython():
    kinds = {one.text: one.kind for one in complete({"x": Hostile()}, "x.").matches}
    assert (kinds["method"], kinds["slow"], kinds["layer"]) == ("function", "property", "instance")
    (module,) = complete({"torch": torch}, "torc").matches
    assert module.kind == "module"


def test_parameters_and_modules_of_a_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.ModuleDict({"head": nn.Linear(3, 1)}))
    assert offered("model[0].wei", model=model) == ["weight"]
    assert offered("model[1]['head'].bi", model=model) == ["bias"]
    assert offered("model[1].he", model=model) == ["head"]


def test_a_module_that_is_not_loaded_yet_has_the_names_that_it_lists():
    class Lazy(types.ModuleType):
        __dir__ = __getattr__ = never

    lazy = Lazy("lazy")
    lazy.__all__ = ["Trainer"]
    assert offered("lazy.Tr", lazy=lazy) == ["Trainer"]


def test_keys_are_completed_with_what_ends_them():
    table = collections.OrderedDict({"alpha": 1, "beta": 2, 3: 4, 'q"': 5})
    found = complete({"table": table}, 'table["')
    assert [one.text for one in found.matches] == ["alpha", "beta"]
    assert (found.fragment, found.closing) == ("", '"]')
    assert offered("table['al", table=table) == ["alpha"]


def test_keys_are_offered_before_their_quote_is_typed():
    found = complete({"table": {"alpha": 1, "it's": 2, 3: 4}}, "x = table [")
    assert [one.text for one in found.matches] == ["'alpha'", '"it\'s"']
    assert (found.knows, found.closing) == (True, "]")
    assert complete({"table": [1]}, "table[").knows is False


def test_an_unknown_object_is_not_known():
    assert complete({}, "gone.a").knows is False
    assert complete({"x": 1}, "x.re").knows is True


def test_matches_are_bounded(monkeypatch):
    monkeypatch.setattr(completing, "MOST", 10)
    assert len(offered("x", **{f"x{number}": 0 for number in range(1000)})) == 10


@pytest.mark.parametrize("text", ["x.", "x['", "x[0].", "x.y.z.", "x[99999].", "x['gone']."])
def test_any_value_may_be_completed(text):
    for value in (None, 1, "a", [], {}, (), int, len, types, Hostile(), torch.ones(1), object()):
        complete({"x": value}, text)
