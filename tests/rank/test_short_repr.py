"""Values in a few words, without reading what is on a device."""

import sys

import numpy as np
import pytest
import torch

from xla_nb.rank import short_repr as module
from xla_nb.rank.deadline import Deadline
from xla_nb.rank.short_repr import short_repr


def told(value):
    return short_repr(value, Deadline(60))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(2, 3), "Tensor (2, 3) float32"),
        (np.ones((2, 3)), "ndarray (2, 3) float64"),
        ([torch.ones(2), 1], "[Tensor (2,) float32, 1]"),
        ({"x": torch.tensor(1.0)}, "{'x': Tensor () float32}"),
        (1, "1"),
        ("a\nb", "'a\\nb'"),
        (None, "None"),
    ],
)
def test_tensors_are_told_by_shape_and_dtype(value, text):
    assert told(value) == text


def test_it_is_short_whatever_the_value_is():
    for value in ("x" * 10**6, b"x" * 10**6, list(range(10**6)), 10**999, {"k" * 999: "v" * 999}):
        assert len(told(value)) <= 80


def test_a_repr_that_ends_the_process_is_told():
    class Quits:
        def __repr__(self):
            sys.exit(1)

    assert "SystemExit" in told(Quits()) or told(Quits()).startswith("<Quits instance")


def test_a_repr_may_compute_with_tensors_on_the_cpu():
    class Mean:
        def __repr__(self):
            return f"mean {torch.ones(2).mean().item()}"

    assert told(Mean()) == "mean 1.0"


def test_a_repr_may_not_compute_with_tensors_on_a_device():
    tensor = torch.ones(2, device="meta")
    for look in (tensor.sum, tensor.tolist, lambda: torch.stack([tensor]), lambda: tensor + 1):
        with pytest.raises(module.Unread):
            module.unread(look)
    assert module.unread(lambda: f"{tensor} {tensor!r} {tensor.shape} {len(tensor)}") == (
        "Tensor (2,) float32 Tensor (2,) float32 torch.Size([2]) 2"
    )
