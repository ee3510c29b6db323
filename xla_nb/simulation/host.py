"""The simulated TPU host: makes `xmp.spawn` start ranks that answer as the cores of a TPU do.

It enters through torch_xla's own extension point, a device plugin for "CPU"; the built-in CPU
client still computes in each process. The rule: `install` opens nothing but socket pairs and one
loopback socket, and whatever ranks say about themselves follows from their `HostShare`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
from torch.distributed.rendezvous import _rendezvous_handlers
from torch_xla.experimental import plugins

from xla_nb.simulation.agreement import Agreement, CollectiveWait
from xla_nb.simulation.collectives import Carrier
from xla_nb.simulation.compiling import install_cuts
from xla_nb.simulation.mesh import Mesh, SocketPairs, Stream, connect_hosts
from xla_nb.simulation.refusals import install_refusals
from xla_nb.simulation.torch_names import carry
from xla_nb.topology import addresses

_DROPPED = ("CPU_NUM_DEVICES", "XLA_USE_SPMD", "XLA_AUTO_SPMD", "PJRT_DYNAMIC_PLUGINS")
_START = timedelta(seconds=120)  # for other hosts to come up


@dataclass(frozen=True)
class HostShare:
    """Where this host stands in the world.

    `store` names a TCPStore that all hosts reach; a world of one host needs none. `serves`: it is
    for rank 0, on this host, to run it there.
    """

    ranks_here: int
    first_rank: int = 0
    world_size: int | None = None  # None: ranks_here
    store: tuple[str, int] | None = None
    serves: bool = False

    def __post_init__(self) -> None:
        if self.size < self.first_rank + self.ranks_here or self.ranks_here < 1:
            raise ValueError(f"{self} has ranks outside of its world")
        if self.size > self.ranks_here and self.store is None:
            raise ValueError(f"{self} has other hosts and no store to find them")

    @property
    def size(self) -> int:
        return self.ranks_here if self.world_size is None else self.world_size

    @property
    def here(self) -> range:
        return range(self.first_rank, self.first_rank + self.ranks_here)


class Store:
    """The run's TCPStore, opened when first asked for; rank 0 serves it where no one else does."""

    def __init__(self, place: HostShare) -> None:
        self._address = place.store
        self._listener: socket.socket | None = None
        self._store: dist.Store | None = None
        if place.store is None or place.serves:
            # The port of several hosts is held, by whoever found it to be free.
            where, shared = place.store or ("127.0.0.1", 0), place.store is not None
            self._listener = socket.create_server(where, reuse_port=shared, backlog=1024)
            self._address = self._listener.getsockname()

    def open(self, rank: int) -> dist.Store:
        if self._store is None:
            assert self._address is not None
            serves = self._listener is not None and rank == 0
            self._store = dist.TCPStore(
                *self._address,
                is_master=serves,
                timeout=_START,
                wait_for_workers=False,
                master_listen_fd=self._listener.detach() if serves and self._listener else None,
            )
        return self._store


class SimulatedHost(plugins.DevicePlugin):  # type: ignore[misc]
    """torch_xla's view of this host: as many chips as ranks."""

    def __init__(self, place: HostShare) -> None:
        super().__init__()
        self._place = place
        self._pairs = SocketPairs(place.here)
        self._store = Store(place)
        self._kept: list[object] = []
        self.agreement: Agreement | None = None  # in a rank

    def physical_chip_count(self) -> int:
        self._pairs.expect_ranks()  # xmp.spawn asks just before it forks them
        return self._place.ranks_here

    def host_index(self) -> int:
        return self._place.first_rank // self._place.ranks_here

    def configure_single_process(self) -> None:
        raise RuntimeError(
            "nprocs=1 runs in the calling process, which the simulated host has no rank for; "
            "leave nprocs out"
        )

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """In a new rank, before its runtime starts: join the others and answer for this place."""
        place = self._place
        os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(local_rank)
        os.environ["PJRT_LOCAL_PROCESS_COUNT"] = str(place.ranks_here)
        rank = place.first_rank + local_rank
        share_cores(place.ranks_here)
        answer_identity(rank, place.size)
        streams = self._pairs.claim(rank) | self._remote_streams(rank)
        self.agreement = Agreement(Mesh(rank, place.size, streams))
        carrier = Carrier(self.agreement)
        self._kept = [*carry(carrier), *install_refusals()]
        install_cuts()
        self._answer_rendezvous(carrier)

    def _remote_streams(self, rank: int) -> dict[int, Stream]:
        place = self._place
        remote = [other for other in range(place.size) if other not in place.here]
        if not remote or place.store is None:
            return {}
        store = self._store.open(rank)
        patience = _START.total_seconds()
        streams = connect_hosts(store, addresses.own_address(place.store), rank, remote, patience)
        store.set(f"joined/{rank}", "")
        if rank == 0:  # where the store may be, which the others need until they are here
            store.wait([f"joined/{other}" for other in remote])
        return streams

    def _answer_rendezvous(self, carrier: Carrier) -> None:
        """`init_method="xla://"` uses the run's own store: two runs never share a port."""

        def handler(url: str, **_: object) -> Iterator[tuple[dist.Store, int, int]]:
            with carrier.agreement.lock:
                carrier.agreement.meet("init_process_group xla://", range(carrier.size))
            store = dist.PrefixStore("xla", self._store.open(carrier.rank))
            yield store, carrier.rank, carrier.size

        _rendezvous_handlers["xla"] = handler


def share_cores(ranks: int) -> None:
    """Threads of all ranks that spin for the same few cores make each of them many times slower."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def answer_identity(rank: int, size: int) -> None:
    """Make torch_xla say that this process is one rank, with one device, of `size`."""
    xlac: Any = torch_xla._XLAC
    devices = [f"CPU:{ordinal}" for ordinal in range(size)]
    replication: list[str] = []
    answers: dict[str, Callable[..., object]] = {
        "_xla_get_device_ordinal": lambda device: rank,
        "_xla_get_default_device_ordinal": lambda: rank,
        "_xla_get_devices": lambda: [devices[rank]],
        "_xla_real_devices": lambda devices_=None: [devices[rank]],
        "_xla_get_all_devices": lambda: list(devices),
        "_xla_get_runtime_devices": lambda: [devices[rank]],
        "_xla_get_all_runtime_devices": lambda: list(devices),
        "_xla_num_global_devices": lambda: size,
        "_xla_get_all_device_attributes": lambda: [{"name": name} for name in devices],
        "_xla_get_device_attributes": lambda device: {"name": devices[rank]},
        "_xla_get_num_processes": lambda: size,
        "_xla_get_process_index": lambda: rank,
        "_xla_set_replication_devices": lambda names: replication.__setitem__(slice(None), names),
        "_xla_get_replication_devices": lambda: list(replication),
        "_xla_get_replication_devices_count": lambda: len(replication),
        # Tokens order collectives inside a graph; ours run between graphs.
        "_get_all_reduce_token": lambda device: None,
        "_set_all_reduce_token": lambda device, token: None,
    }
    for name, answer in answers.items():
        if hasattr(xlac, name):
            setattr(xlac, name, answer)


class _Installed:
    """The host of this process and of the ranks forked from it."""

    host: SimulatedHost | None = None


def install(place: HostShare) -> None:
    """Make this process's next `xmp.spawn(fn, start_method="fork")` start `place`'s ranks."""
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise RuntimeError("the XLA runtime of this process is already initialised")
    for name in _DROPPED:
        os.environ.pop(name, None)
    os.environ["PJRT_DEVICE"] = "CPU"
    _Installed.host = SimulatedHost(place)
    plugins._plugin_registry["CPU"] = _Installed.host  # torch_xla's own CPU client still serves
    plugins.using_dynamic_plugins = lambda: True


def leave(reason: str) -> None:
    """In a rank, when the user's entry is over: "returned", "raised ValueError"."""
    agreement = _agreement()
    if agreement is not None:
        agreement.leave(reason)


def waiting() -> CollectiveWait | None:
    """The collective that this rank waits in, if any; callable from any thread."""
    agreement = _agreement()
    return None if agreement is None else agreement.waiting


def _agreement() -> Agreement | None:
    return None if _Installed.host is None else _Installed.host.agreement
