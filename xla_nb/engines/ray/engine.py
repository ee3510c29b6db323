"""Ranks on the hosts of a Ray cluster, from the kernel's side.

Ray is not imported here: requests to the cluster go to a process of ours, `driver`. When that
process ends, everything it started ends too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xla_nb.engines.base import Where
from xla_nb.engines.child import Child, ChildFeed, in_memory
from xla_nb.engines.ray import faults
from xla_nb.errors import LaunchError, UsageError
from xla_nb.protocol import channel
from xla_nb.protocol.order import Request
from xla_nb.runtimes.fit import Fit, OnWait
from xla_nb.topology import slices
from xla_nb.topology.slices import Seat


class ClusterHandle:
    """A cluster, and our process that is its client; restarted when it has ended.

    address: "ray://HOST:PORT", or any value of RAY_ADDRESS; empty for a cluster on this machine,
    which is started if there is none.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._child: Child | None = None
        self._lock = threading.RLock()
        self._requests = 0

    def launch(
        self, options: Mapping[str, Any], files: tuple[int, int], waiting: OnWait
    ) -> ChildFeed:
        """Start a run; returns its events. Raises LaunchError."""
        ours, theirs = channel.pair()
        try:
            with theirs:
                child = self._ask({"do": "launch", **options}, (theirs.fileno(), *files), waiting)
        except BaseException:
            ours.close()
            raise
        return ChildFeed(ours, child, functools.partial(_why_ended, child))

    def look(self, options: Mapping[str, Any], into: int, waiting: OnWait) -> None:
        """Place hosts, and write their seats into a file. Raises LaunchError."""
        self._ask({"do": "look", **options}, (into,), waiting)

    def _ask(self, request: Mapping[str, Any], files: Sequence[int], waiting: OnWait) -> Child:
        """Send a request and wait until it is done; one at a time. Gives our process. Raises
        LaunchError."""
        with self._lock:
            child = self._started()
            self._requests += 1
            number = self._requests
            try:
                child.send({**request, "id": number}, *files)
                self._wait(child, number, waiting)
            except LaunchError:
                raise
            except OSError:  # it has ended just now
                raise LaunchError(_why_ended(child)) from None
            except BaseException:  # an interrupt
                self.send({"do": "abandon", "id": number})
                raise
            return child

    def _started(self) -> Child:
        if self._child is None or not self._child.alive:
            self.close()
            module = "xla_nb.engines.ray.driver"
            self._child = Child(module, [self.address], dict(os.environ))
        return self._child

    def _wait(self, child: Child, number: int, waiting: OnWait) -> None:
        """Wait until the request is done. Raises LaunchError if it is refused."""
        what, since = "starting the process that connects to Ray …", time.monotonic()
        while True:
            reply = child.receive(lambda: waiting(time.monotonic() - since, what))  # noqa: B023
            if reply is None:
                raise LaunchError(_why_ended(child))
            if reply["id"] != number:  # to an abandoned request
                continue
            if "refused" in reply:
                if reply.get("spent"):  # cannot connect again: the next launch starts a new one
                    self.close()
                raise LaunchError(reply["refused"])
            if "done" in reply:
                return
            if reply["waiting"] != what:
                what, since = reply["waiting"], time.monotonic()

    def send(self, request: Mapping[str, Any], *fds: int) -> None:
        """Send our process a request without a reply; does nothing if it has ended."""
        child = self._child  # another thread may close it meanwhile
        if child is not None:
            with contextlib.suppress(OSError):
                child.send(request, *fds)

    def close(self) -> None:
        """End our process and everything it started in the cluster."""
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None


def _why_ended(child: Child) -> str:
    """Why our process has ended; empty if it has not."""
    if not child.ended_within(1.0):
        return ""
    return faults.client_ended(child.process.returncode, child.last_output())


class RayClusters:
    """The Ray clusters that this process has used, by address."""

    def __init__(self) -> None:
        self._clusters: dict[str, ClusterHandle] = {}

    def engine(self, where: Where) -> RayEngine:
        """The cluster that --on means, for one launch. Raises UsageError for hosts that cannot form
        so many slices."""
        if where.hosts and where.slices:
            slices.check_equal(where.hosts, where.slices)
        cluster = address(where.on, {**os.environ, **where.env})
        handle = self._clusters.setdefault(cluster, ClusterHandle(cluster))
        return RayEngine(handle, where.hosts, where.slices, where.wait)

    def close(self) -> None:
        """Give back the hosts that are held for the next launch, and end what runs there."""
        while self._clusters:
            self._clusters.popitem()[1].close()


def provider() -> RayClusters:
    """The clusters of this process, none so far."""
    return RayClusters()


class RayEngine:
    """A cluster with the options of one launch.

    hosts, slices: how many of them; None for the cluster's own.
    wait: how long the launch may wait for free hosts, in seconds.
    """

    here = False

    def __init__(
        self, cluster: ClusterHandle, hosts: int | None, slices: int | None, wait: float
    ) -> None:
        self._cluster = cluster
        self._options = {"hosts": hosts, "slices": slices, "wait": wait}

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """Only the variables set in this process: each host fits the launch to itself.

        Raises UsageError if n is less than 1.
        """
        if n is not None and n < 1:
            raise UsageError(f"-n must be at least 1, not {n}.")
        return Fit("", n, changed(), ())

    def start(self, request: Request, fit: Fit, parcel: int, waiting: OnWait) -> ChildFeed:
        """Start a run on all hosts; returns its events. Raises LaunchError."""
        folder = Path(request.program).parent
        program = {file.name: file.read_bytes() for file in folder.iterdir()}
        with in_memory(pickle.dumps((request, fit.env, program))) as file:
            return self._cluster.launch(self._options, (parcel, file), waiting)

    def end(self, run: str) -> None:
        """Tell the live ranks of this run, on all hosts, that there is nothing more to come."""
        self._cluster.send({"do": "end", "run": run})

    def look(self, waiting: OnWait, simulated: bool) -> list[Seat]:
        """Seat the hosts that a launch would get; they are held for it. Raises LaunchError."""
        fd = os.memfd_create("xla_nb-seats", os.MFD_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 # a descriptor, not a path
            self._cluster.look({**self._options, "cpu": simulated}, fd, waiting)
            file.seek(0)  # the other process has written to it
            seats: list[Seat] = pickle.load(file)
        return seats

    def signal(self, run: str, pids: Mapping[str, Sequence[int]], number: int) -> None:
        """Send processes, given by their hosts' names, a signal, stopped ones too."""
        lists = {host: list(numbers) for host, numbers in pids.items()}
        self._cluster.send({"do": "signal", "run": run, "pids": lists, "number": number})

    def kill(self, run: str) -> None:
        """Kill every process of the run, on all hosts."""
        self._cluster.send({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """Ask the ranks on all hosts for their stacks."""
        self._cluster.send({"do": "ask", "run": run})

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """The file as it is on its host; None if the host cannot be reached."""
        reader, writer = os.pipe()
        with open(reader, "rb", buffering=0) as pipe:  # noqa: PTH123 # a descriptor, not a path
            self._cluster.send({"do": "fetch", "run": run, "host": host, "file": file}, writer)
            os.close(writer)
            return _whole(_until_the_end(pipe.fileno()))


def _until_the_end(fd: int) -> bytes:
    blocks: list[bytes] = []
    while channel.ready(fd, faults.PATIENCE) and (block := os.read(fd, 1 << 20)):
        blocks.append(block)
    return b"".join(blocks)


def _whole(sent: bytes) -> bytes | None:
    """A file sent in blocks, each after its size; None if the empty block at its end is missing,
    because the host was lost."""
    blocks: list[bytes] = []
    at = 0
    while len(sent) >= at + 4:
        size = int.from_bytes(sent[at : at + 4], "big")
        if not size:
            return b"".join(blocks)
        blocks.append(sent[at + 4 : at + 4 + size])
        at += 4 + size
    return None


#: Prefixes of variables that describe one machine; importing torch_xla sets some of them.
_OF_MACHINE = ("PJRT_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "RAY_")


def changed() -> dict[str, str]:
    """The variables set in this process since it started (proc(5), environ), except those that
    describe its machine."""
    lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    initial = dict(os.fsdecode(line).partition("=")[::2] for line in lines if line)
    return {
        name: value
        for name, value in os.environ.items()
        if initial.get(name) != value and not name.startswith(_OF_MACHINE)
    }


def address(on: str, environ: Mapping[str, str]) -> str:
    """The address for `--on`: a ray:// address itself; for "ray", RAY_ADDRESS, else the cluster
    that this notebook is connected to; empty if there is none."""
    if on != "ray":
        return on
    preset = environ.get("RAY_ADDRESS", "")
    return preset if preset not in ("", "auto", "local") else _connected_to()


def _connected_to() -> str:
    """The address to which the notebook's own `ray.init()` connected."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return ""
    client: Any = sys.modules.get("ray.util.client")
    try:
        if client is not None and client.ray.is_connected():  # perhaps only that port is reachable
            return f"ray://{client.ray.get_context().client_worker._conn_str}"
        gcs_address: str = ray.get_runtime_context().gcs_address
    except Exception:  # such as another version of Ray
        return ""
    return gcs_address
