"""Tab completion and `name?` for a rank's names, attributes and keys."""

import collections
import functools
import linecache
import threading
import types

import pytest
import torch
from torch import nn

from xla_nb.rank import introspection, preview


def completions(text, names):
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(introspection, "_rank_names", lambda: names)
        return introspection.completions(text)


def about(expression, source=False, *, names):
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(introspection, "_rank_names", lambda: names)
        return introspection.about(expression, source)


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


def test_names_with_the_typed_prefix_are_offered():
    assert offered("na", name=1, nan=2, other=3) == ["name", "nan"]
    assert offered("x = f(na", name=1) == ["name"]
    assert offered("first = 1\nna", name=1) == ["name"]
    assert not completions("na", {"name": 1}).of_object


def test_underscore_names_are_offered_only_after_an_underscore():
    assert offered("", a=1, _b=2) == ["a"]
    assert offered("_", a=1, _b=2) == ["_b"]
    assert "__init__" not in offered("x.", x=Hostile())


def test_nothing_is_offered_in_strings_or_after_calls():
    assert offered("'abc'.uppe", a=1) == []
    assert offered("f().a", a=1) == []


def test_attributes_are_offered_without_running_properties():
    thing = Hostile()
    assert {"layer", "method", "slow"} <= set(offered("thing.", thing=thing))
    assert offered("thing.layer['k", thing=thing) == ["key"]
    for text in ("thing.slow.", "thing.cached."):
        assert offered(text, thing=thing) == []


def test_slots_are_offered_as_attributes():
    assert offered("x.sp", x=Slotted()) == ["speed"]


def test_parameters_and_modules_of_a_model_are_offered():
    model = nn.Sequential(nn.Linear(2, 3), nn.ModuleDict({"head": nn.Linear(3, 1)}))
    assert offered("model[0].wei", model=model) == ["weight"]
    assert offered("model[1]['head'].bi", model=model) == ["bias"]
    assert offered("model[1].he", model=model) == ["head"]
    assert offered("model[1].head.bi", model=model) == ["bias"]


def test_dict_keys_are_offered():
    table = collections.OrderedDict({"beta": 1, "alpha": 2, 3: 4, 'q"': 5})
    assert offered('table["', table=table) == ["alpha", "beta"]
    assert offered("table['al", table=table) == ["alpha"]
    assert offered("table[", table=[1]) == ["table"]  # a name may follow


def test_number_of_completions_is_limited(monkeypatch):
    monkeypatch.setattr(introspection, "_MOST", 10)
    assert len(offered("x", **{f"x{number}": 0 for number in range(1000)})) == 10


def test_completing_any_value_does_not_raise():
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
    """Names defined by a cell whose source is in `linecache`."""
    name = "Cell In[3]"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(True), name)
    held = {"__name__": "somewhere"}
    exec(compile(CELL, name, "exec"), held)
    held["net"] = held["Net"]()
    held["model"] = nn.Sequential(nn.Linear(2, 1))
    yield held
    del linecache.cache[name]


def test_about_a_function_of_a_cell(namespace):
    lines = about("scaled", names=namespace).splitlines()
    assert lines[0] == "Signature:      scaled(x, by=2)"
    assert "File:           Cell In[3]" in lines
    assert "Source:" not in lines


def test_about_has_the_source_on_request(namespace):
    told = about("scaled", True, names=namespace)
    assert told.endswith("Source:\ndef scaled(x, by=2):\n    return x * by")


def test_about_a_class_has_its_init_signature(namespace):
    told = about("Net", names=namespace)
    assert "Docstring:      A net." in told
    assert "Init signature: Net(width=3)" in told


def test_about_an_instance_and_its_method(namespace):
    assert "Type:           Net" in about("net", names=namespace)
    told = about("net.forward", names=namespace)
    assert "Signature:      net.forward(x, *, scale=2.0)" in told
    assert "Docstring:      Forward." in told


def test_about_a_parameter_of_a_model(namespace):
    told = about("model[0].weight", names=namespace)
    assert "Type:           Parameter" in told
    assert "Parameter (1, 2) float32" in told


@pytest.mark.parametrize("expression", ["gone", "net.boom", "net.gone", "f(1)", "", "net."])
def test_about_is_empty_if_user_code_would_have_to_run(namespace, expression):
    assert about(expression, names=namespace) == ""


def test_device_tensor_as_default_is_shown_by_shape(monkeypatch):
    monkeypatch.setattr(preview, "_is_on_device", lambda value: True)

    def with_default(x=None):
        pass

    with_default.__defaults__ = (torch.ones(3),)
    assert "f(x=Tensor (3,) float32)" in about("f", names={"f": with_default})


def test_about_an_object_with_slow_repr_shows_its_type(monkeypatch):
    monkeypatch.setattr(introspection, "_SECONDS", 0.05)
    over = threading.Event()

    class Slow:
        def __repr__(self):
            over.wait()

    told = about("x", names={"x": Slow()})
    over.set()
    assert told == f"Type:           {Slow.__qualname__}"
