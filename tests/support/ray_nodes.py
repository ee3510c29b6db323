"""Real Ray clusters on this machine, and the processes that xla_nb leaves on it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Start no workers before they are needed: on two nodes, four would import Ray for nothing.
_NO_SPARE = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}


def _agents() -> dict[str, int]:
    """Free ports for a node's agents. Without them, the raylet waits 15 seconds for the agents to
    choose ports, and aborts on a busy machine."""
    names = "metrics_agent", "metrics_export", "runtime_env_agent", "dashboard_agent_listen"
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in names]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return {f"{n}_port": one.getsockname()[1] for n, one in zip(names, found, strict=True)}


@contextlib.contextmanager
def _patience_for_nodes() -> Iterator[None]:
    """Make each search for a node wait until the node is up. On a busy machine that may take longer
    than the 30 seconds after which Ray gives up and leaves the node's processes behind.

    A raylet also aborts if its agents do not write their ports to files within 15 seconds. Since
    the ports are known here, these files are written in advance (ray-project/ray#65983)."""
    services = importlib.import_module("ray._private.services")
    get_node, start_raylet = services.get_node, services.start_raylet
    parameters = inspect.signature(start_raylet)

    def started(*args: Any, **options: Any) -> Any:
        given = parameters.bind(*args, **options).arguments
        raylet = importlib.import_module("ray._raylet")
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            raylet.persist_port(given["session_dir"], given["node_id"], name, given[name])
        return start_raylet(*args, **options)

    def patient(*args: Any) -> Any:
        deadline = time.monotonic() + 180
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node, services.start_raylet = patient, started
    try:
        yield
    finally:
        services.get_node, services.start_raylet = get_node, start_raylet


class Nodes:
    """A Ray cluster whose nodes are processes on this machine."""

    def __init__(self, count: int, **head: Any) -> None:
        from ray.cluster_utils import Cluster

        # In /tmp, because paths of Ray's sockets have a length limit.
        self._folder = tempfile.mkdtemp(prefix="xr-", dir="/tmp")
        ours = {"RAY_TMPDIR": self._folder} | _NO_SPARE  # Ray records this machine's cluster there
        self._before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        Path(self._folder, "ray").mkdir()
        self._common: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 200 << 20}
        with _patience_for_nodes():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    **self._common,
                    **_agents(),
                    # Start nothing that the tests do not need.
                    "include_dashboard": False,
                    "include_log_monitor": False,
                    "no_monitor": True,
                    **head,
                },
            )
        self._others: list[Any] = []
        for _ in range(count - 1):
            self.add()
        self.has_noticed()  # Ray leaves open the files it opens here for this

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    @property
    def others(self) -> list[Any]:
        """The nodes other than the head."""
        return self._others

    def add(self) -> None:
        """Start another node."""
        with _patience_for_nodes():
            self._others.append(self._cluster.add_node(**self._common, **_agents()))

    def kill(self, node: Any) -> None:
        """Kill a node without a clean shutdown, as a power failure would."""
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def has_noticed(self) -> None:
        """Wait until the cluster knows which nodes are gone, and no longer gives them work."""
        self._cluster.wait_for_nodes(60)

    def kill_head(self) -> None:
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        for name, value in self._before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self._folder, ignore_errors=True)


def of_ours(*names: str) -> dict[int, str]:
    """Processes started by these tests, as name by pid, whose names start with one of `names`."""
    mark = f"XLA_NB_TEST={os.environ['XLA_NB_TEST']}"
    processes = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "comm").read_text().strip()
                ours = mark in (path / "environ").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if ours and name.startswith(names):
                processes[int(path.name)] = name
    return processes


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> object:
    """Wait until the condition holds and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r}"
        time.sleep(0.05)
    return value
