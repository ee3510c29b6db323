"""A process that runs a Ray cluster on this machine until its standard input is closed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.ray_nodes import Nodes


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start a Ray cluster of `nodes` nodes in its own process; yields its address."""
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


def main(count: int) -> None:
    with contextlib.closing(Nodes(count)) as nodes:
        print(nodes.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
