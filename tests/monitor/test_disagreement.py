"""How ranks disagree, in text."""

import math

import pytest
import torch
from torch import nn

from tests.support.variables import compared, only
from xla_nb.monitor import variable_comparison


def linear(weight, rate=0.1):
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 1], "equal"),
        ([1], ""),
        ([1, 1, 2, 1], "rank 2 differs"),
        ([1, 1, 1, 2, 3], "ranks 3, 4 differ"),
        ([1, 2], "differs by rank"),
        ([1, 1, 2, 2], "differs by rank"),
        ([torch.tensor(math.nan)] * 2, "equal except for NaN"),
        ([(x for x in ""), (x for x in "")], "not compared"),
        ([[torch.ones(1), (x for x in "")]] * 2, "not compared in full"),
    ],
)
def test_verdict_is_short(values, told):
    assert variable_comparison.verdict(only(*values)) == told


def test_nothing_is_said_of_a_value_that_cannot_be_compared_if_there_is_no_other():
    assert variable_comparison.details(only(x for x in "")) == []


def test_verdict_names_ranks_that_have_the_name():
    (one,) = compared({"x": 1}, {"x": 1}, {})
    assert variable_comparison.verdict(one) == "only on ranks 0, 1"


def test_sentence_names_rank_parameter_and_values():
    one = only(linear(1.0), linear(1.0), linear(1.5))
    assert variable_comparison.sentence(one) == "rank 2 (weight: norm 2 (ranks 0, 1), 3 (rank 2))"


def test_sentence_without_a_majority_lists_all_values():
    assert variable_comparison.sentence(only(0.1, 0.2)) == "0.1 (rank 0), 0.2 (rank 1)"


def test_sentence_counts_many_parameters():
    one = only(*(nn.Sequential(*(linear(weight) for _ in range(9))) for weight in (1.0, 1.0, 2.0)))
    assert variable_comparison.sentence(one).endswith(", 4 (rank 2); 6 more differ)")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([0.1, 0.1, 0.2], "0.1 (ranks 0, 1), 0.2 (rank 2)"),
        ([1, 1, 1.0], "type int (ranks 0, 1), float (rank 2)"),
        (
            [torch.ones(2), torch.ones(2), torch.ones(3)],
            "shape (2,) (ranks 0, 1), (3,) (rank 2)",
        ),
        (
            [torch.ones(2), torch.ones(2), torch.tensor([math.nan, 1.0])],
            "NaN elements 0 (ranks 0, 1), 1 (rank 2)",
        ),
        ([{"a"}, {"a"}, {"b"}], "different contents"),
    ],
)
def test_details_state_what_differs(values, told):
    assert variable_comparison.details(only(*values)) == [told]


def test_details_name_the_leaf_and_its_ranks():
    assert variable_comparison.details(only({"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2})) == [
        "['lr']: rank 2 differs; 0.1 (ranks 0, 1), 0.2 (rank 2)"
    ]


def test_details_name_ranks_where_a_leaf_is_missing():
    assert variable_comparison.details(only({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}))[-1] == (
        "['b']: rank 0 differs; missing on rank 0"
    )


def test_equal_ranks_have_no_details():
    assert variable_comparison.details(only(linear(1.0), linear(1.0))) == []


def test_details_state_why_a_leaf_is_not_compared():
    assert variable_comparison.details(only([(x for x in "")], [(x for x in "")])) == [
        "[0]: values of type generator cannot be compared"
    ]
