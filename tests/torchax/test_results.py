"""torchax and JAX results as the notebook receives them (pickling, jax_values)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.worlds.worlds import Worlds


def test_results_arrive_as_cpu_tensors_and_numpy_arrays(worlds: Worlds) -> None:
    for rank, value in enumerate(worlds.run("returns_all_kinds").values()):
        for name in ("torchax", "cpu"):
            assert type(value[name]) is torch.Tensor
            assert value[name].tolist() == [rank] * 3
        assert value["view"].tolist() == [0, 1, 2]
        assert value["bfloat16"].dtype == torch.bfloat16
        assert type(value["jax"]) is np.ndarray
        assert value["jax"].tolist() == [rank] * 3
        assert str(value["jax bfloat16"].dtype) == "bfloat16"
        assert value["replicated"].tolist() == [0, 1, 2, 3]
        assert type(value["record"].loss) is np.ndarray
        assert type(value["record"].rest[0]) is torch.Tensor
        assert type(value["model"].weight) is torch.nn.Parameter
        assert value["model"](torch.ones(1, 4)).shape == (1, 2)
        assert value["device"] == torch.device("cpu")


@pytest.mark.parametrize("scenario", ["returns_a_part", "returns_a_torchax_part"])
def test_sharded_arrays_cannot_be_returned(worlds: Worlds, scenario: str) -> None:
    for ended in worlds.run(scenario).ranks:
        assert ended.how == "Unshippable"
        assert "an array (8, 2) float32 sharded over 4 devices" in ended.value
        assert "xla_nb.torchax.gather(x)" in ended.value


def test_device_values_cannot_be_sent_to_other_ranks(worlds: Worlds) -> None:
    for array, tensor in worlds.run("sends_to_others", ranks=2).values():
        assert "it is or contains a JAX array: " in array
        assert "numpy.asarray(x)" in array
        assert "it is or contains a torchax tensor: " in tensor
        assert "x.cpu()" in tensor
