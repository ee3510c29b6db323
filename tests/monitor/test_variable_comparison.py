"""Comparing variables across ranks."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.variables import compared, only
from xla_nb.monitor import variable_comparison
from xla_nb.monitor.variable_comparison import compare
from xla_nb.rank.variables import Leaf, Variable


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def different(one):
    return [leaf for leaf in one.leaves if leaf.verdict == "different"]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1, 1, 1], "equal"),
        ([1, 1, 2], "different"),
        ([1, 2, 3], "no majority"),
        ([1, 1, 2, 2], "no majority"),
        (["a", "a"], "equal"),
        ([torch.ones(2), torch.ones(2)], "equal"),
        ([torch.ones(2), torch.ones(2).double()], "no majority"),
        ([torch.ones(2), np.ones(2, "f4")], "no majority"),
        ([torch.tensor([math.nan]), torch.tensor([math.nan])], "equal except for NaN"),
        ([torch.tensor([math.nan]), torch.tensor([1.0])], "no majority"),
        ([torch.tensor([0.0]), torch.tensor([-0.0])], "equal"),
        ([[1, 2.0], [1.0, 2]], "equal"),
        ([{"a": 1}, {"a": 1, "b": 2}], "no majority"),
        ([(x for x in ""), (x for x in "")], "not compared"),
        ([5], "alone"),
    ],
)
def test_verdict_classifies_values(values, verdict):
    assert only(*values).verdict == verdict


def test_name_missing_on_some_ranks_is_reported():
    (one,) = compared({"writer": "w"}, {}, {})
    assert one.verdict == "not on all"
    assert (list(one.by_rank), one.missing) == ([0], (1, 2))


def test_majority_and_deviating_ranks_are_identified():
    one = only(*(torch.full((2,), value) for value in (1.0, 1.0, 2.0, 1.0)))
    (leaf,) = one.leaves
    assert (leaf.groups[0], leaf.deviating) == ((0, 1, 3), (2,))
    assert one.usual.leaves[0].digest == one.by_rank[0].leaves[0].digest


def test_no_rank_deviates_without_a_majority():
    (leaf,) = only(0.1, 0.2, 0.3).leaves
    assert leaf.deviating == ()


def test_deviating_rank_is_named_even_if_another_leaf_differs_on_every_rank():
    one = only({"w": 1, "x": 1}, {"w": 1, "x": 2}, {"w": 2, "x": 3})
    assert (one.verdict, one.deviating) == ("different", (2,))


def test_shards_of_a_parameter_may_differ():
    def part(value):
        held = torch.full((2,), value)
        held._is_sharded = True
        return {"flat": held, "norm": torch.ones(1)}

    one = only(part(1.0), part(1.0), part(2.0))
    assert (one.verdict, one.deviating) == ("sharded", ())


def test_models_are_compared_by_parameter():
    odd = model()
    with torch.no_grad():
        odd[1].weight[0, :3] += 0.5
    one = only(model(), model(), odd)
    (leaf,) = different(one)
    assert leaf.path == ".1.weight"
    assert leaf.deviating == one.deviating == (2,)


@pytest.mark.parametrize("odd", [[3, None], [3, "x"], [3, 2**60]])
def test_lists_with_non_numbers_have_different_contents(odd):
    one = only([3, 0.5], [3, 0.5], odd)
    assert variable_comparison.sentence(one) == "rank 2 (different contents)"
    assert variable_comparison.details(one) == ["different contents"]


def test_list_of_one_number_is_not_shown_as_that_number():
    assert "0.5" not in variable_comparison.sentence(only([], [], [0.5]))


def test_lists_of_numbers_have_no_norm():
    assert (
        variable_comparison.sentence(only([1.0, 2], [1.0, 2], [1.0, 3]))
        == "rank 2 (different elements)"
    )


def test_long_texts_that_differ_beyond_what_is_shown_have_different_contents():
    one, other = "x" * 100 + "a", "x" * 100 + "b"
    assert variable_comparison.sentence(only(one, one, other)) == "rank 2 (different contents)"


def test_norms_have_enough_digits_to_differ():
    held = [torch.ones(4, dtype=torch.float64) for _ in range(3)]
    held[2][0] += 1e-8
    assert (
        variable_comparison.sentence(only(*held))
        == "rank 2 (norm 2 (ranks 0, 1), 2.000000005 (rank 2))"
    )


def test_equal_norms_are_not_shown():
    held = [torch.tensor([1.0, 2.0])] * 2 + [torch.tensor([2.0, 1.0])]
    assert variable_comparison.sentence(only(*held)) == "rank 2 (different elements)"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_norms_are_hidden_if_some_are_not_finite(odd):
    one = only(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor([1.0, odd]))
    (told,) = variable_comparison.details(one)
    assert "norm" not in told


def test_pending_value_is_not_a_difference():
    told = [pending("x"), pending("x"), known("x")]
    (one,) = compare({rank: [variable] for rank, variable in enumerate(told)})
    assert one.verdict == "pending"
    assert sorted(one.leaves[0].unknown) == [0, 1]


def test_known_values_may_differ_while_another_is_pending():
    told = [pending("x"), known("x", digest="a"), known("x", digest="b")]
    (one,) = compare({rank: [variable] for rank, variable in enumerate(told)})
    assert one.verdict == "no majority"


def test_pending_ranks_are_named_with_the_difference_and_may_form_the_majority():
    told = [*[known("x", digest="a")] * 2, known("x", digest="b"), pending("x")]
    (one,) = compare({rank: [variable] for rank, variable in enumerate(told)})
    assert (one.verdict, one.deviating) == ("no majority", ())
    assert variable_comparison.verdict(one) == "differs by rank, pending on rank 3"
    assert variable_comparison.details(one)[0].endswith("; not computed yet on rank 3")
    (one,) = compare({rank: [variable] for rank, variable in enumerate([*told, told[0], told[0]])})
    assert variable_comparison.verdict(one) == "rank 2 differs, pending on rank 3"
    told = [known("x", digest="a"), known("x", digest="b"), pending("x"), pending("x")]
    (one,) = compare({rank: [variable] for rank, variable in enumerate(told)})
    assert variable_comparison.verdict(one) == "differs by rank, pending on ranks 2, 3"


def test_rank_that_ran_out_of_time_does_not_differ():
    late = dataclasses.replace(
        known("x"), leaves=(Leaf("", "Net", "late", why="looking at it took longer than 10 s"),)
    )
    whole = dataclasses.replace(
        known("x"), leaves=(Leaf("", "Net", "known", digest="a"), *known("x", path=".w").leaves)
    )
    (one,) = compare({0: [whole], 1: [late]})
    assert one.verdict == "not compared"


def test_differing_variables_come_first():
    namespaces = [{"a": 1, "b": value, "c": value == 3} for value in (1, 2, 3)]
    assert [one.name for one in compared(*namespaces)] == ["c", "b", "a"]


def test_hundreds_of_names_on_many_ranks_are_compared():
    namespace = {f"x{number}": number for number in range(200)}
    assert {one.verdict for one in compared(*[namespace] * 8)} == {"equal"}


def known(name, shape=(2,), digest="a", path=""):
    leaf = Leaf(path, "Tensor", "known", shape, "float32", "xla:0", 8, digest, 0, 1.0)
    return Variable(name, "Tensor", (leaf,))


def pending(name, shape=(2,)):
    leaf = Leaf("", "Tensor", "pending", shape, "float32", "xla:0", 8)
    return Variable(name, "Tensor", (leaf,))
