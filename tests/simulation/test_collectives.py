"""Collectives give the same results as one process that computes from all ranks' inputs.

Each `check_` function of scenarios.py is one test, which runs on every rank.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.harness import Launcher, job

SCENARIOS = Path(__file__).with_name("scenarios.py").read_text()
CHECKS = re.findall(r"^def (check_\w+)", SCENARIOS, re.MULTILINE)
#: These compile a dozen graphs on each rank or move hundreds of megabytes. Faster checks would fail
#: with them.
SLOW = (
    "check_all_reduce_supports_every_operation_on_every_dtype",
    "check_every_collective_handles_values_of_many_chunks",
    "check_training_with_ddp_in_a_full_graph",
    "check_training_with_fsdp_in_a_full_graph",
    "check_in_place_collectives_update_the_same_tensors_as_torch_xla",
    "check_compiled_all_gather_and_functional_collectives",
    "check_compiled_collective_under_autocast",
)
TRAINING = [name for name in CHECKS if "training" in name or "batch_norm" in name]


def check_params(names: Iterable[str]) -> list[Any]:
    """Parameters for these checks, with the slow ones marked."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.fixture(scope="module")
def found(launcher: Launcher, request: pytest.FixtureRequest) -> Callable[[str, int], list[str]]:
    """found(check, ranks) returns the errors of a check by rank; one world runs all checks."""
    wanted = {
        ranks: [
            item.callspec.params["check"]
            for item in request.session.items
            if getattr(item, "function", None) is function
        ]
        for ranks, function in (
            (4, test_collectives_on_four_ranks),
            (2, test_training_on_two_ranks),
        )
    }

    @functools.cache
    def every(ranks: int) -> list[dict[str, str]]:
        env = {"CHECKS": json.dumps(wanted[ranks]), "ALARM": "500"}
        (ended,) = launcher.run(job("every_check", ranks=ranks, env=env))
        return ended.values()

    def of(check: str, ranks: int) -> list[str]:
        return [errors[check] for errors in every(ranks)]

    return of


@pytest.mark.parametrize("check", check_params(name for name in CHECKS if name not in TRAINING))
def test_collectives_on_four_ranks(found: Callable[[str, int], list[str]], check: str) -> None:
    assert found(check, 4) == [""] * 4


@pytest.mark.parametrize("check", check_params(TRAINING))
def test_training_on_two_ranks(found: Callable[[str, int], list[str]], check: str) -> None:
    assert found(check, 2) == [""] * 2
