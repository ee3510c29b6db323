"""One JAX world for the ranks of a run: its coordinator, how a rank joins it, and how it leaves.

JAX takes every process down, with a C++ stack, when one of them is gone. The rule here: nobody
but xla_nb ends a rank. The coordinator is a process of its own and never gives a rank up, so a
rank's end reaches the others as a Python exception in the collective that needs it, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xla_nb.errors import LaunchError
from xla_nb.linux import die_with_parent, name_process
from xla_nb.runtimes import jax_guard
from xla_nb.runtimes.jax_guard import Membership
from xla_nb.topology import addresses

LOOPBACK = "127.0.0.1"

#: Seconds; 31 years. Without heartbeats a rank that has left is not "unhealthy", which would
#: abort the others; that a process has died is seen by its job (processes.RankContext).
NEVER = 10**9

#: Seconds a rank waits for the others to join, after which JAX aborts it: longer than any job
#: waits for ranks that have lost one.
JOINING = 86_400


@dataclass(frozen=True)
class World:
    """What the ranks have in common: how many there are, and on each host; the coordinator's
    address, "name:port"; `platform` is "cpu", "cuda" or "tpu"."""

    address: str
    ranks: int
    platform: str
    ranks_here: int

    @property
    def several_hosts(self) -> bool:
        return self.ranks_here < self.ranks


class Coordinator:
    """The process in which the ranks' coordination service runs, by default on the loopback
    interface and a port that is free.

    Made in the job before it forks the ranks: the service has threads, the job must have none.
    """

    def __init__(self, ranks: int, host: str = LOOPBACK, port: int = 0) -> None:
        self._port = addresses.hold_port(host, port)
        self.address = f"{host}:{self._port.getsockname()[1]}"
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _coordinate(self.address, ranks, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            problem = told.read().decode(errors="replace")
        if problem != _READY:
            self.close()
            raise LaunchError(f"JAX's coordinator did not start on {self.address}: {problem}")

    def close(self) -> None:
        """When all ranks have ended: to a rank that is left its end would be fatal."""
        self._port.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


_READY = "ready"


def _coordinate(address: str, ranks: int, ready: int) -> NoReturn:
    try:
        die_with_parent()
        name_process("xla_nb-world")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _close_all_but(ready)
        from jax._src.lib import _jax

        service = _jax.get_distributed_runtime_service(address, ranks, heartbeat_timeout=NEVER)
        os.write(ready, _READY.encode())
        os.close(ready)
        while service:
            signal.pause()
    except BaseException as problem:
        os.write(ready, f"{type(problem).__name__}: {problem}".encode()[:4000])
    finally:
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """The job's socket to the notebook among them. The limit on numbers may be in the millions."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


# ---------------------------------------------------------------- a rank


def backend_started() -> bool:
    """Whether this process has opened JAX's devices; after that it can no longer fork ranks."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def read_variables() -> None:
    """Have JAX take its variables from this process's environment, as its import does it."""
    import jax

    for name, (kind, *_) in jax.config.meta.items():
        text = os.environ.get(name.upper())
        if text is not None:
            jax.config.update(name, _value(kind, text))


def _value(kind: object, text: str) -> object:
    """A flag's value from its text (jax/_src/config.py: bool_env, int_env)."""
    if kind is bool:
        return text.lower() in ("y", "yes", "t", "true", "on", "1")
    return kind(text) if kind in (int, float) and callable(kind) else text


def join(world: World, rank: int) -> None:
    """Make this process rank `rank` of the world; returns when all ranks have joined.

    It opens the devices too, which all ranks must do at the same time: a rank that returned
    before its first use of JAX would leave the others waiting for its devices.
    """
    import jax
    from jax._src import distributed
    from jax._src.lib import _jax
    from jax.experimental import multihost_utils

    os.environ["JAX_COORDINATOR_ADDRESS"] = world.address
    _speak_directly(world.address.rpartition(":")[0])
    client = _jax.get_distributed_runtime_client(
        world.address,
        rank,
        init_timeout=JOINING,
        heartbeat_timeout=NEVER,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.client = client
    state.process_id, state.num_processes = rank, world.ranks
    state.coordinator_address = world.address
    _choose_platform(world, rank % world.ranks_here, client)
    jax.devices()
    if world.platform == "cpu":
        # gloo connects the ranks in their first collective, for which it waits 30 s at most.
        multihost_utils.sync_global_devices("xla_nb")
    # Last, so that a rank that is refused does not keep the others waiting for it.
    cards = (rank % world.ranks_here,) if world.platform == "cuda" else None
    jax_guard.admit(Membership(world.address, world.ranks, rank, cards))


_DIRECT = "no_grpc_proxy"  # gRPC knows it in small letters only


def _speak_directly(host: str) -> None:
    """gRPC asks the environment's proxies even for an address of this machine."""
    spared = os.environ.get(_DIRECT) or os.environ.get("no_proxy", "")
    os.environ[_DIRECT] = ",".join(filter(None, [spared, host]))


def _choose_platform(world: World, local_rank: int, client: Any) -> None:
    import jax

    platforms = [world.platform, "cpu"] if world.platform != "cpu" else ["cpu"]
    jax.config.update("jax_platforms", ",".join(platforms))
    if world.platform == "cuda":
        jax.config.update("jax_cuda_visible_devices", str(local_rank))
    elif world.platform == "tpu":
        from torch_xla._internal import tpu

        tpu.configure_topology(local_rank, world.ranks_here)  # libtpu's: one chip for each
    else:
        # A step that a rank has begun is done when the call returns: nothing that others need is
        # pending when the entry returns, and an exception points at the line of its collective.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    _use_gloo(client, _own_address(world))


def _own_address(world: World) -> str:
    """Where the other ranks reach this one."""
    if not world.several_hosts:
        return LOOPBACK
    host, _, port = world.address.rpartition(":")
    return addresses.own_address((host, int(port)))


def _use_gloo(client: Any, address: str) -> None:
    """CPU devices with collectives over TCP, on one interface alone.

    By itself JAX resolves the machine's name, which may lead outside, or nowhere.
    """
    import jax
    from jax._src import xla_bridge
    from jax._src.lib import _jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")

    def open_devices() -> Any:
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address)
        return xla_bridge.make_cpu_client(collectives=gloo)

    xla_bridge.register_backend_factory("cpu", open_devices, priority=0, fail_quietly=False)


def leave(reason: str) -> None:
    """The entry is done, and the process about to end: `reason` is "returned", or why not.

    A rank that returned first finishes what it has begun, for the others may wait for its part;
    one that raised or was stopped may itself be waiting in vain, and just goes.
    """
    if reason != "returned" or not backend_started():
        return
    import jax

    # What fails here are values that nobody has looked at.
    with contextlib.suppress(Exception):
        jax.block_until_ready(jax.live_arrays())
    with contextlib.suppress(Exception):
        # Devices work in order: what comes last also ends last.
        jax.block_until_ready([jax.device_put(0.0, device) + 1 for device in jax.local_devices()])


# ---------------------------------------------------------------- torchax


def uses_torchax(source: str) -> bool:
    """Whether a cell's code wants torch operations on JAX arrays: it names torchax or "jax"."""
    return re.search(r"\btorchax\b|(['\"])jax(:\d+)?\1", source) is not None


def enable_torchax() -> None:
    """`device="jax"` works from here on; after `join`, since it opens the device."""
    import torchax

    if not torchax.default_env().enabled:
        torchax.enable_globally()


# ---------------------------------------------------------------- when a rank is gone

_GLOO = re.compile(r"Gloo .*(Connection (closed|reset) by peer|Broken pipe)", re.DOTALL)


class RankGone(Exception):
    """Another rank ended while this one was in a collective with it: a consequence, no cause."""

    def __init__(self) -> None:
        super().__init__("another rank had ended, and this collective needs it")


def consequence(error: BaseException) -> BaseException | None:
    """gloo's words for a rank that is gone, which all differ, in ours; None for other errors."""
    if not _GLOO.search(str(error)):
        return None
    return RankGone().with_traceback(error.__traceback__)
