"""One JAX world for the ranks of a run: its coordinator, and how ranks join and leave.

JAX aborts every process, with a C++ stack, when one of them is gone. Here the coordinator is a
separate process that never gives up on a rank, so the end of a rank reaches the others as a Python
exception in a collective that needs it, or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xla_nb.errors import LaunchError, UsageError
from xla_nb.linux import die_with_parent, name_process
from xla_nb.topology import addresses
from xla_nb.wording import several

LOOPBACK = "127.0.0.1"

#: Heartbeat timeout in seconds, 31 years: JAX aborts all ranks when one that has left becomes
#: "unhealthy". The job notices dead processes itself (forking.fork).
NEVER = 10**9

#: Seconds that a rank waits for the others to join before JAX aborts it: longer than any job waits
#: for ranks after one has died.
JOINING = 86_400


@dataclass(frozen=True)
class World:
    """The world that the ranks share: the coordinator's address, "host:port", the total number of
    ranks and the number on each host; `platform` is "cpu", "cuda" or "tpu"."""

    address: str
    ranks: int
    platform: str
    ranks_here: int


class Coordinator:
    """The process of the ranks' coordination service, by default on a free loopback port.

    The job starts it before it forks the ranks: the service has threads, the job must have none.
    Raises LaunchError if it does not start.
    """

    def __init__(self, ranks: int, host: str = LOOPBACK, port: int = 0) -> None:
        self._port = addresses.hold_port(host, port)
        self.address = f"{host}:{self._port.getsockname()[1]}"
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _run_coordinator(self.address, ranks, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            reply = pipe.read().decode(errors="replace")
        if reply != _READY:
            self.close()
            raise LaunchError(
                f"JAX's coordinator did not start on {self.address}: {reply}. Run the cell again."
            )

    def close(self) -> None:
        """Stop the process. Call only after all ranks have ended: losing it aborts a rank."""
        self._port.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


_READY = "ready"


def _run_coordinator(address: str, ranks: int, writer: int) -> NoReturn:
    try:
        die_with_parent()
        name_process("xla_nb-world")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _close_all_but(writer)
        from jax._src.lib import _jax

        service = _jax.get_distributed_runtime_service(address, ranks, heartbeat_timeout=NEVER)
        os.write(writer, _READY.encode())
        os.close(writer)
        while service:
            signal.pause()
    except BaseException as error:
        os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
    finally:
        os._exit(1)


def _close_all_but(fd: int) -> None:
    """Close the job's files, such as its socket to the notebook.

    Listed from /proc, because the limit on descriptors may be in the millions.
    """
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) != fd:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


# ---------------------------------------------------------------- a rank


def backend_started() -> bool:
    """Whether this process has opened JAX's devices, so that it can no longer fork ranks."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def read_variables() -> None:
    """Make JAX read its variables from this process's environment again, as its import does."""
    import jax

    for name, (kind, *_) in jax.config.meta.items():
        text = os.environ.get(name.upper())
        if text is not None:
            jax.config.update(name, _parse_value(kind, text))


def _parse_value(kind: object, text: str) -> object:
    """Parse a flag's value from its text (jax/_src/config.py: bool_env, int_env)."""
    if kind is bool:
        return text.lower() in ("y", "yes", "t", "true", "on", "1")
    return kind(text) if kind in (int, float) and callable(kind) else text


def join(world: World, rank: int) -> None:
    """Make this process rank `rank` of the world; returns when all ranks have joined.

    Also opens the devices, which all ranks must do together: a rank that returned before its first
    use of JAX would leave the others waiting for its devices.
    """
    import jax
    from jax._src import distributed
    from jax._src.lib import _jax
    from jax.experimental import multihost_utils

    os.environ["JAX_COORDINATOR_ADDRESS"] = world.address
    _bypass_proxy(world.address.rpartition(":")[0])
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
        # gloo connects the ranks in their first collective, and waits at most 30 s for them.
        multihost_utils.sync_global_devices("xla_nb")


_NO_PROXY = "no_grpc_proxy"  # gRPC reads the lower-case name only


def _bypass_proxy(host: str) -> None:
    """Exclude the host from gRPC's proxies, which it uses even for addresses of this machine."""
    hosts = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    os.environ[_NO_PROXY] = ",".join(filter(None, [hosts, host]))


def _choose_platform(world: World, local_rank: int, client: Any) -> None:
    import jax

    platforms = [world.platform, "cpu"] if world.platform != "cpu" else ["cpu"]
    jax.config.update("jax_platforms", ",".join(platforms))
    if world.platform == "cuda":
        jax.config.update("jax_cuda_visible_devices", str(local_rank))
    elif world.platform == "tpu":
        from torch_xla._internal import tpu

        tpu.configure_topology(local_rank, world.ranks_here)  # for libtpu: one chip per rank
    else:
        # With synchronous dispatch nothing that other ranks need is pending when the entry returns,
        # and an exception points at the line of its collective.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    _use_gloo(client, _own_address(world))


def _own_address(world: World) -> str:
    """The address at which other ranks can reach this one."""
    if world.ranks_here == world.ranks:
        return LOOPBACK
    host, _, port = world.address.rpartition(":")
    return addresses.own_address((host, int(port)))


def _use_gloo(client: Any, address: str) -> None:
    """Open CPU devices with collectives over TCP, on one interface only.

    JAX's default is the machine's name, which may resolve to an outside address, or not at all.
    """
    import jax
    from jax._src import xla_bridge
    from jax._src.lib import _jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")

    def open_devices() -> Any:
        tcp = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address)
        return xla_bridge.make_cpu_client(collectives=tcp)

    xla_bridge.register_backend_factory("cpu", open_devices, priority=0, fail_quietly=False)


def leave(reason: str) -> None:
    """Leave the world. Call when the entry is done and the process is about to end; `reason` is
    "returned", or why it did not return.

    A rank that returned finishes its pending operations first, because others may wait for them; a
    rank that raised or was stopped may itself be waiting in vain, and leaves at once.
    """
    if reason != "returned" or not backend_started():
        return
    import jax

    # Only values that were never read can fail here.
    with contextlib.suppress(Exception):
        jax.block_until_ready(jax.live_arrays())
    with contextlib.suppress(Exception):
        # Devices execute in order, so these finish last.
        jax.block_until_ready([jax.device_put(0.0, device) + 1 for device in jax.local_devices()])


# ---------------------------------------------------------------- jax.distributed in cells


def install_guard(size: int) -> None:
    """Replace `jax.distributed.initialize` and `shutdown`, in a run of `size` ranks. Called in the
    job before the cell's module, which may bind them to other names.

    The ranks join by themselves, so `initialize` only checks the number of ranks. `shutdown` does
    nothing: a rank leaves when its function has ended, without waiting for others.
    """
    import jax
    from jax._src import distributed

    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        *_args: object,
        **_options: object,
    ) -> None:
        if num_processes not in (None, size):
            raise UsageError(
                f"jax.distributed.initialize(num_processes={num_processes}), but this run has "
                f"{several(size, 'rank')}. Launch with another -n, or omit the argument: xla_nb "
                "has already joined the ranks."
            )

    module: Any
    for module in (jax.distributed, distributed):
        module.initialize = initialize
        module.shutdown = lambda: None


# ---------------------------------------------------------------- torchax


def enable_torchax() -> None:
    """Make `device="jax"` work if torchax is installed; call after `join`, because it opens the
    device."""
    torchax: Any = sys.modules.get("torchax")  # imported by the fork server
    if torchax is not None and not torchax.default_env().enabled:
        torchax.enable_globally()
        os.register_at_fork(after_in_child=functools.partial(_dispatch_to_torch, torchax))


def _dispatch_to_torch(torchax: Any) -> None:
    """Make a process that a rank forked, such as a DataLoader worker, compute without JAX, because
    it lacks JAX's threads: torchax creates some CPU tensors with JAX, and would wait forever."""
    env = torchax.default_env()
    env.dispatch = lambda func, types, args, kwargs: func(*args, **(kwargs or {}))


# ---------------------------------------------------------------- when a rank is gone

_GLOO = re.compile(r"Gloo .*(Connection (closed|reset) by peer|Broken pipe)", re.DOTALL)


class RankGone(Exception):
    """The connection to another rank of this rank's collective is gone: a consequence, not a
    cause."""

    def __init__(self) -> None:
        super().__init__("a rank that this collective needs has ended")


def consequence(error: BaseException) -> BaseException | None:
    """RankGone for any of gloo's errors about a lost connection; None for other errors."""
    if not _GLOO.search(str(error)):
        return None
    return RankGone().with_traceback(error.__traceback__)
