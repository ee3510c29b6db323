"""What variables are made of, found without the user's code."""

import collections
import dataclasses
import enum
import threading

import numpy as np
import pytest
import torch
from torch import nn

from xla_nb.protocol.hostile import TooLong
from xla_nb.rank.deadline import Deadline
from xla_nb.rank.leaves import Elements, Opaque, Plain, leaves


def found(value):
    return list(leaves(value, Deadline(60)))


def paths(value, kind=Elements):
    return [leaf.path for leaf in found(value) if isinstance(leaf, kind)]


def data(value):
    return [(leaf.path, leaf.data) for leaf in found(value) if isinstance(leaf, Plain)]


def test_a_tensor_an_array_and_a_number_are_one_leaf():
    for value in (torch.ones(2), np.ones(2), np.float32(1), 1, 2.5, [1, 2.5], (1, 2)):
        (leaf,) = found(value)
        assert type(leaf) is Elements
        assert leaf.value is value


def test_a_model_is_told_by_parameter_buffer_and_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert [path for path in paths(model) if "weight" in path or "running" in path] == [
        ".0.weight",
        ".1.weight",
        ".1.running_mean",
        ".1.running_var",
    ]
    assert (".1.training", b"bool True") in data(model)


def test_a_module_put_in_evaluation_mode_is_another():
    one, other = nn.Linear(1, 1), nn.Linear(1, 1).eval()
    assert data(one) != data(other)


def test_an_optimizer_is_told_by_group_and_by_the_number_of_its_parameter():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert ".param_groups[0]['lr']" in paths(optimizer)
    assert ".state[1]['exp_avg']" in paths(optimizer)
    assert not [path for path in paths(optimizer) if "params'" in path]


def test_items_of_a_dict_come_in_the_order_of_their_keys():
    one, other = (
        {"b": torch.ones(1), "a": torch.zeros(1)},
        {"a": torch.zeros(1), "b": torch.ones(1)},
    )
    assert paths(one) == paths(other) == ["['a']", "['b']"]


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        ("a", "a", "b"),
        ({0, 8, "a"}, {8, 0, "a"}, {0, "a"}),  # which are kept in the order they came
        ({"a": {1: "x"}}, {"a": {1: "x"}}, {"a": {1: "y"}}),
        (["a", None], ["a", None], ["a", False]),
        ([["ab"]], [["ab"]], [["a", "b"]]),
        (float("nan"), float("nan"), 1.0),
        (("a", float("nan")), ("a", float("nan")), ("a", 0.0)),
        (torch.float32, torch.float32, torch.float64),
        (10**30, 10**30, 10**30 + 1),
        (bytearray(b"a"), bytearray(b"a"), bytearray(b"b")),
        (collections.OrderedDict(a="x"), collections.OrderedDict(a="x"), {"a": "x"}),
    ],
)
def test_plain_values_have_equal_data_if_they_are_equal(one, equal, other):
    def whole(value):
        leaf = found(value)[0]
        return data(value) if isinstance(leaf, Plain) else repr(leaf.value)

    assert whole(one) == whole(equal)
    assert whole(one) != whole(other)


def test_objects_are_taken_apart_without_their_own_code():
    def never(*_):
        raise AssertionError("the user's code was run")

    class Slotted:
        __slots__ = ("b",)

    class Hostile(Slotted):
        def __init__(self):
            self.a = torch.ones(1)
            self.b = "text"

        boom = property(never)
        __getattr__ = __eq__ = __hash__ = __iter__ = __len__ = __bool__ = __repr__ = never
        __dir__ = never
        __class__ = property(never)

    assert paths(Hostile()) == [".a"]
    assert ".b" in [path for path, _ in data(Hostile())]


def test_dataclasses_and_enums_are_compared():
    Color = enum.Enum("Color", "RED BLUE")

    @dataclasses.dataclass
    class Settings:
        lr: float
        color: Color

    assert data(Settings(0.1, Color.RED)) == data(Settings(0.2, Color.RED))
    assert data(Settings(0.1, Color.RED)) != data(Settings(0.1, Color.BLUE))
    assert paths(Settings(0.1, Color.RED)) == [".lr"]


def test_what_keeps_something_elsewhere_is_not_compared():
    class Counter(collections.deque):
        pass

    for value in ((i for i in "ab"), threading.Lock(), Counter("ab"), {1, torch.ones(1)}):
        (leaf,) = found(value)
        assert type(leaf) is Opaque
        assert "cannot be compared" in leaf.why


def test_values_that_hold_themselves_end():
    row = [torch.ones(1)]
    row.append(row)
    assert paths(row) == ["[0]"]
    twice = ["a"]
    twice += [twice, twice]
    assert found(twice)


def test_a_value_shared_more_often_than_there_is_time_for_is_given_up():
    grown = ["a"]
    for _ in range(45):
        grown = [grown, grown]
    with pytest.raises(TooLong):
        list(leaves(grown, Deadline(0.2)))
