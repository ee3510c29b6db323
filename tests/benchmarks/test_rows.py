"""Every benchmark can run one round; the figures themselves are not checked."""

import importlib
import math

import pytest

from benchmarks.__main__ import ALL

NEEDS = {"page": pytest.mark.browser, "hosts": pytest.mark.ray}
pytestmark = [pytest.mark.slow, pytest.mark.leaves("temporary")]  # kernels of rivals are killed


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in ALL])
def test_one_round_yields_finite_figures(name):
    rows = list(importlib.import_module(f"benchmarks.{name}").rows(1))
    assert rows
    for row in rows:
        assert math.isfinite(row.figure) and row.against > 0, row
