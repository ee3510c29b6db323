"""Training in four processes gives the same results as training in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.worlds import scenarios
from tests.support.worlds.worlds import Worlds


@pytest.fixture(scope="module")
def reference() -> Any:
    return scenarios.reference()


WHOLE = dict.fromkeys(("0.weight", "0.bias", "2.weight", "2.bias"), "PartitionSpec()")
CUT = WHOLE | {
    "0.weight": "PartitionSpec('data',)",
    "0.bias": "PartitionSpec('data',)",
    "2.weight": "PartitionSpec(None, 'data')",
}


@pytest.mark.parametrize(
    ("scenario", "cuts"),
    [
        pytest.param("trains_data_parallel", WHOLE, marks=pytest.mark.slow),
        ("trains_parameters_sharded", CUT),
    ],
)
def test_training_matches_a_single_process(
    worlds: Worlds, reference: Any, scenario: str, cuts: dict[str, str]
) -> None:
    losses, weights = reference
    assert losses[-1] < 0.7 * losses[0]
    for rank_losses, rank_weights, rank_cuts in worlds.run(scenario).values():
        assert rank_losses == pytest.approx(losses, abs=1e-3)
        for name, weight in rank_weights.items():
            torch.testing.assert_close(weight, weights[name], atol=1e-3, rtol=1e-3)
        assert rank_cuts == cuts
