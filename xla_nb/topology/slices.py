"""Slices of TPU hosts: the seat (position) of each host, and the variables that describe it.

Pure functions of hosts and their environments. Variables that GKE or queued resources have set on a
host decide its seat; a contradiction is an error that names both sides. The variables are read by
libtpu, JAX (jax/_src/clusters/cloud_tpu_cluster.py) and torch_xla (_internal/tpu.py, get_worker_ips
and worker_id). Ray sets the same four (ray/util/tpu.py, get_tpu_coordinator_env_vars).
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
PORT = "8081"

COORDINATOR = "MEGASCALE_COORDINATOR_ADDRESS"
COORDINATOR_PORT = "MEGASCALE_PORT"
SLICES = "MEGASCALE_NUM_SLICES"
SLICE = "MEGASCALE_SLICE_ID"
WORKER = "TPU_WORKER_ID"
WORKERS = "TPU_WORKER_HOSTNAMES"


@dataclass(frozen=True)
class Host:
    """One machine. `address` is where the others reach it, `environ` its own variables, as GKE or
    queued resources set them, and `name` its name for display."""

    address: str
    name: str
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seat:
    """A host's position: its slice, its worker number in the slice, and its variables."""

    host: Host
    slice: int
    worker: int
    variables: Mapping[str, str]


def seats(hosts: Sequence[Host], slices: int | None, *, pod: bool) -> list[Seat]:
    """Seat the hosts; returns the seats in rank order, slice by slice and worker by worker.

    hosts: seated in this order, unless their variables specify another.
    slices: None to use the hosts' variables, or 1 if they have none.
    pod: the hosts are real TPU VMs. Their own environments give their worker numbers and neighbors;
        variables not set there are left out, because torch_xla asks the metadata server for them.
        If False (simulated or hypothetical hosts), both follow from the seats, and the machines'
        own TPU variables, which describe their chips, are ignored.

    Raises UsageError if the hosts do not fit, or their variables contradict each other.
    """
    count = _count_slices(hosts, slices)
    workers = len(hosts) // count
    hosts_by_seat = _seat_hosts(hosts, count, workers, pod)
    shared = _coordinator(hosts, hosts_by_seat[0, 0], count) if count > 1 else {}
    result = []
    for number in range(count):
        row = [hosts_by_seat[number, worker] for worker in range(workers)]
        if pod:
            _check_neighbors(row)
        for worker, host in enumerate(row):
            variables = dict(shared)
            if count > 1:
                variables[SLICE] = str(number)
            names = ",".join(other.address for other in row)
            in_slice = _slice_variables(host) if pod else {WORKER: str(worker), WORKERS: names}
            result.append(Seat(host, number, worker, {**variables, **in_slice}))
    return result


# ---------------------------------------------------------------- number of slices


def _count_slices(hosts: Sequence[Host], requested: int | None) -> int:
    preset = _preset_host(hosts, SLICES, None if requested is None else str(requested), "--slices")
    count = requested or (preset and _number(preset, SLICES)) or 1
    check_equal(len(hosts), count)
    return count


def check_equal(hosts: int, count: int) -> None:
    """Raise UsageError if `hosts` hosts cannot form `count` slices of equal size."""
    if hosts % count:
        possible = [number for number in range(1, hosts + 1) if hosts % number == 0]
        raise UsageError(
            f"{several(hosts, 'host')} cannot be divided into {count} slices of equal size. "
            f"Use {listed(possible, 'or')} slice{'s' * (len(possible) > 1)}."
        )


def _coordinator(hosts: Sequence[Host], first: Host, count: int) -> dict[str, str]:
    """The variables shared by all hosts of several slices: the coordinator's address and port, and
    the number of slices.

    An address set by queued resources may include the port (in the form that JAX reads,
    `coordinator_address.split(':')[0]`); that port is then used."""
    preset = _preset_host(hosts, COORDINATOR)
    address = first.address if preset is None else preset.environ[COORDINATOR]
    match = re.fullmatch(r"(?:[^:]*|\[.*\]):(\d+)", address)
    port = match[1] if match else None
    preset = _preset_host(hosts, COORDINATOR_PORT, port, COORDINATOR)
    return {
        COORDINATOR: address,
        COORDINATOR_PORT: preset.environ[COORDINATOR_PORT] if preset else port or PORT,
        SLICES: str(count),
    }


# ---------------------------------------------------------------- seating


def _seat_hosts(
    hosts: Sequence[Host], slices: int, workers: int, pod: bool
) -> dict[tuple[int, int], Host]:
    """The hosts by (slice, worker). Hosts with preset numbers are seated first; the others take the
    free seats in order."""
    names = [SLICE, WORKER] if pod else [SLICE]
    entries = [
        (host, _number(host, SLICE), _number(host, WORKER) if pod else None) for host in hosts
    ]
    seats = list(product(range(slices), range(workers)))
    hosts_by_seat: dict[tuple[int, int], Host] = {}
    for host, slice_, worker in sorted(entries, key=lambda entry: entry[1:].count(None)):
        candidates = [
            seat for seat in seats if slice_ in (None, seat[0]) and worker in (None, seat[1])
        ]
        free_seat = next((seat for seat in candidates if seat not in hosts_by_seat), None)
        if free_seat is None:
            shape = f"{several(slices, 'slice')} with {several(workers, 'host')} each"
            others = "".join(f"; {_describe(hosts_by_seat[seat], *names)}" for seat in candidates)
            _refuse(f"{_describe(host, *names)}, but no such position is free in {shape}{others}")
        hosts_by_seat[free_seat] = host
    return hosts_by_seat


# ---------------------------------------------------------------- within a slice


def _slice_variables(host: Host) -> dict[str, str]:
    """The variables that a pod's host already has."""
    variables = {name: host.environ[name] for name in (WORKER, WORKERS) if host.environ.get(name)}
    if not environment.lists_hosts(variables.get(WORKERS, "")):  # Kaggle leaves a warning there
        variables.pop(WORKERS, None)
    return variables


def _check_neighbors(row: Sequence[Host]) -> None:
    """Check that the hosts of a slice have the same list of neighbors, of the slice's size."""
    hosts = [host for host in row if WORKERS in _slice_variables(host)]
    _preset_host(hosts, WORKERS)
    count = len(hosts[0].environ[WORKERS].split(",")) if hosts else len(row)
    if count != len(row):
        _refuse(
            f"{_describe(hosts[0], WORKERS)}, which lists {several(count, 'host')}, but a slice of "
            f"this run has {several(len(row), 'host')}"
        )


# ---------------------------------------------------------------- preset variables


def _preset_host(
    hosts: Sequence[Host], name: str, value: str | None = None, source: str = ""
) -> Host | None:
    """A host that has this variable; None if no host has it. The value must be the same on all such
    hosts, and equal to `value` if given."""
    presets = [host for host in hosts if host.environ.get(name)]
    for other in presets[1:]:
        if other.environ[name] != presets[0].environ[name]:
            settings = f"{_describe(presets[0], name)} and {_describe(other, name)}"
            _refuse(f"{settings}, but they need the same value")
    if presets and value is not None and presets[0].environ[name] != value:
        raise UsageError(
            f"{_describe(presets[0], name)}, but {source} gives {value}. Use one value for both, "
            "or remove the variable on the host."
        )
    return presets[0] if presets else None


def _number(host: Host, name: str) -> int | None:
    """The number in a host's variable; None if it is not set."""
    text = host.environ.get(name)
    if text and not text.isdecimal():
        _refuse(f"{_describe(host, name)}, which is not a number")
    return int(text) if text else None


def _describe(host: Host, *names: str) -> str:
    """`host-1 has NAME=VALUE`."""
    settings = [f"{name}={host.environ[name]}" for name in names if host.environ.get(name)]
    return f"{host.name} has {' and '.join(settings)}"


def _refuse(reason: str) -> NoReturn:
    raise UsageError(f"{reason}. Remove the variable on the host where it is wrong.")
