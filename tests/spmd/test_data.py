"""Batches are shared out, and checkpoints are plain torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_a_batch_is_split_over_its_axis(devices: Callable[..., Any]) -> None:
    assert devices("batches") == {
        "lies": "Shard(0) over 'data'; 3x4 on each device",
        "again": "Shard(0) over 'data'; 3x4 on each device",
        "scalar": (3, "text"),
        "right": True,
        "length": 3,
        "sums": [6.0, 22.0, 17.0],  # the last batch has two examples of four
        "other axis": "Shard(0) over 'model'; 3x4 on each device",
    }


def test_a_checkpoint_is_plain_and_loads_into_another_mesh(devices: Callable[..., Any]) -> None:
    found = devices("checkpoints")
    assert found["kinds"] == {("Tensor", "cpu")}
    assert found["tied"]
    assert found["same"]
    assert found["far"] < 1e-5
    assert found["answer"] == "<All keys matched successfully>"
    assert found["object"], "an optimizer would no longer know the parameters"
    whole = "Shard(0) over 'model'; 6x8 on each device"
    assert (found["lies"], found["moment"]) == (whole, whole)


def test_a_checkpoint_that_does_not_fit_is_torchs_error(devices: Callable[..., Any]) -> None:
    found = devices("checkpoints")
    assert "Missing key(s)" in found["missing"]
    assert "size mismatch for embed.weight" in found["shape"]
    assert "unexpected_keys=['extra']" in found["loose"]
