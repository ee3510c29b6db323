"""What objects hold, found without their own code."""

import collections
import random
import types

import pytest
import torch
from torch import nn

from xla_nb.protocol import hidden
from xla_nb.rank import static


def never(*_):
    raise AssertionError("the user's code was run")


@pytest.fixture
def hostile():
    """An object of a class that raises whatever it is asked. Not of the module: others look at
    what modules have."""

    class Meta(type):
        __instancecheck__ = __subclasscheck__ = __getattribute__ = never

    class Hostile(metaclass=Meta):
        __slots__ = ("__dict__", "slot", "unset")
        __class__ = property(never)
        __getattribute__ = never

    made = object.__new__(Hostile)
    hidden.attributes(made)["held"] = 1
    static.held_by_class(Hostile)["slot"].__set__(made, 2)
    return made


def test_attributes_and_slots_of_a_hostile_object(hostile):
    assert static.attributes(hostile) == {"held": 1, "slot": 2}


def test_a_hostile_object_is_no_tensor_array_or_model(hostile):
    assert not static.is_tensor(hostile)
    assert not static.is_array(hostile)
    assert not static.is_module(hostile)
    assert static.jax_array(hostile) is None
    assert static.mro(type(hostile)) == (type(hostile), object)


def test_parameters_are_tensors_and_layers_are_models():
    assert static.is_tensor(nn.Parameter(torch.ones(1)))
    assert static.is_module(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        (types.SimpleNamespace(a=1), False),
        (random.Random(0), False),
        (collections.deque(), False),
        (collections.UserDict(), True),
        (ValueError("a"), False),
        (object(), False),
    ],
)
def test_a_plain_object_keeps_nothing_but_attributes(value, is_plain):
    assert static.is_plain_object(value) is is_plain


def test_an_object_with_slots_is_plain(hostile):
    assert static.is_plain_object(hostile)
