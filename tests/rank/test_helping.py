"""What `name?` tells of a rank's object."""

import linecache
import threading

import pytest
import torch
from torch import nn

from xla_nb.rank import short_repr
from xla_nb.rank.helping import about

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
    name = "<Cell In[3]>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(True), name)
    held = {"__name__": "somewhere"}
    exec(compile(CELL, name, "exec"), held)
    held["net"] = held["Net"]()
    held["model"] = nn.Sequential(nn.Linear(2, 1))
    yield held
    del linecache.cache[name]


def test_a_function_of_a_cell(namespace):
    told = about(namespace, "scaled", source=True)
    assert (told.type, told.signature) == ("function", "(x, by=2)")
    assert (told.file, told.line) == ("<Cell In[3]>", 14)
    assert told.source == "def scaled(x, by=2):\n    return x * by\n"


def test_the_source_comes_only_if_asked(namespace):
    assert about(namespace, "scaled").source == ""


def test_a_class_with_what_makes_it(namespace):
    told = about(namespace, "Net")
    assert (told.type, told.doc) == ("type", "A net.")
    assert (told.init_signature, told.init_doc) == ("(width=3)", "Of a width.")


def test_an_instance_and_its_method(namespace):
    told = about(namespace, "net")
    assert (told.type, told.doc, told.file) == ("Net", "A net.", "<Cell In[3]>")
    told = about(namespace, "net.forward")
    assert (told.signature, told.doc) == ("(x, *, scale=2.0)", "Forward.")


def test_a_part_of_a_model(namespace):
    told = about(namespace, "model[0].weight")
    assert (told.type, told.text) == ("Parameter", "Parameter (1, 2) float32")


def test_a_builtin_function(namespace):
    assert about(namespace, "len").signature == "(obj, /)"


def test_the_length_of_a_container():
    assert about({"x": [1, 2]}, "x").length == "2"


@pytest.mark.parametrize("expression", ["gone", "net.boom", "net.gone", "f(1)", "", "net."])
def test_what_is_not_known_without_running_something_is_not_found(namespace, expression):
    assert not about(namespace, expression).found


def test_a_default_that_would_read_a_tensor_on_a_device_is_told_by_its_shape(monkeypatch):
    monkeypatch.setattr(short_repr, "_is_on_device", lambda value: True)

    def with_default(x=None):
        pass

    with_default.__defaults__ = (torch.ones(3),)
    assert about({"f": with_default}, "f").signature == "(x=Tensor (3,) float32)"


def test_an_object_that_takes_too_long_still_has_its_type(monkeypatch):
    over = threading.Event()

    class Slow:
        def __repr__(self):
            over.wait()

    told = about({"x": Slow()}, "x", seconds=0.05)
    over.set()
    assert told.found
    assert told.type == Slow.__qualname__
