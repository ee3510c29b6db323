"""The simulated TPU host: make `xmp.spawn` start ranks that behave like the cores of a TPU.

It uses torch_xla's own extension point, a device plugin for "CPU"; the built-in CPU client still
computes in each process. `install` opens only socket pairs and one loopback socket, so a launch
without collectives costs almost nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_xla
from torch.distributed.rendezvous import _rendezvous_handlers
from torch_xla.experimental import plugins

from xla_nb.messages.orders import HostGroup
from xla_nb.simulation import answers
from xla_nb.simulation.board import Board
from xla_nb.simulation.collectives import Carrier
from xla_nb.simulation.memory import SharedMemory
from xla_nb.simulation.mesh import Mailboxes, Mesh, Stream, connect_hosts
from xla_nb.simulation.programs import Programs
from xla_nb.simulation.refusals import install_refusals
from xla_nb.simulation.torch_names import carry
from xla_nb.topology import addresses

_REMOVED_VARIABLES = ("CPU_NUM_DEVICES", "XLA_USE_SPMD", "XLA_AUTO_SPMD", "PJRT_DYNAMIC_PLUGINS")
_START_TIMEOUT = timedelta(seconds=120)  # for other hosts to start


class Store:
    """The run's TCPStore, opened on first use and served by rank 0."""

    def __init__(self, group: HostGroup) -> None:
        self._address = group.address
        self._listener: socket.socket | None = None
        self._store: dist.Store | None = None
        if group.index == 0:
            # With several hosts the process that chose the port still holds it.
            address, is_held = group.address or ("127.0.0.1", 0), group.address is not None
            self._listener = socket.create_server(address, reuse_port=is_held, backlog=1024)
            self._address = self._listener.getsockname()

    def open(self, rank: int) -> dist.Store:
        if self._store is None:
            assert self._address is not None
            serves = self._listener is not None and rank == 0
            self._store = dist.TCPStore(
                *self._address,
                is_master=serves,
                timeout=_START_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=self._listener.detach() if serves and self._listener else None,
            )
        return self._store


class SimulatedHost(plugins.DevicePlugin):  # type: ignore[misc]
    """torch_xla's view of one host of a group: as many chips as ranks."""

    programs: Programs  # in a rank

    def __init__(self, ranks: int, group: HostGroup) -> None:
        super().__init__()
        self._group = group
        self._here = range(group.index * ranks, (group.index + 1) * ranks)
        self._size = group.hosts * ranks
        self.mailboxes = Mailboxes(self._here)
        self._board = Board(ranks) if group.hosts == 1 else None
        self._store = Store(group)
        self._carrier = Carrier(SharedMemory(self._here))
        carry(self._carrier)  # once, before the fork: in each rank it would take 5 ms
        install_refusals()

    def physical_chip_count(self) -> int:
        return len(self._here)

    def host_index(self) -> int:
        return self._group.index

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """In a new rank, before its runtime starts: join the others and set its identity."""
        ranks, rank = len(self._here), self._here[local_rank]
        answers.set_position(local_rank, ranks)
        answers.set_identity(rank, self._size, ranks)
        answers.name_graphs(rank)
        limit_threads(ranks)
        streams = self.mailboxes.claim(rank) | self._remote_streams(rank)
        if self._board is not None:
            self._board.listen()
        self.programs = Programs(Mesh(rank, self._size, streams), self._board)
        self._carrier.bind(self.programs)
        self._answer_rendezvous(self._carrier)

    def _remote_streams(self, rank: int) -> dict[int, Stream]:
        if self._group.hosts == 1:
            return {}
        assert self._group.address is not None
        remote = [other for other in range(self._size) if other not in self._here]
        store = self._store.open(rank)
        own_address = addresses.own_address(self._group.address)
        streams = connect_hosts(store, own_address, rank, remote, _START_TIMEOUT.total_seconds())
        store.set(f"joined/{rank}", "")
        if rank == 0:  # it may serve the store, which the others need until they have joined
            store.wait([f"joined/{other}" for other in remote])
        return streams

    def _answer_rendezvous(self, carrier: Carrier) -> None:
        """Make `init_method="xla://"` use the run's own store, so that runs never share a port,
        with a new key prefix, rank 0's, each time."""

        def handler(url: str, **_: object) -> Iterator[tuple[dist.Store, int, int]]:
            prefix = carrier.rendezvous(os.urandom(8), "init_process_group")[0]
            store = dist.PrefixStore(f"xla/{prefix.hex()}", self._store.open(carrier.rank))
            yield store, carrier.rank, carrier.size

        _rendezvous_handlers["xla"] = handler


def limit_threads(ranks: int) -> None:
    """Divide the cores among the ranks: threads that spin on the same few cores slow all ranks."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def install(ranks: int, group: HostGroup) -> SimulatedHost:
    """Make this process's next `xmp.spawn(fn, start_method="fork")` start the ranks of this host;
    its caller closes the mailboxes once they have been forked."""
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise RuntimeError("The XLA runtime is already initialized in this process.")
    for name in _REMOVED_VARIABLES:
        os.environ.pop(name, None)
    answers.set_device()
    host = SimulatedHost(ranks, group)
    for device in ("CPU", "TPU"):  # torch_xla's own CPU client still serves
        plugins._plugin_registry[device] = host
    plugins.using_dynamic_plugins = lambda: True
    return host
