"""Batches are split over an axis, and checkpoints are plain torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_a_batch_is_split_over_its_axis(devices: Callable[..., Any]) -> None:
    assert devices("batches") == {
        "placement": "Shard(0) over 'data'; 3x4 on each device",
        "again": "Shard(0) over 'data'; 3x4 on each device",
        "scalar": (3, "text"),
        "equal": True,
        "length": 3,
        "sums": [6.0, 22.0, 17.0],  # the last batch has two examples of four
        "other axis": "Shard(0) over 'model'; 3x4 on each device",
    }


def test_a_checkpoint_is_plain_and_loads_into_another_mesh(devices: Callable[..., Any]) -> None:
    result = devices("checkpoints")
    assert result["kinds"] == {("Tensor", "cpu")}
    assert result["tied"]
    assert result["same"]
    assert result["far"] < 1e-5
    assert result["result"] == "<All keys matched successfully>"
    assert result["object"], "an optimizer would no longer know the parameters"
    whole = "Shard(0) over 'model'; 6x8 on each device"
    assert (result["placement"], result["moment"]) == (whole, whole)


def test_a_checkpoint_that_does_not_fit_raises_torchs_error(devices: Callable[..., Any]) -> None:
    result = devices("checkpoints")
    assert "Missing key(s)" in result["missing"]
    assert "size mismatch for embed.weight" in result["shape"]
    assert "unexpected_keys=['extra']" in result["loose"]
