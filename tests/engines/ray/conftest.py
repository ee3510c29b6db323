"""A Ray cluster of three nodes on this machine, and a notebook that uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.ray.ray_nodes import Nodes
from tests.support.kernel import Notebook

HERE = Path(__file__).parent
HOSTS = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        for item in items:
            if item.path.parent == HERE and item.get_closest_marker("ray"):
                assert not os.environ.get("CI"), "CI has Ray"
                item.add_marker(pytest.mark.skip(reason="Ray is not installed"))


@pytest.fixture(scope="module")
def nodes(home: None) -> Iterator[Nodes]:
    started = Nodes(HOSTS)
    yield started
    started.close()


@pytest.fixture(scope="module")
def on_ray(nodes: Nodes) -> Iterator[Notebook]:
    """A notebook that finds the cluster, its hosts warm. Not the one of all tests: what launched
    cells bind, torch among it, becomes real there when a later test says one of their names."""
    notebook = Notebook(RAY_ADDRESS=nodes.address)
    notebook.ok("%load_ext xla_nb")
    notebook.ok(f"%%xla_spawn -n 1 --on ray --hosts {HOSTS}\ndef warm(rank): pass", timeout=300)
    yield notebook
    notebook.close()
