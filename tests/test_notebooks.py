"""The notebooks that ship, executed as `make demo` does it: their own asserts hold."""

import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@pytest.mark.slow
def test_the_quickstart_trains_one_model_on_four_ranks():
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "run_demo.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines() if "'accuracy'" in line]
    assert [row[:2] for row in rows] == [[str(rank), "xla:0"] for rank in range(4)]
