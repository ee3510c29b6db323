"""Two hosts with different addresses, in network namespaces if this machine can create them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ray_nodes import eventually, of_ours

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

PORT = 6399
IP = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
SCRIPT = """
import json
import xla_nb

def f(rank):
    import torch, torch_xla, torch_xla.core.xla_model as xm
    total = xm.all_reduce("sum", torch.ones(2, device=torch_xla.device()) * (rank + 1))
    print("rank", rank, flush=True)
    return total.tolist()

run = xla_nb.spawn(f, on="ray", hosts=2, n=2, view="none", timeout=100)
print(json.dumps({"results": run.results, "hosts": list(run.state.hosts)}))
"""


@dataclass
class Lan:
    """Two connected hosts: `ends` has their addresses by name."""

    ends: dict[str, str]

    def run(self, end: str, *command: str, **env: str) -> str:
        """Run a command on one host; return its output."""
        done = subprocess.run(
            [str(IP), "netns", "exec", end, *command],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pids(self, end: str) -> list[int]:
        """The process IDs of a host."""
        done = subprocess.run(
            [str(IP), "netns", "pids", end], capture_output=True, text=True, check=True
        )
        return [int(pid) for pid in done.stdout.split()]


def ip(*words: str) -> bool:
    if IP is None:
        return False
    return subprocess.run([IP, *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def lan() -> Iterator[Lan]:
    mark = uuid.uuid4().hex[:6]
    names = [f"xn{mark}{end}" for end in "ab"]
    try:
        if not all(ip("netns", "add", name) for name in names):
            pytest.skip("network namespaces cannot be created here")
        wires = [f"v{name}" for name in names]
        assert ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        ends = {}
        for number, (name, wire) in enumerate(zip(names, wires, strict=True), 1):
            ends[name] = f"10.77.0.{number}"
            assert ip("link", "set", wire, "netns", name)
            assert ip("-n", name, "addr", "add", f"{ends[name]}/24", "dev", wire)
            assert ip("-n", name, "link", "set", wire, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield Lan(ends)
    finally:
        for name in names:
            ip("netns", "del", name)


@contextlib.contextmanager
def cluster(lan: Lan) -> Iterator[str]:
    """Start Ray on both hosts; yield its address."""
    folder = tempfile.mkdtemp(prefix="xr-", dir="/tmp")
    head, other = lan.ends
    ray = str(Path(sys.executable).parent / "ray")
    address = f"{lan.ends[head]}:{PORT}"
    common = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
    env = {"RAY_TMPDIR": folder, "TMPDIR": folder}
    try:
        first = [f"--node-ip-address={lan.ends[head]}", f"--port={PORT}"]
        lan.run(head, ray, "start", "--head", *first, "--include-dashboard=false", *common, **env)
        second = [f"--node-ip-address={lan.ends[other]}", f"--address={address}"]
        lan.run(other, ray, "start", *second, *common, **env)
        yield address
    finally:
        for pid in [pid for end in lan.ends for pid in lan.pids(end)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def test_ranks_reduce_across_hosts_with_different_addresses(lan: Lan) -> None:
    with cluster(lan) as address:
        head = next(iter(lan.ends))
        output = lan.run(head, sys.executable, "-c", SCRIPT, RAY_ADDRESS=address)
        eventually(lambda: not of_ours("xla_nb-rank", "xla_nb-job"))
    outcome = json.loads(output.splitlines()[-1])
    assert outcome["results"] == {str(rank): [10.0, 10.0] for rank in range(4)}
    assert all(any(ip in name for ip in lan.ends.values()) for name in outcome["hosts"])
