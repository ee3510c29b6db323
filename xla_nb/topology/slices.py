"""Slices of TPU hosts: where each host stands, and the variables that tell it so.

Pure: hosts go in, their seats come out, and nothing is looked up. The rule: what GKE or queued
resources have set on a host is so, and hosts are seated by it; what contradicts it is an error
that names both. Who reads the variables: libtpu; JAX (jax/_src/clusters/cloud_tpu_cluster.py);
torch_xla (_internal/tpu.py, get_worker_ips and worker_id). Ray writes the same four
(ray/util/tpu.py, get_tpu_coordinator_env_vars).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NoReturn

from xla_nb.errors import UsageError
from xla_nb.topology import environment
from xla_nb.wording import listed, several

#: Ray's default (ray/_private/accelerators/tpu.py, DEFAULT_MEGASCALE_PORT).
PORT = 8081

COORDINATOR = "MEGASCALE_COORDINATOR_ADDRESS"
COORDINATOR_PORT = "MEGASCALE_PORT"
SLICES = "MEGASCALE_NUM_SLICES"
SLICE = "MEGASCALE_SLICE_ID"
WORKER = "TPU_WORKER_ID"
WORKERS = "TPU_WORKER_HOSTNAMES"

_UNSET = "What to do: remove the variable on the host where it is wrong"


@dataclass(frozen=True)
class Host:
    """One machine: `address` is how the others reach it, `environ` its own environment (what GKE
    or queued resources have set there), `name` for people."""

    address: str
    name: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return self.name or self.address


@dataclass(frozen=True)
class Seat:
    """Where a host stands: `slice` of all slices, `worker` in it; `variables` are what it gets."""

    host: Host
    slice: int
    worker: int
    variables: Mapping[str, str]


def seats(
    hosts: Sequence[Host], slices: int | None, *, pod: bool, port: int | None = None
) -> list[Seat]:
    """The seats of the hosts, in the order of their ranks: slice by slice, worker by worker.

    `hosts` come in that order, and are seated otherwise where their variables say so. `slices`
    None: what the hosts say, else 1. `port` None: likewise, else PORT.

    On a `pod` (real TPU VMs) a host's number and its neighbours in the slice are known to its own
    environment, and what is not set there torch_xla asks the metadata server: it is left out. Else
    (simulated hosts, or on paper) both follow from the seats, and the machine's own TPU variables,
    which speak of its chips, are not asked.
    """
    count = _slices(hosts, slices)
    workers = len(hosts) // count
    seated = _seated(hosts, count, workers, pod)
    everywhere = _coordinator(hosts, seated[0, 0], count, port) if count > 1 else {}
    found = []
    for number in range(count):
        row = [seated[number, worker] for worker in range(workers)]
        if pod:
            _same_neighbours(row)
        for worker, host in enumerate(row):
            variables = dict(everywhere)
            if count > 1:
                variables[SLICE] = str(number)
            within = _own(host) if pod else _computed(row, worker)
            found.append(Seat(host, number, worker, {**variables, **within}))
    return found


# ---------------------------------------------------------------- how many slices


def _slices(hosts: Sequence[Host], asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise UsageError(f"--slices {asked}: there is at least 1 slice")
    if not hosts:
        raise UsageError("there is no host to put into slices. What to do: name one")
    said = _agreed(hosts, SLICES, None if asked is None else str(asked), "--slices")
    count = asked or (_number(said, SLICES) if said else 1)
    if said and count < 1:
        _refuse(f"{_says(said, SLICES)}, and there is at least 1 slice")
    if len(hosts) % count:
        can = [number for number in range(1, len(hosts) + 1) if len(hosts) % number == 0]
        all_of_them = several(len(hosts), "host")
        raise UsageError(
            f"{count} slices of {all_of_them}: every slice has as many hosts as the others. "
            f"What to do: {all_of_them} can be {listed(can, 'or')} slice{'s' * (len(can) > 1)}"
        )
    return count


def _coordinator(
    hosts: Sequence[Host], first: Host, count: int, port: int | None
) -> dict[str, str]:
    """What all hosts of several slices have in common: where they meet, and how many they are.

    Queued resources set an address with its port; that is then the port (found in the form that
    JAX reads, `coordinator_address.split(':')[0]`)."""
    told = _agreed(hosts, COORDINATOR)
    address = first.address if told is None else told.environ[COORDINATOR]
    within = re.fullmatch(r"(?:[^:]*|\[.*\]):(\d+)", address)
    asked = port if port is not None else int(within[1]) if within else None
    source = "the port asked for" if port is not None else COORDINATOR
    said = _agreed(hosts, COORDINATOR_PORT, None if asked is None else str(asked), source)
    return {
        COORDINATOR: address,
        COORDINATOR_PORT: said.environ[COORDINATOR_PORT] if said else str(asked or PORT),
        SLICES: str(count),
    }


# ---------------------------------------------------------------- who stands where


def _seated(
    hosts: Sequence[Host], slices: int, workers: int, pod: bool
) -> dict[tuple[int, int], Host]:
    """Every host by (slice, worker). Who is told where to stand goes first; the others take, in
    their order, what is free."""
    told = [
        (host, _place(host, SLICE, slices), _place(host, WORKER, workers) if pod else None)
        for host in hosts
    ]
    taken: dict[tuple[int, int], Host] = {}
    for host, slice_, worker in sorted(told, key=lambda one: one[1:].count(None)):
        fits = [
            seat
            for seat in product(range(slices), range(workers))
            if slice_ in (None, seat[0]) and worker in (None, seat[1])
        ]
        free = next((seat for seat in fits if seat not in taken), None)
        if free is None:
            _refuse(_crowded(host, [taken[seat] for seat in fits], slices, workers, pod))
        taken[free] = host
    return taken


def _place(host: Host, name: str, size: int) -> int | None:
    """The number that a host has for itself, 0 to size - 1; None: it has none."""
    if not host.environ.get(name):
        return None
    number = _number(host, name)
    if number >= size:
        what = several(size, "slice") if name == SLICE else f"{several(size, 'host')} a slice"
        numbers = "there is only 0" if size == 1 else f"the last is {size - 1}"
        _refuse(f"{_says(host, name)}, and with {what} {numbers}")
    return number


def _crowded(host: Host, there: Sequence[Host], slices: int, workers: int, pod: bool) -> str:
    names = [SLICE, WORKER] if pod else [SLICE]
    shape = f"{several(slices, 'slice')} with {several(workers, 'host')} each"
    others = " and ".join(_says(one, *names) for one in there)
    return f"{_says(host, *names)}, but that place in {shape} is taken: {others}"


# ---------------------------------------------------------------- within a slice


def _own(host: Host) -> dict[str, str]:
    """What a host of a pod has already."""
    own = {name: host.environ[name] for name in (WORKER, WORKERS) if host.environ.get(name)}
    if not environment.lists_hosts(own.get(WORKERS, "")):  # Kaggle leaves a warning there
        own.pop(WORKERS, None)
    return own


def _computed(row: Sequence[Host], worker: int) -> dict[str, str]:
    return {WORKER: str(worker), WORKERS: ",".join(host.address for host in row)}


def _same_neighbours(row: Sequence[Host]) -> None:
    """The hosts of a slice have the same list of its hosts, all of them in it."""
    lists = [host for host in row if WORKERS in _own(host)]
    _agreed(lists, WORKERS, within="one slice")
    listed = len(lists[0].environ[WORKERS].split(",")) if lists else len(row)
    if listed != len(row):
        _refuse(
            f"{_says(lists[0], WORKERS)}, which is {several(listed, 'host')}, and here a slice "
            f"has {several(len(row), 'host')}"
        )


# ---------------------------------------------------------------- what hosts say


def _agreed(
    hosts: Sequence[Host],
    name: str,
    asked: str | None = None,
    asks: str = "",
    within: str = "one run",
) -> Host | None:
    """A host that says what all say who have this variable; None: nobody has."""
    said = [host for host in hosts if host.environ.get(name)]
    for other in said[1:]:
        if other.environ[name] != said[0].environ[name]:
            _refuse(f"{_says(said[0], name)} and {_says(other, name)}, and {within} has one value")
    if said and asked is not None and said[0].environ[name] != asked:
        raise UsageError(
            f"{_says(said[0], name)}, and {asks} says {asked}. What to do: leave out what you "
            f"asked for, or remove the variable on the host"
        )
    return said[0] if said else None


def _number(host: Host, name: str) -> int:
    if not host.environ[name].isdecimal():
        _refuse(f"{_says(host, name)}, which is no number")
    return int(host.environ[name])


def _says(host: Host, *names: str) -> str:
    said = [f"{name}={host.environ[name]}" for name in names if host.environ.get(name)]
    return f"{host.shown} has {' and '.join(said)}"


def _refuse(why: str) -> NoReturn:
    raise UsageError(f"{why}. {_UNSET}")
