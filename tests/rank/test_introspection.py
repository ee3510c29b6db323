"""What Tab and `name?` know of a rank's names, attributes and keys."""

import collections
import functools
import linecache
import threading
import types

import pytest
import torch
from torch import nn

from xla_nb.rank import introspection, preview
from xla_nb.rank.introspection import about, completions


def never(*_):
    raise AssertionError("the user's code was run")


class Hostile:
    def __init__(self):
        self.layer = {"key": 1}

    def method(self):
        pass

    slow = property(never)
    cached = functools.cached_property(never)
    __getattr__ = __len__ = __bool__ = __eq__ = __hash__ = __iter__ = never


class Slotted:
    __slots__ = ("speed",)


def offered(text, **namespace):
    return list(completions(text, namespace).matches)


def test_names_that_begin_so():
    assert offered("na", name=1, nan=2, other=3) == ["name", "nan"]
    assert offered("x = f(na", name=1) == ["name"]
    assert offered("first = 1\nna", name=1) == ["name"]
    assert not completions("na", {"name": 1}).of_object


def test_names_with_an_underscore_only_where_it_is_typed():
    assert offered("", a=1, _b=2) == ["a"]
    assert offered("_", a=1, _b=2) == ["_b"]
    assert "__init__" not in offered("x.", x=Hostile())


def test_nothing_inside_a_text_or_behind_a_number():
    assert offered("'abc'.uppe", a=1) == []
    assert offered("f().a", a=1) == []


def test_attributes_of_an_object_without_its_properties():
    thing = Hostile()
    assert {"layer", "method", "slow"} <= set(offered("thing.", thing=thing))
    assert offered("thing.layer['k", thing=thing) == ["key"]
    for text in ("thing.slow.", "thing.cached."):
        assert offered(text, thing=thing) == []


def test_slots_are_attributes():
    assert offered("x.sp", x=Slotted()) == ["speed"]


def test_parameters_and_modules_of_a_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.ModuleDict({"head": nn.Linear(3, 1)}))
    assert offered("model[0].wei", model=model) == ["weight"]
    assert offered("model[1]['head'].bi", model=model) == ["bias"]
    assert offered("model[1].he", model=model) == ["head"]
    assert offered("model[1].head.bi", model=model) == ["bias"]


def test_keys_are_completed():
    table = collections.OrderedDict({"beta": 1, "alpha": 2, 3: 4, 'q"': 5})
    assert offered('table["', table=table) == ["alpha", "beta"]
    assert offered("table['al", table=table) == ["alpha"]
    assert offered("table[", table=[1]) == ["table"]  # a name may stand there


def test_what_is_offered_is_bounded(monkeypatch):
    monkeypatch.setattr(introspection, "_MOST", 10)
    assert len(offered("x", **{f"x{number}": 0 for number in range(1000)})) == 10


def test_any_value_may_be_completed():
    for value in (None, 1, "a", [], {}, (), int, len, types, Hostile(), torch.ones(1), object()):
        for text in ("x.", "x['", "x[0].", "x.y.z.", "x[99999].", "x['gone'].", "gone."):
            completions(text, {"x": value})


# ---------------------------------------------------------------- name?

CELL = '''class Net:
    """A net."""

    def __init__(self, width=3):
        """Of a width."""

    def forward(self, x, *, scale=2.0):
        """Forward."""
        return x

    boom = property(lambda self: 1 / 0)


def scaled(x, by=2):
    return x * by
'''


@pytest.fixture(scope="module")
def namespace():
    """What a cell has defined, whose source `linecache` has."""
    name = "Cell In[3]"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(True), name)
    held = {"__name__": "somewhere"}
    exec(compile(CELL, name, "exec"), held)
    held["net"] = held["Net"]()
    held["model"] = nn.Sequential(nn.Linear(2, 1))
    yield held
    del linecache.cache[name]


def test_a_function_of_a_cell(namespace):
    lines = about("scaled", names=namespace).splitlines()
    assert lines[0] == "Signature:      scaled(x, by=2)"
    assert "File:           Cell In[3]" in lines
    assert "Source:" not in lines


def test_the_source_comes_if_asked(namespace):
    told = about("scaled", True, namespace)
    assert told.endswith("Source:\ndef scaled(x, by=2):\n    return x * by")


def test_a_class_with_what_makes_it(namespace):
    told = about("Net", names=namespace)
    assert "Docstring:      A net." in told
    assert "Init signature: Net(width=3)" in told


def test_an_instance_and_its_method(namespace):
    assert "Type:           Net" in about("net", names=namespace)
    told = about("net.forward", names=namespace)
    assert "Signature:      net.forward(x, *, scale=2.0)" in told
    assert "Docstring:      Forward." in told


def test_a_part_of_a_model(namespace):
    told = about("model[0].weight", names=namespace)
    assert "Type:           Parameter" in told
    assert "Parameter (1, 2) float32" in told


@pytest.mark.parametrize("expression", ["gone", "net.boom", "net.gone", "f(1)", "", "net."])
def test_what_is_not_known_without_running_something_is_not_found(namespace, expression):
    assert about(expression, names=namespace) == ""


def test_a_default_that_would_read_a_tensor_on_a_device_is_told_by_its_shape(monkeypatch):
    monkeypatch.setattr(preview, "_is_on_device", lambda value: True)

    def with_default(x=None):
        pass

    with_default.__defaults__ = (torch.ones(3),)
    assert "f(x=Tensor (3,) float32)" in about("f", names={"f": with_default})


def test_an_object_that_takes_too_long_still_has_its_type(monkeypatch):
    monkeypatch.setattr(introspection, "_SECONDS", 0.05)
    over = threading.Event()

    class Slow:
        def __repr__(self):
            over.wait()

    told = about("x", names={"x": Slow()})
    over.set()
    assert told == f"Type:           {Slow.__qualname__}"
