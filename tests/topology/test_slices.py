"""Seats and variables of hosts, for several topologies and preset variables."""

import json
import re
import subprocess
import sys

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import slices
from xla_nb.topology.slices import Host


def hosts(count, **environs):
    """host-1, host-2 and so on; `host_1={...}` is the environment of host-1."""
    return [
        Host(f"10.0.0.{n}", f"host-{n}", environs.get(f"host_{n}", {})) for n in range(1, count + 1)
    ]


def preset(count, *environs):
    """Hosts with these environments, in order."""
    return hosts(count, **{f"host_{n}": environ for n, environ in enumerate(environs, 1)})


def seated(seats):
    return [(seat.host.name, seat.slice, seat.worker) for seat in seats]


# ---------------------------------------------------------------- topologies


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("pod", [False, True])
def test_hosts_fill_slices_in_order(count, workers, pod):
    seats = slices.seats(hosts(count * workers), count, pod=pod)
    assert seated(seats) == [
        (f"host-{n + 1}", n // workers, n % workers) for n in range(count * workers)
    ]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("pod", [False, True])
def test_hosts_of_several_slices_get_the_coordinator_and_their_slice_id(count, workers, pod):
    for seat in slices.seats(hosts(count * workers), count, pod=pod):
        values = {k: v for k, v in seat.variables.items() if k.startswith("MEGASCALE")}
        assert values == {
            "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
            "MEGASCALE_PORT": "8081",
            "MEGASCALE_NUM_SLICES": str(count),
            "MEGASCALE_SLICE_ID": str(seat.slice),
        }


@pytest.mark.parametrize("workers", [1, 4])
def test_single_slice_gets_no_multislice_variables(workers):
    for seat in slices.seats(hosts(workers), 1, pod=False):
        assert set(seat.variables) == {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"}


def test_hosts_outside_a_pod_get_worker_ids_and_hostnames():
    values = [
        (seat.variables["TPU_WORKER_ID"], seat.variables["TPU_WORKER_HOSTNAMES"])
        for seat in slices.seats(hosts(4), 2, pod=False)
    ]
    first, second = "10.0.0.1,10.0.0.2", "10.0.0.3,10.0.0.4"
    assert values == [("0", first), ("1", first), ("0", second), ("1", second)]


def test_pod_hosts_leave_unset_variables_to_the_metadata_server():
    assert [dict(seat.variables) for seat in slices.seats(hosts(2), None, pod=True)] == [{}, {}]


def test_hosts_outside_a_pod_ignore_preset_tpu_variables():
    kaggle = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    seats = slices.seats(preset(2, kaggle, kaggle), None, pod=False)
    assert [seat.variables["TPU_WORKER_ID"] for seat in seats] == ["0", "1"]


@pytest.mark.slow
def test_variables_match_the_ones_ray_sets():
    tpu = pytest.importorskip("ray.util.tpu")
    (_, seat) = slices.seats(hosts(2), 2, pod=True)
    assert seat.variables == tpu.get_tpu_coordinator_env_vars("10.0.0.1", 2, 1)


JAX_READS = """
import json, os, sys
from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster as cluster
for variables in json.load(sys.stdin):
    os.environ.update(variables)
    print(cluster.get_process_id(), cluster.get_process_count(), cluster.get_coordinator_address(1))
"""


@pytest.mark.slow
def test_jax_reads_process_ids_and_coordinator_from_the_variables():
    pytest.importorskip("jax", reason="Kaggle's torch_xla 2.8 comes without it")
    seats = [
        seat
        for count, workers in [(2, 1), (2, 4), (4, 2)]
        for seat in slices.seats(hosts(count * workers), count, pod=False)
    ]
    done = subprocess.run(
        [sys.executable, "-c", JAX_READS],
        input=json.dumps([dict(seat.variables) for seat in seats]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        f"{n} {count} 10.0.0.1:8476" for count in (2, 8, 8) for n in range(count)
    ]


# ---------------------------------------------------------------- preset variables


def of_slice(number, worker, count=2):
    return {
        "MEGASCALE_NUM_SLICES": str(count),
        "MEGASCALE_SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": "leader:8080",
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": f"s{number}-w0,s{number}-w1",
    }


@pytest.mark.parametrize("wanted", [None, 2])
def test_pod_hosts_are_seated_by_their_preset_variables(wanted):
    preset_hosts = preset(4, of_slice(1, 1), of_slice(0, 1), of_slice(1, 0), of_slice(0, 0))
    seats = slices.seats(preset_hosts, wanted, pod=True)
    assert seated(seats) == [
        ("host-4", 0, 0),
        ("host-2", 0, 1),
        ("host-3", 1, 0),
        ("host-1", 1, 1),
    ]
    for seat in seats:
        own = of_slice(seat.slice, seat.worker)
        assert seat.variables == {**own, "MEGASCALE_PORT": "8080"}


def test_hosts_without_preset_numbers_take_free_seats():
    preset_hosts = preset(4, {}, {}, {"MEGASCALE_SLICE_ID": "0"}, {})
    seats = slices.seats(preset_hosts, 2, pod=False)
    assert seated(seats) == [
        ("host-3", 0, 0),
        ("host-1", 0, 1),
        ("host-2", 1, 0),
        ("host-4", 1, 1),
    ]


def test_hosts_with_only_worker_ids_fill_slices_in_order():
    preset_hosts = preset(4, *({"TPU_WORKER_ID": worker} for worker in "1010"))
    seats = slices.seats(preset_hosts, 2, pod=True)
    assert seated(seats) == [
        ("host-2", 0, 0),
        ("host-1", 0, 1),
        ("host-4", 1, 0),
        ("host-3", 1, 1),
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "8081"),
        ({"MEGASCALE_PORT": "7000"}, "7000"),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "leader:8080"}, "8080"),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "[fd00::1]:8080"}, "8080"),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "fd00::1"}, "8081"),
    ],
)
def test_megascale_port_defaults_to_rays(environ, expected):
    seats = slices.seats(preset(2, environ), 2, pod=False)
    assert {seat.variables["MEGASCALE_PORT"] for seat in seats} == {expected}


def test_all_hosts_use_the_coordinator_preset_on_one():
    seats = slices.seats(preset(2, {}, {"MEGASCALE_COORDINATOR_ADDRESS": "here"}), 2, pod=True)
    assert {seat.variables["MEGASCALE_COORDINATOR_ADDRESS"] for seat in seats} == {"here"}


def test_warning_in_place_of_host_names_is_ignored():
    warned = {"TPU_WORKER_HOSTNAMES": "WARNING: could not determine TPU worker hostnames"}
    (seat,) = slices.seats(preset(1, warned), None, pod=True)
    assert seat.variables == {}


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("count", "wanted", "message"),
    [
        (4, 3, "4 hosts cannot be divided into 3 slices.*Use 1, 2 or 4 slices"),
        (6, 4, "6 hosts .*Use 1, 2, 3 or 6 slices"),
        (1, 2, "1 host cannot .* 2 slices.*Use 1 slice"),
    ],
)
def test_impossible_number_of_slices_is_refused(count, wanted, message):
    with pytest.raises(UsageError, match=message):
        slices.seats(hosts(count), wanted, pod=False)


@pytest.mark.parametrize(
    ("environs", "wanted", "message"),
    [
        (
            [{"MEGASCALE_NUM_SLICES": "2"}],
            1,
            "host-1 has MEGASCALE_NUM_SLICES=2, but --slices gives 1",
        ),
        (
            [{"MEGASCALE_NUM_SLICES": "2"}, {"MEGASCALE_NUM_SLICES": "4"}],
            None,
            "host-1 has MEGASCALE_NUM_SLICES=2 and host-2 has MEGASCALE_NUM_SLICES=4",
        ),
        (
            [{"MEGASCALE_NUM_SLICES": "two"}],
            None,
            "host-1 has MEGASCALE_NUM_SLICES=two.*not a number",
        ),
        ([{"MEGASCALE_NUM_SLICES": "3"}], None, "4 hosts .*Use 1, 2 or 4 slices"),
        (
            [{"MEGASCALE_SLICE_ID": "2"}],
            2,
            "host-1 has MEGASCALE_SLICE_ID=2, but no such position is free in 2 slices",
        ),
        (
            [{"MEGASCALE_SLICE_ID": "1"}],
            1,
            "host-1 has MEGASCALE_SLICE_ID=1, but no such position is free in 1 slice",
        ),
        (
            [{"MEGASCALE_SLICE_ID": "0"}] * 3,
            2,
            "host-3 has MEGASCALE_SLICE_ID=0, but .*; host-1 has MEGASCALE_SLICE_ID=0; h",
        ),
        (
            [{"TPU_WORKER_ID": "2"}],
            2,
            "host-1 has TPU_WORKER_ID=2, but no such position is free in 2 slices",
        ),
        (
            [{"TPU_WORKER_ID": "1"}] * 2,
            1,
            "host-2 has TPU_WORKER_ID=1, but no such .*; host-1 has TPU_WORKER_ID=1",
        ),
        (
            [{"TPU_WORKER_HOSTNAMES": "a,b"}, {"TPU_WORKER_HOSTNAMES": "b,a"}],
            2,
            "host-1 has TPU_WORKER_HOSTNAMES=a,b and host-2 has TPU_WORKER_HOSTNAMES=b,a",
        ),
        (
            [{"TPU_WORKER_HOSTNAMES": "a,b,c,d"}],
            2,
            "HOSTNAMES=a,b,c,d, which lists 4 hosts, but a slice of this run has 2 hosts",
        ),
        (
            [{"MEGASCALE_COORDINATOR_ADDRESS": "a"}, {"MEGASCALE_COORDINATOR_ADDRESS": "b"}],
            2,
            "MEGASCALE_COORDINATOR_ADDRESS=a and host-2 has MEGASCALE_COORDINATOR_ADDRESS=b",
        ),
        (
            [{"MEGASCALE_COORDINATOR_ADDRESS": "a:1", "MEGASCALE_PORT": "2"}],
            2,
            "host-1 has MEGASCALE_PORT=2, but MEGASCALE_COORDINATOR_ADDRESS gives 1",
        ),
    ],
)
def test_error_names_both_conflicting_variables(environs, wanted, message):
    with pytest.raises(UsageError, match=message) as refused:
        slices.seats(preset(4, *environs), wanted, pod=True)
    assert re.search(r"\. (Remove|Use) [^.]*\.$", str(refused.value))
