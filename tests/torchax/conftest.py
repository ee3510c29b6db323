"""The fixture `world`: runs a function of world_scenarios.py in a JAX world of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchax.worlds import Worlds
from xla_nb.errors import LaunchError
from xla_nb.runtimes import versions

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        versions.check_versions()
    except LaunchError as missing:
        for item in items:
            if item.path.parent == HERE and "worlds" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=str(missing)))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    started = Worlds(tmp_path_factory.mktemp("worlds"))
    yield started
    started.close()
