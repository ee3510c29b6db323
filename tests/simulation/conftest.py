"""The fixture `simulate` runs a function of scenarios.py on the ranks of a simulated host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.harness import Job, Launcher, job


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("simulation"))
    yield started
    started.close()


@pytest.fixture
def simulate(launcher: Launcher) -> Callable[..., Job]:
    """simulate("scenario", ranks=4, env={...}) runs a scenario and returns its finished job."""

    def run(scenario: str, **options: Any) -> Job:
        return launcher.run(job(scenario, **options))[0]

    return run
