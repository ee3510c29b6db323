"""xla_nb.torchax: values are sharded or replicated over the ranks, and gathered again."""

from __future__ import annotations

import numpy as np
import torch

from tests.support.worlds.worlds import Worlds

WIDE = torch.arange(32.0).reshape(8, 4)
KINDS = {
    "torch": "Tensor",
    "whole numbers": "Tensor",
    "bfloat16": "Tensor",
    "numpy": "ArrayImpl",
    "jax": "ArrayImpl",
    "torchax": "Tensor",
    "uneven": ["Tensor", ("Tensor",)],
    "parameter": "Tensor",
}


def test_sharded_and_replicated_values_can_be_gathered_on_every_rank(worlds: Worlds) -> None:
    for rank, results in enumerate(worlds.run("round_trips").values()):
        for way, part in (("sharded", (2, 4)), ("replicated", (8, 4))):
            assert results[way]["kinds"] == KINDS
            assert results[way]["parameter"]
            assert results[way]["part"] == part
            for back in (results[way]["back"], results[way]["again"]):
                for name in ("torch", "torchax", "parameter"):
                    assert torch.equal(back[name], WIDE)
                    assert type(back[name]) in (torch.Tensor, torch.nn.Parameter)
                assert torch.equal(back["bfloat16"], WIDE.bfloat16())
                assert back["whole numbers"].tolist() == list(range(8))
                assert np.array_equal(back["numpy"], WIDE.numpy())
                assert np.array_equal(back["jax"], np.arange(8.0))
                assert [type(back[name]) for name in ("numpy", "jax")] == [np.ndarray] * 2
                assert back["uneven"][0].tolist() == [1, 1, 1]
                assert back["uneven"][1][0].tolist() == 1
        tensor, array = results["local"]
        assert tensor.tolist() == [[float(n // 2)] * 3 for n in range(8)]
        assert array.tolist() == [n // 2 for n in range(8)]
        assert [each.tolist() for each in results["own"]] == [[rank, rank]] * 2


REFUSED = {
    "rows": "differ in shape, type or keys: 3 rows on ranks 0–2 and 1 row on rank 3.",
    "rows in a dict": "differ in shape, type or keys: 3 rows on ranks 0–2 and 1 row on rank 3.",
    "columns": "keys: those of ranks 0, 2, 3 and those of rank 1.",
    "types": "keys: those of rank 0 and those of ranks 1–3.",
    "keys": "keys: those of rank 0 and those of ranks 1–3.",
    "number": "a number has no first dimension",
    "model": "takes tensors, arrays and numbers, not function.",
    "column of a grid": "along the axis 'model' of the mesh {'data': 2, 'model': 2} take the same",
    "row of a grid": "[0, 1]",
    "one weight": "on every rank, but ranks 0, 1, 3 and rank 2 differ.",
    "weights": "but rank 0, rank 1, rank 2 and rank 3 differ.",
}


def test_values_that_do_not_fit_together_are_refused_on_every_rank(worlds: Worlds) -> None:
    for found, total in worlds.run("parts_that_differ").values():
        assert found.keys() == REFUSED.keys()
        for name, words in REFUSED.items():
            assert words in found[name], name
        assert total == 4  # the ranks can still meet


def test_mesh_covers_the_devices_of_all_ranks(worlds: Worlds) -> None:
    numbers = np.arange(16.0).reshape(4, 4)
    for rank, results in enumerate(worlds.run("meshes").values()):
        assert results["plain"] == {"data": 4}
        assert results["grid"] == {"data": 2, "model": 2}
        assert results["order"] == [0, 1, 2, 3]
        row, column = 2 * (rank // 2), 2 * (rank % 2)
        assert np.array_equal(results["part"], numbers[row : row + 2, column : column + 2])
        assert np.array_equal(results["back"], numbers)
        assert "does not cover the 4 devices" in results["refused"]
