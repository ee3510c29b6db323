"""A placed model gives the same results as on one CPU device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FOUR, TWO_BY_TWO = {"model": 4}, {"data": 2, "model": 2}


@pytest.mark.parametrize(
    ("model", "optimizer", "axes"),
    [
        ("mlp", "sgd", FOUR),
        ("mlp", "adamw", TWO_BY_TWO),
        pytest.param("block", "sgd", TWO_BY_TWO, marks=pytest.mark.slow),
        ("block", "adamw", FOUR),
        pytest.param("sequence", "adamw", TWO_BY_TWO, marks=pytest.mark.slow),
        pytest.param("by head", "sgd", TWO_BY_TWO, marks=pytest.mark.slow),
        ("tied", "sgd", FOUR),
        pytest.param("tied", "adamw", TWO_BY_TWO, marks=pytest.mark.slow),
    ],
)
def test_outputs_gradients_and_trained_parameters_match_one_device(
    devices: Callable[..., Any], model: str, optimizer: str, axes: dict[str, int]
) -> None:
    assert devices("trained", model, optimizer, axes) < 1e-5


@pytest.mark.parametrize(("rows", "hidden", "part"), [(5, 15, "8x8"), (1, 1, "1x8")])
def test_dimensions_need_not_divide_evenly(
    devices: Callable[..., Any], rows: int, hidden: int, part: str
) -> None:
    far, placement = devices("uneven", rows, hidden)
    assert far < 1e-5
    assert placement == f"Shard(0) over 'model'; {part} on each device"


def test_submodule_can_be_called_alone(devices: Callable[..., Any]) -> None:
    assert devices("attention_alone") < 1e-5


@pytest.mark.slow
def test_weights_can_be_split_over_both_axes(devices: Callable[..., Any]) -> None:
    assert devices("both_axes") < 1e-5


def test_norms_match_torch_without_gathering(devices: Callable[..., Any]) -> None:
    for name, (far, moves) in devices("norms").items():
        assert far < 1e-5, name
        assert moves.keys() <= {"all-reduce"}, name
        assert not moves or name.startswith("batch,") or name == "batch"


def test_torch_func_and_compile_give_the_same_as_on_one_device(devices: Callable[..., Any]) -> None:
    for name, far in devices("transformed").items():
        assert far < 1e-5, name


def test_results_of_torch_xlas_own_marking_are_taken_for_tensors(
    devices: Callable[..., Any],
) -> None:
    found = devices("wrapped")
    assert found["sent"] == [("Tensor", True)] * 2
    assert found["placed"] == ((1,), ((0, 4), (2, 4)))  # device 1
    assert found["batch"] == (((2, 3), ((4, 8), (0, 4))), True)


def test_norms_keep_half_precision(devices: Callable[..., Any]) -> None:
    kind, far = devices("half")
    assert kind == "torch.bfloat16"
    assert far <= 2**-7


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("column", {}),
        ("row", {"all-reduce": 1}),
        ("gathered", {"all-gather": 1}),
        ("block", {"all-reduce": 2, "all-gather": 1}),  # queries come first, so they are split
        ("by head", {"all-reduce": 2}),
        ("data", {"all-reduce": 2}),
        ("computed", {"all-reduce": 2}),
        ("sequence", {"all-reduce": 2, "all-gather": 2}),  # XLA makes no reduce-scatter on CPUs
    ],
)
def test_plan_determines_the_collectives(
    devices: Callable[..., Any], what: str, expected: dict[str, int]
) -> None:
    assert devices("counted", what) == expected
