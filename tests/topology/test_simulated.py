"""The TPU that a simulated host answers as."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import simulated, slice_shape
from xla_nb.topology.simulated import SimulatedTpu


@pytest.mark.parametrize(
    ("n", "hosts", "expected"),
    [
        (None, 1, SimulatedTpu("v4-8", 4, 4)),
        (1, 1, SimulatedTpu("v4-8", 4, 1)),
        (3, 1, SimulatedTpu("v4-8", 4, 3)),
        (4, 2, SimulatedTpu("v4-16", 4, 4, 2)),
        (2, 2, SimulatedTpu("v4-8", 2, 2, 2)),
        (5, 1, SimulatedTpu("v5litepod-8", 8, 5)),
        (8, 1, SimulatedTpu("v5litepod-8", 8, 8)),
        (64, 1, SimulatedTpu("v5litepod-64", 64, 64)),
    ],
)
def test_without_a_wish_it_is_the_smallest_host_that_has_the_ranks(n, hosts, expected):
    assert simulated.tpu("", n, hosts) == expected


@pytest.mark.parametrize(
    ("wish", "n", "hosts", "expected"),
    [
        ("v5litepod-8", None, 1, SimulatedTpu("v5litepod-8", 8, 8)),
        ("v5e-8", 4, 1, SimulatedTpu("v5litepod-8", 8, 4)),
        ("V6E-8", None, 1, SimulatedTpu("v6e-8", 8, 8)),
        ("v4-16", None, 2, SimulatedTpu("v4-16", 4, 4, 2)),
        ("v5litepod-16", 4, 4, SimulatedTpu("v5litepod-16", 4, 4, 4)),
    ],
)
def test_a_type_that_is_wished_for_has_its_own_chips(wish, n, hosts, expected):
    assert simulated.tpu(wish, n, hosts) == expected


def test_ranks_of_a_simulated_cpu_host_may_be_as_many_as_wished():
    assert simulated.tpu("cpu", 3) is None
    assert simulated.ranks("cpu", 3) == 3
    assert simulated.ranks("CPU", None) == 4


@pytest.mark.parametrize(
    ("wish", "n", "hosts", "message"),
    [
        ("v3-8", None, 1, "a process of a v3-8 has two devices"),
        ("h100", None, 1, "'h100' cannot be simulated. Choose v4-8"),
        ("v4-7", None, 1, "Unknown TPU type v4-7"),
        ("v4--8", None, 1, "Unknown TPU type v4--8"),
        ("v4-16", None, 1, "8 chips on 2 hosts, not 1"),
        ("v5litepod-8", 3, 1, "-n 3 is not possible .* Use 1, 2, 4 or 8"),
        ("v4-16", 2, 2, "uses all of their chips"),
    ],
)
def test_what_no_such_tpu_has_is_refused(wish, n, hosts, message):
    with pytest.raises(UsageError, match=message):
        simulated.tpu(wish, n, hosts)


@pytest.mark.parametrize(
    ("accelerator", "hosts"), [("v4-8", 1), ("v5p-8", 1), ("v5litepod-8", 1), ("v5litepod-32", 8)]
)
def test_the_bounds_of_a_slice_are_those_of_its_type(accelerator, hosts):
    tpu = simulated.tpu(accelerator, None, hosts)
    addresses = [f"host-{number}" for number in range(hosts)]
    on_paper = slice_shape.processes(accelerator, addresses, 0)[0]
    assert tpu.variables()["TPU_PROCESS_BOUNDS"] == on_paper["TPU_PROCESS_BOUNDS"]


@pytest.mark.parametrize(
    ("accelerator", "hosts"), [("v4-16", 2), ("v5litepod-8", 1), ("v5litepod-16", 4)]
)
def test_each_rank_has_a_place_of_its_own_within_the_bounds(accelerator, hosts):
    tpu = simulated.tpu(accelerator, None, hosts)
    environ = tpu.variables()
    places = [simulated.coordinates(environ, rank, tpu.ranks) for rank in range(hosts * tpu.ranks)]
    size = [int(side) for side in environ["TPU_PROCESS_BOUNDS"].split(",")]
    assert sorted(places) == [
        (x, y, z) for x in range(size[0]) for y in range(size[1]) for z in range(size[2])
    ]
    assert places[0] == (0, 0, 0)
    assert places[1] == (1, 0, 0)


def test_slices_have_the_same_places():
    environ = simulated.tpu("v4-8", None).variables()
    assert simulated.coordinates(environ, 5, 4) == simulated.coordinates(environ, 1, 4)
