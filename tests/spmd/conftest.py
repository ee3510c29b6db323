"""The fixture `devices`: runs a function of scenarios.py in one process that owns four devices."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = {
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "4",
    "XLA_THREAD_POOL_SIZE": "4",
    "PJRT_NPROC": "4",
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent)]),
}


@pytest.fixture(scope="session")
def process(
    home: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path_factory.mktemp("spmd")
    with (folder / "err").open("w") as errors:
        started = subprocess.Popen(
            [sys.executable, str(HERE / "devices.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)},
        )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n", (folder / "err").read_text()
    yield started
    started.communicate()


@pytest.fixture
def devices(process: subprocess.Popen[str]) -> Callable[..., Any]:
    """devices("scenario", *args) runs a scenario and returns its result."""

    def run(scenario: str, *args: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(base64.b64encode(pickle.dumps((scenario, args))).decode() + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process with the devices ended with {process.wait()}"
        fine, value = pickle.loads(base64.b64decode(answer))
        assert fine, value
        return value

    return run
