"""Real Ray clusters on this machine, and what xla_nb leaves on it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Nodes:
    """A cluster of nodes that are processes of this machine."""

    def __init__(self, count: int, **head: Any) -> None:
        from ray.cluster_utils import Cluster

        # Short: the names of its sockets have a limit.
        self._folder = tempfile.mkdtemp(prefix="xr-", dir="/tmp")
        self._before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = self._folder  # where Ray notes which cluster is this machine's
        Path(self._folder, "ray").mkdir()
        common = {"num_cpus": 2, "object_store_memory": 200 << 20}
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **common,
                "include_dashboard": False,
                **head,
            },
        )
        self._others = [self._cluster.add_node(**common) for _ in range(count - 1)]

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    @property
    def others(self) -> list[Any]:
        """The nodes beside the head."""
        return self._others

    def kill(self, node: Any) -> None:
        """As a machine that loses its power: nothing says goodbye."""
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        if self._before is not None:
            os.environ["RAY_TMPDIR"] = self._before
        shutil.rmtree(self._folder, ignore_errors=True)


def of_ours(*names: str) -> dict[int, str]:
    """The processes that these tests have started, with such a name of xla_nb's."""
    mark = f"XLA_NB_TEST={os.environ['XLA_NB_TEST']}"
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "comm").read_text().strip()
                ours = mark in (path / "environ").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if ours and name.startswith(names):
                found[int(path.name)] = name
    return found


def eventually(what: Callable[[], object], seconds: float = 20.0) -> object:
    """What becomes true while others work; fails with what it was last."""
    deadline = time.monotonic() + seconds
    while not (seen := what()):
        assert time.monotonic() < deadline, f"still {seen!r}"
        time.sleep(0.05)
    return seen
