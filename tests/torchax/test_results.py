"""Results of torchax and JAX, as the notebook gets them (protocol: pickling, jax_values)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.worlds.worlds import Worlds


def test_what_ranks_return_comes_home_as_cpu_tensors_and_numpy(worlds: Worlds) -> None:
    for rank, told in enumerate(worlds.run("returns_all_kinds").values()):
        for name in ("torchax", "cpu"):
            assert type(told[name]) is torch.Tensor
            assert told[name].tolist() == [rank] * 3
        assert told["view"].tolist() == [0, 1, 2]
        assert told["bfloat16"].dtype == torch.bfloat16
        assert type(told["jax"]) is np.ndarray
        assert told["jax"].tolist() == [rank] * 3
        assert str(told["jax bfloat16"].dtype) == "bfloat16"
        assert told["replicated"].tolist() == [0, 1, 2, 3]
        assert type(told["record"].loss) is np.ndarray
        assert type(told["record"].rest[0]) is torch.Tensor
        assert type(told["model"].weight) is torch.nn.Parameter
        assert told["model"](torch.ones(1, 4)).shape == (1, 2)
        assert told["device"] == torch.device("cpu")


@pytest.mark.parametrize("scenario", ["returns_a_part", "returns_a_torchax_part"])
def test_a_part_of_an_array_is_refused(worlds: Worlds, scenario: str) -> None:
    for ended in worlds.run(scenario).ranks:
        assert ended.how == "Unshippable"
        assert "an array (8, 2) float32 sharded over 4 devices" in ended.value
        assert "xla_nb.torchax.gather(x)" in ended.value


def test_what_lies_on_a_device_is_not_sent_to_ranks(worlds: Worlds) -> None:
    for array, tensor in worlds.run("sends_to_others", ranks=2).values():
        assert "it is or contains a JAX array: " in array
        assert "numpy.asarray(x)" in array
        assert "it is or contains a torchax tensor: " in tensor
        assert "x.cpu()" in tensor
