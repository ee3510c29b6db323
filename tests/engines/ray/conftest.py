"""A Ray cluster of nodes on this machine and a notebook connected to it: three nodes unless a test
file sets `HOSTS`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import COLD, Notebook
from tests.support.ray_nodes import Nodes

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray"):
        return
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("ray"):
            assert not os.environ.get("CI"), "CI has Ray"
            item.add_marker(pytest.mark.skip(reason="Ray is not installed"))


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> int:
    return getattr(request.module, "HOSTS", 3)


@pytest.fixture(scope="module")
def nodes(home: None, hosts: int) -> Iterator[Nodes]:
    started = Nodes(hosts)
    yield started
    started.close()


@pytest.fixture(scope="module")
def on_ray(nodes: Nodes, hosts: int) -> Iterator[Notebook]:
    """A notebook connected to the cluster, with warm hosts. Not the session's notebook: cells
    launched here bind names such as torch, and a later test that uses one would import it."""
    notebook = Notebook(RAY_ADDRESS=nodes.address)
    notebook.ok(COLD)  # nothing is launched on this machine
    notebook.ok(f"%%xla_spawn -n 1 --on ray --hosts {hosts}\ndef warm(rank): pass", timeout=300)
    yield notebook
    notebook.close()
