"""Ranks on the hosts of a Ray cluster, from the kernel's side.

Ray is not imported here: requests to the cluster go to a helper process, `driver`. When it ends,
everything it started ends too.
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

from xla_nb import linux
from xla_nb.engines.child import Child, Feed, in_memory
from xla_nb.engines.ray import faults
from xla_nb.errors import LaunchError
from xla_nb.messages import channel
from xla_nb.messages.orders import Request
from xla_nb.runtimes.fit import Fit, OnWait


class RayEngine:
    """A cluster, through the helper process that is its client, restarted when it has ended.

    address: "ray://HOST:PORT", or any value of RAY_ADDRESS; empty for a cluster on this machine,
    which is started if there is none.
    """

    here = False

    def __init__(self, address: str) -> None:
        self.address = address
        self._child: Child | None = None
        self._lock = threading.RLock()
        self._launches = 0

    def fit(self, runtime: str, n: int | None, user_env: Mapping[str, str]) -> Fit:
        """A fit with only the variables set in this process: each host fits the launch itself."""
        return Fit("", n, changed(), ())

    def start(self, request: Request, fit: Fit, parcel: int, waiting: OnWait) -> Feed:
        """Start a run on all hosts, one at a time; return its events. Raises LaunchError."""
        modules = Path(request.program).parent.iterdir() if request.program else ()
        program = {file.name: file.read_bytes() for file in modules}
        reader, writer = channel.pair()
        with self._lock, writer, in_memory(pickle.dumps((request, fit.env, program))) as file:
            try:
                child = self._launch(waiting, writer.fileno(), parcel, file)
            except BaseException:
                reader.close()
                raise
        return Feed(reader, child, functools.partial(why_ended, child))

    def _launch(self, waiting: OnWait, *files: int) -> Child:
        """Request a launch and wait until it is done; return the helper process."""
        child = self._started()
        self._launches += 1
        number = self._launches
        try:
            child.send({"do": "launch", "id": number}, *files)
            self._wait(child, number, waiting)
        except OSError:  # it has just ended
            raise LaunchError(why_ended(child)) from None
        except KeyboardInterrupt:
            self._tell({"do": "abandon", "id": number})
            raise
        return child

    def _started(self) -> Child:
        if self._child is None or not self._child.alive:
            self.close()
            module = "xla_nb.engines.ray.driver"
            self._child = Child(module, [self.address], dict(os.environ))
        return self._child

    def _wait(self, child: Child, number: int, waiting: OnWait) -> None:
        """Wait until the launch is done. Raises LaunchError if it is refused."""
        message, since = "starting the process that connects to Ray …", time.monotonic()
        while True:
            reply = child.receive(lambda: waiting(time.monotonic() - since, message))  # noqa: B023
            if reply is None:
                raise LaunchError(why_ended(child))
            if reply["id"] != number:  # to an abandoned launch
                continue
            if "refused" in reply:
                if reply.get("spent"):  # cannot connect again: the next launch starts a new one
                    self.close()
                raise LaunchError(reply["refused"])
            if "done" in reply:
                return
            if reply["waiting"] != message:
                message, since = reply["waiting"], time.monotonic()

    def signal(self, run: str, pids: Mapping[str, Sequence[int]], number: int) -> None:
        """Send a signal to processes, also stopped ones, given by the names of their hosts."""
        pid_lists = {host: list(numbers) for host, numbers in pids.items()}
        self._tell({"do": "signal", "run": run, "pids": pid_lists, "number": number})

    def end(self, run: str) -> None:
        """Tell the live ranks of this run, on all hosts, that no more programs will follow."""
        self._tell({"do": "end", "run": run})

    def kill(self, run: str) -> None:
        """Kill every process of the run, on all hosts."""
        self._tell({"do": "kill", "run": run})

    def ask(self, run: str) -> None:
        """Ask the ranks on all hosts for their stacks."""
        self._tell({"do": "ask", "run": run})

    def _tell(self, request: Mapping[str, Any]) -> None:
        """Send the helper process a request without a reply; do nothing if it has ended."""
        child = self._child  # another thread may close it concurrently
        if child is not None:
            with contextlib.suppress(OSError):
                child.send(request)

    def close(self) -> None:
        """End the helper process and everything it started in the cluster."""
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None


def why_ended(child: Child) -> str:
    """Why the helper process has ended; empty if it has not."""
    if not child.ended_within(1.0):
        return ""
    return faults.client_ended(child.process.returncode, child.last_output())


#: Variables that describe a machine, by prefix, and its paths, by name; importing torch_xla sets
#: some of them. To pass these to ranks, use --env.
_OF_MACHINE = ("PJRT_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "RAY_", "CONDA_")
_OF_PATHS = (
    *("PATH", "HOME", "PWD", "TMPDIR", "USER", "LOGNAME", "HOSTNAME", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
)


def changed() -> dict[str, str]:
    """The variables set since this process started, except those that describe its machine."""
    initial = linux.first_environ()
    return {
        name: value
        for name, value in os.environ.items()
        if initial.get(name) != value and not name.startswith(_OF_MACHINE) and name not in _OF_PATHS
    }


def address(on: str, environ: Mapping[str, str]) -> str:
    """The address for `--on`: a ray:// address itself; for "ray", RAY_ADDRESS, otherwise the
    cluster to which this notebook is connected; empty if there is none."""
    if on != "ray":
        return on
    preset = environ.get("RAY_ADDRESS", "")
    return preset if preset not in ("", "auto", "local") else _connected_to()


def _connected_to() -> str:
    """The address to which the notebook's own `ray.init()` connected."""
    ray: Any = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return ""
        client: Any = sys.modules.get("ray.util.client")
        if client is not None and client.ray.is_connected():  # perhaps only that port is reachable
            return f"ray://{client.ray.get_context().client_worker._conn_str}"
        gcs_address: str = ray.get_runtime_context().gcs_address
    except Exception:  # such as a folder called ray, or another version of Ray
        return ""
    return gcs_address
