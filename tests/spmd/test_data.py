"""Batches are split over an axis; checkpoints are plain torch checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_batch_is_split_over_its_axis(devices: Callable[..., Any]) -> None:
    assert devices("batches") == {
        "placement": "Shard(0) over 'data'; 3x4 on each device",
        "again": "Shard(0) over 'data'; 3x4 on each device",
        "scalar": (3, "text"),
        "equal": True,
        "length": 3,
        "sums": [6.0, 22.0, 17.0],  # the last batch has only two examples
        "other axis": "Shard(0) over 'model'; 3x4 on each device",
    }


def test_checkpoint_is_plain_and_loads_into_another_mesh(devices: Callable[..., Any]) -> None:
    result = devices("checkpoints")
    assert result["kinds"] == {("Tensor", "cpu")}
    assert result["far"] < 1e-5, "the second step differs"
    assert result["tied"]
    whole = "Shard(0) over 'model'; 6x8 on each device"
    assert (result["placement"], result["moment"]) == (whole, whole)
