"""Properties of TPU types, checked against torch_xla itself, and simulated hosts."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import environment, slices, tpu_types
from xla_nb.topology.chips import process_bounds
from xla_nb.topology.slices import Host
from xla_nb.topology.tpu_types import SimulatedTpu

# accelerator type: (hosts, chips of each, bounds of the hosts, bounds of one host's chips), from
# torch_xla's table, Google's pages on v5e and v6e and, for one host, test_chips
SLICES = {
    "v2-8": (1, 4, "1,1,1", "2,2,1"),
    "v2-32": (4, 4, "2,2,1", "2,2,1"),
    "v3-64": (8, 4, "2,4,1", "2,2,1"),
    "v4-8": (1, 4, "1,1,1", "2,2,1"),
    "v5litepod-1": (1, 1, "1,1,1", "1,1,1"),
    "v5litepod-8": (1, 8, "1,1,1", "2,4,1"),
    "v5litepod-16": (4, 4, "2,2,1", "2,2,1"),
    "v5litepod-64": (16, 4, "4,4,1", "2,2,1"),
    "v6e-8": (1, 8, "1,1,1", "2,4,1"),
    "v6e-32": (8, 4, "2,4,1", "2,2,1"),
}


# ---------------------------------------------------------------- results of torch_xla


def addresses(accelerator):
    return [f"10.0.0.{n}" for n in range(1, SLICES[accelerator][0] + 1)]


def asks_the_metadata_server(accelerator, worker):
    """A TPU VM with its metadata server's answers: (environment, metadata)."""
    _, _, host, chips = SLICES[accelerator]
    return {}, {
        "tpu-env": f"ACCELERATOR_TYPE: '{accelerator}'\nTPU_PROCESS_BOUNDS: '{host}'\n"
        f"TPU_CHIPS_PER_PROCESS_BOUNDS: '{chips}'\nWORKER_ID: '{worker}'\n",
        "worker-network-endpoints": ",".join(f"a:b:{one}" for one in addresses(accelerator)),
    }


def gets_its_seat(accelerator, worker):
    """A host of the second slice, with its seat's variables and no metadata server."""
    _, _, host, chips = SLICES[accelerator]
    other = [Host(f"10.1.0.{n}", f"other-{n}") for n in range(SLICES[accelerator][0])]
    own = [Host(address, address) for address in addresses(accelerator)]
    seat = slices.seats([*other, *own], 2, pod=False)[len(other) + worker]
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator,
        "TPU_HOST_BOUNDS": host,
        "TPU_CHIPS_PER_HOST_BOUNDS": chips,
        **seat.variables,
    }, {}


KNOWS = {"asks": asks_the_metadata_server, "seat": gets_its_seat}
CASES = [
    (accelerator, knows, worker, n)
    for accelerator, (hosts, *_) in SLICES.items()
    for knows in KNOWS
    for worker in sorted({0, hosts - 1})
    for n in ([None, 4] if accelerator in ("v5litepod-8", "v2-8") else [None])
]


def case(accelerator, knows, worker, n):
    chips = SLICES[accelerator][1]
    environ, metadata = KNOWS[knows](accelerator, worker)
    sets = process_bounds(accelerator, chips, n)
    environ, _ = environment.clean(environ, device="TPU", sets=sets, user_env={})
    return {"environ": environ, "chips": chips, "metadata": metadata}


@pytest.fixture(scope="module")
def answers(torch_xla_says):
    return dict(zip(CASES, torch_xla_says([case(*key) for key in CASES]), strict=True))


@pytest.mark.parametrize("key", [key for key in CASES if key[1] == "seat"], ids=str)
def test_seat_variables_have_the_same_effect_as_the_metadata_server(answers, key):
    accelerator, _, worker, n = key
    assert answers[key] == answers[accelerator, "asks", worker, n]


# ---------------------------------------------------------------- hosts


@pytest.mark.parametrize("accelerator", SLICES)
def test_type_determines_hosts_and_chips_per_host(accelerator):
    hosts, chips, *_ = SLICES[accelerator]
    assert tpu_types.hosts(accelerator) == hosts
    assert tpu_types.chips_per_host(accelerator, hosts) == chips


def test_eight_chips_may_be_split_over_two_hosts():
    assert tpu_types.chips_per_host("v5litepod-8", 2) == 4


@pytest.mark.parametrize("accelerator", ["tpu7x-8", "v9-8", "v5litepod", "v5litepod-12", "H100"])
def test_unknown_type_is_refused_with_examples(accelerator):
    with pytest.raises(UsageError, match="v5litepod-16"):
        tpu_types.hosts(accelerator)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_host_count_that_does_not_fit_the_type_is_refused(hosts):
    with pytest.raises(UsageError, match="A v5litepod-16 has 16 chips on 4 hosts"):
        tpu_types.chips_per_host("v5litepod-16", hosts)


# ---------------------------------------------------------------- simulated hosts


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
def test_default_simulated_host_is_the_smallest_that_fits_the_ranks(n, hosts, expected):
    assert tpu_types.simulated("", n, hosts) == expected


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
def test_requested_simulated_type_keeps_its_chip_count(wish, n, hosts, expected):
    assert tpu_types.simulated(wish, n, hosts) == expected


def test_simulated_cpu_host_allows_any_number_of_ranks():
    assert tpu_types.simulated("cpu", 3) is None
    assert tpu_types.simulated_ranks("cpu", 3) == 3
    assert tpu_types.simulated_ranks("CPU", None) == 4


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
def test_impossible_simulated_tpus_are_refused(wish, n, hosts, message):
    with pytest.raises(UsageError, match=message):
        tpu_types.simulated(wish, n, hosts)


@pytest.mark.parametrize(
    ("accelerator", "hosts", "bounds"),
    [
        ("v4-8", 1, "2,2,1"),
        ("v5p-8", 1, "2,2,1"),
        ("v5litepod-8", 1, "2,4,1"),
        ("v5litepod-32", 8, "2,2,8"),
    ],
)
def test_slice_bounds_match_the_type(accelerator, hosts, bounds):
    tpu = tpu_types.simulated(accelerator, None, hosts)
    assert tpu.variables()["TPU_PROCESS_BOUNDS"] == bounds


@pytest.mark.parametrize(
    ("accelerator", "hosts"), [("v4-16", 2), ("v5litepod-8", 1), ("v5litepod-16", 4)]
)
def test_each_rank_has_unique_coordinates_within_the_bounds(accelerator, hosts):
    tpu = tpu_types.simulated(accelerator, None, hosts)
    environ = tpu.variables()
    places = [tpu_types.coordinates(environ, rank, tpu.ranks) for rank in range(hosts * tpu.ranks)]
    size = [int(side) for side in environ["TPU_PROCESS_BOUNDS"].split(",")]
    assert sorted(places) == [
        (x, y, z) for x in range(size[0]) for y in range(size[1]) for z in range(size[2])
    ]
    assert places[0] == (0, 0, 0)
    assert places[1] == (1, 0, 0)


def test_ranks_of_each_slice_have_the_same_coordinates():
    environ = tpu_types.simulated("v4-8", None).variables()
    assert tpu_types.coordinates(environ, 5, 4) == tpu_types.coordinates(environ, 1, 4)
