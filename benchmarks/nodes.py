"""Run as a process: a Ray cluster of so many nodes of this machine, until its input is closed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start one; gives its address."""
    command = [sys.executable, "-m", "benchmarks.nodes", str(nodes)]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        assert process.stdin is not None
        process.stdin.close()


def main(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="xr-", dir="/tmp")  # short: its sockets' names have a limit
    Path(folder, "ray").mkdir()
    os.environ["RAY_TMPDIR"] = folder
    each = {"num_cpus": 2, "object_store_memory": 200 << 20}
    made = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**each)
        print(made.address, flush=True)
        sys.stdin.read()
    finally:
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
