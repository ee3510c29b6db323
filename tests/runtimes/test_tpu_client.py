"""TPU discovery happens once, checked with a really traced Pallas call and JAX's TPU client."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_jax_creates_its_client_without_discovery_despite_overlapping_calls(tmp_path):
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1].joinpath("support", "torch_xla_discovery.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    ours, torch_xlas = json.loads(done.stdout)
    end = "Only interpret mode is supported on CPU backend."
    assert ours == {"creations": ["true"], "ends": [end]}
    assert torch_xlas == {"creations": [None], "ends": [end]}, "torch_xla does it itself now"
