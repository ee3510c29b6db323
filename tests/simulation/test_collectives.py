"""Every collective equals what one process computes from all ranks' inputs.

Each `check_` function of scenarios.py is one test, which runs on every rank and compares there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.harness import Job

SCENARIOS = Path(__file__).with_name("scenarios.py").read_text()
CHECKS = re.findall(r"^def (check_\w+)", SCENARIOS, re.MULTILINE)
TRAINING = [name for name in CHECKS if "training" in name or "batch_norm" in name]


@pytest.mark.parametrize("check", [name for name in CHECKS if name not in TRAINING])
def test_collectives_on_four_ranks(simulate: Callable[..., Job], check: str) -> None:
    assert len(simulate(check).values()) == 4


@pytest.mark.parametrize("check", TRAINING)
def test_training_on_two_ranks(simulate: Callable[..., Job], check: str) -> None:
    assert len(simulate(check, ranks=2).values()) == 2
