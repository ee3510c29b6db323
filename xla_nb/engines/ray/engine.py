"""Ranks on the hosts of a Ray cluster, from the kernel's side.

The rule: Ray is not imported here. What is asked of the cluster is asked of our own process
beside the kernel, and when that one ends, so does all that it started.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xla_nb.engines.child import Child, in_memory
from xla_nb.engines.ray import faults
from xla_nb.errors import LaunchError, UsageError
from xla_nb.protocol import channel
from xla_nb.protocol.order import Order
from xla_nb.runtimes.fit import Fit, OnWait
from xla_nb.topology.slices import Seat


class ClusterHandle:
    """A cluster, and our process that is its client; started again when it has ended.

    address: "ray://HOST:PORT", or what RAY_ADDRESS may be; empty for one of this machine's, which
    is started if there is none.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._child: Child | None = None
        self._lock = threading.RLock()
        self._requests = 0

    def launch(
        self, user_env: Mapping[str, Any], files: tuple[int, int], waiting: OnWait
    ) -> socket.socket:
        """Start a run; gives the socket of its events. Raises LaunchError."""
        ours, theirs = channel.pair()
        try:
            with theirs:
                self._ask({"do": "launch", **user_env}, (theirs.fileno(), *files), waiting)
        except BaseException:
            ours.close()
            raise
        return ours

    def look(self, user_env: Mapping[str, Any], into: int, waiting: OnWait) -> None:
        """Have hosts placed, and their seats written into a file. Raises LaunchError."""
        self._ask({"do": "look", **user_env}, (into,), waiting)

    def _ask(self, request: Mapping[str, Any], files: Sequence[int], waiting: OnWait) -> None:
        """One request at a time, until it has been carried out."""
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
                child.ended_within(1.0)
                raise LaunchError(_why_ended(child)) from None
            except BaseException:  # somebody has interrupted it
                self.say({"do": "abandon", "id": number})
                raise

    def _started(self) -> Child:
        if self._child is None or not self._child.alive:
            self.close()
            module = "xla_nb.engines.ray.driver"
            self._child = Child(module, [self.address], dict(os.environ))
        return self._child

    def _wait(self, child: Child, number: int, waiting: OnWait) -> None:
        """Until the launch has been made, or refused."""
        what, since = "starting the process that speaks to the Ray cluster …", time.monotonic()
        while True:
            answer = child.receive(lambda: waiting(time.monotonic() - since, what))  # noqa: B023
            if answer is None:
                raise LaunchError(_why_ended(child))
            if answer["id"] != number:  # of one that was abandoned
                continue
            if "refused" in answer:
                if answer.get("spent"):  # of no more use: the next launch starts another one
                    self.close()
                raise LaunchError(answer["refused"])
            if "done" in answer:
                return
            if answer["waiting"] != what:
                what, since = answer["waiting"], time.monotonic()

    def say(self, request: Mapping[str, Any], *fds: int) -> None:
        """Tell our process something; nothing if it is gone."""
        child = self._child  # which another thread may close meanwhile
        if child is not None:
            with contextlib.suppress(OSError):
                child.send(request, *fds)

    def why_ended(self) -> str:
        """Why our process has ended; empty if it has not."""
        child = self._child
        if child is None or not child.ended_within(1.0):
            return ""
        return _why_ended(child)

    def close(self) -> None:
        """End our process, and with it all that it started in the cluster."""
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None


def _why_ended(child: Child) -> str:
    return faults.client_ended(child.process.returncode, child.last_output())


class RayEngine:
    """A cluster as one launch wants it: so many hosts, in so many slices.

    `wait` is how many seconds the launch may wait for the cluster to have them.
    """

    def __init__(
        self, cluster: ClusterHandle, hosts: int | None, slices: int | None, wait: float
    ) -> None:
        self._cluster = cluster
        self._asked = {"hosts": hosts, "slices": slices, "wait": wait}

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """Nothing but what was set here: each host fits the launch to itself."""
        if n is not None and n < 1:
            raise UsageError(f"-n {n}: a host has at least 1 rank")
        return Fit("", n, changed(), ())

    def start(
        self, order: Order, parcel: int, imports: Sequence[str], waiting: OnWait
    ) -> socket.socket:
        """Start it on all hosts; gives the socket that its events come from."""
        folder = Path(order.program).parent
        program = {file.name: file.read_bytes() for file in folder.iterdir()}
        with in_memory(pickle.dumps((order, program))) as told:
            return self._cluster.launch(self._asked, (parcel, told), waiting)

    def look(self, waiting: OnWait) -> list[Seat]:
        """The hosts that a launch would have, held for it. Raises LaunchError."""
        fd = os.memfd_create("xla_nb-seats", os.MFD_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 # a descriptor, not a path
            self._cluster.look(self._asked, fd, waiting)
            file.seek(0)  # where the other process has written
            seats: list[Seat] = pickle.load(file)
        return seats

    def interrupt(self, run: str, pids: Mapping[str, Sequence[int]]) -> None:
        """Ask ranks to stop at the next line of Python."""
        found = {host: list(numbers) for host, numbers in pids.items()}
        self._cluster.say({"do": "interrupt", "run": run, "pids": found})

    def kill(self, run: str) -> None:
        """End every process of the run, on all hosts."""
        self._cluster.say({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """Have the ranks asked where they are."""
        self._cluster.say({"do": "ask", "run": run})

    def fetch(self, run: str, host: str, file: str) -> bytes | None:
        """The file as it lies on its host; None where that cannot be reached."""
        reader, writer = os.pipe()
        with open(reader, "rb", buffering=0) as pipe:  # noqa: PTH123 # a descriptor, not a path
            self._cluster.say({"do": "fetch", "run": run, "host": host, "file": file}, writer)
            os.close(writer)
            return _whole(_until_the_end(pipe.fileno()))

    def why_lost(self) -> str:
        """Why there are no more events."""
        return self._cluster.why_ended()


def _until_the_end(fd: int) -> bytes:
    found: list[bytes] = []
    while channel.ready(fd, faults.PATIENCE) and (block := os.read(fd, 1 << 20)):
        found.append(block)
    return b"".join(found)


def _whole(sent: bytes) -> bytes | None:
    """A file that came in blocks, each behind its size; None if the empty one at its end is
    missing: its host was lost meanwhile."""
    found: list[bytes] = []
    at = 0
    while len(sent) >= at + 4:
        size = int.from_bytes(sent[at : at + 4], "big")
        if not size:
            return b"".join(found)
        found.append(sent[at + 4 : at + 4 + size])
        at += 4 + size
    return None


#: Variables that are a machine's own; importing torch_xla sets some of them.
_MACHINES = ("PJRT_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "RAY_")


def changed() -> dict[str, str]:
    """The variables that were set in this process since it began (proc(5), environ), but for what
    describes its own machine."""
    lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    began = dict(os.fsdecode(line).partition("=")[::2] for line in lines if line)
    return {
        name: value
        for name, value in os.environ.items()
        if began.get(name) != value and not name.startswith(_MACHINES)
    }


def address(wanted: str, environ: Mapping[str, str]) -> str:
    """The cluster that `--on` means: a ray:// address; for "ray" what RAY_ADDRESS says, else the
    one that this notebook has opened itself; empty where there is none."""
    if wanted != "ray":
        return wanted
    told = environ.get("RAY_ADDRESS", "")
    return told if told not in ("", "auto", "local") else _opened()


def _opened() -> str:
    """Where the notebook's own `ray.init()` has led."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return ""
    client: Any = sys.modules.get("ray.util.client")
    try:
        if client is not None and client.ray.is_connected():  # from where only that port is
            return f"ray://{client.ray.get_context().client_worker._conn_str}"
        found: str = ray.get_runtime_context().gcs_address
    except Exception:  # whatever it is, it is no address
        return ""
    return found
