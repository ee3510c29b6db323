"""The simulated TPU host: make `xmp.spawn` start ranks that behave like the cores of a TPU.

It uses torch_xla's own extension point, a device plugin for "CPU"; the built-in CPU client still
computes in each process. `install` opens only socket pairs and one loopback socket, so a launch
without collectives costs almost nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_xla
from torch.distributed.rendezvous import _rendezvous_handlers
from torch_xla.experimental import plugins

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
_WIDTH = 4  # bytes of the counter of process groups
_START_TIMEOUT = timedelta(seconds=120)  # for other hosts to start


@dataclass(frozen=True)
class HostShare:
    """This host's share of the world.

    `store` is the address of a TCPStore that all hosts reach; a world of one host needs none.
    `serves`: rank 0 is on this host and serves the store.
    """

    ranks_here: int
    first_rank: int = 0
    world_size: int | None = None  # default: ranks_here
    store: tuple[str, int] | None = None
    serves: bool = False

    @property
    def size(self) -> int:
        return self.ranks_here if self.world_size is None else self.world_size

    @property
    def here(self) -> range:
        return range(self.first_rank, self.first_rank + self.ranks_here)


class Store:
    """The run's TCPStore, opened on first use; rank 0 serves it unless another process does."""

    def __init__(self, share: HostShare) -> None:
        self._address = share.store
        self._listener: socket.socket | None = None
        self._store: dist.Store | None = None
        if share.store is None or share.serves:
            # With several hosts the process that chose the port still holds it.
            address, is_held = share.store or ("127.0.0.1", 0), share.store is not None
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
    """torch_xla's view of this host: as many chips as ranks."""

    programs: Programs  # in a rank

    def __init__(self, share: HostShare) -> None:
        super().__init__()
        self._share = share
        self._mailboxes = Mailboxes(share.here)
        self._memory = SharedMemory(share.here)
        self._board = Board(share.size) if share.size == share.ranks_here else None
        self._store = Store(share)
        self._carrier = Carrier(self._memory)
        # Once, before the fork: in each rank it would take 5 ms. Kept here because torch holds no
        # reference to the replacements.
        self._references = [*carry(self._carrier), *install_refusals()]

    def physical_chip_count(self) -> int:
        self._mailboxes.expect_ranks()  # xmp.spawn calls this just before it forks them
        return self._share.ranks_here

    def host_index(self) -> int:
        return self._share.first_rank // self._share.ranks_here

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """In a new rank, before its runtime starts: join the others and set its identity."""
        share = self._share
        rank = share.first_rank + local_rank
        answers.set_position(local_rank, share.ranks_here)
        answers.set_identity(rank, share.size, share.ranks_here)
        answers.name_graphs(rank)
        limit_threads(share.ranks_here)
        streams = self._mailboxes.claim(rank) | self._remote_streams(rank)
        if self._board is not None:
            self._board.listen()
        self.programs = Programs(Mesh(rank, share.size, streams), self._board)
        self._carrier.bind(self.programs)
        self._answer_rendezvous(self._carrier)

    def _remote_streams(self, rank: int) -> dict[int, Stream]:
        share = self._share
        remote = [other for other in range(share.size) if other not in share.here]
        if not remote or share.store is None:
            return {}
        store = self._store.open(rank)
        timeout = _START_TIMEOUT.total_seconds()
        streams = connect_hosts(store, addresses.own_address(share.store), rank, remote, timeout)
        store.set(f"joined/{rank}", "")
        if rank == 0:  # it may serve the store, which the others need until they have joined
            store.wait([f"joined/{other}" for other in remote])
        return streams

    def _answer_rendezvous(self, carrier: Carrier) -> None:
        """Make `init_method="xla://"` use the run's own store, so that runs never share a port,
        with a new key prefix each time."""
        count = 0

        def handler(url: str, **_: object) -> Iterator[tuple[dist.Store, int, int]]:
            nonlocal count
            counts = carrier.rendezvous(count.to_bytes(_WIDTH, "little"), "init_process_group")
            count = 1 + max(int.from_bytes(item, "little") for item in counts)
            store = dist.PrefixStore(f"xla/{count}", self._store.open(carrier.rank))
            yield store, carrier.rank, carrier.size

        _rendezvous_handlers["xla"] = handler


def limit_threads(ranks: int) -> None:
    """Divide the cores among the ranks: threads that spin on the same few cores slow all ranks."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def install(share: HostShare) -> SimulatedHost:
    """Make this process's next `xmp.spawn(fn, start_method="fork")` start the ranks of `share`."""
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise RuntimeError("The XLA runtime is already initialized in this process.")
    for name in _REMOVED_VARIABLES:
        os.environ.pop(name, None)
    answers.set_device()
    host = SimulatedHost(share)
    for device in ("CPU", "TPU"):  # torch_xla's own CPU client still serves
        plugins._plugin_registry[device] = host
    plugins.using_dynamic_plugins = lambda: True
    return host
