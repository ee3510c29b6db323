"""Slices on paper, checked against torch_xla itself on one of their hosts."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import environment, slice_shape, slices
from xla_nb.topology.chips import process_bounds
from xla_nb.topology.slices import Host

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


# ---------------------------------------------------------------- torch_xla's own answers


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
    """A host of the last of two slices that may not ask, with the variables of its seat."""
    _, _, host, chips = SLICES[accelerator]
    other = [Host(f"10.1.0.{n}") for n in range(SLICES[accelerator][0])]
    own = [Host(address) for address in addresses(accelerator)]
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
    environ, _ = environment.clean(environ, device="TPU", sets=sets)
    return {"environ": environ, "chips": chips, "metadata": metadata}


@pytest.fixture(scope="module")
def answers(torch_xla_says):
    return dict(zip(CASES, torch_xla_says([case(*key) for key in CASES]), strict=True))


@pytest.mark.parametrize("key", CASES, ids=lambda key: "-".join(map(str, key)))
def test_each_process_gets_the_variables_that_torch_xla_sets(answers, key):
    accelerator, _, worker, n = key
    own = slice_shape.processes(accelerator, addresses(accelerator), worker, n)
    assert {variables.pop("PJRT_DEVICE") for variables in own} == {"TPU"}
    assert own == answers[key]["ranks"]
    assert len(own) == answers[key]["processes"]


# ---------------------------------------------------------------- hosts, and unknown shapes


@pytest.mark.parametrize("accelerator", SLICES)
def test_the_type_determines_hosts_and_chips_per_host(accelerator):
    hosts, chips, *_ = SLICES[accelerator]
    assert slice_shape.hosts(accelerator) == hosts
    assert slice_shape.chips_per_host(accelerator, hosts) == chips


def test_eight_chips_may_be_two_machines():
    own = slice_shape.processes("v5litepod-8", ["a", "b"], 1)
    assert [each["CLOUD_TPU_TASK_ID"] for each in own] == ["4", "5", "6", "7"]
    assert {each["TPU_PROCESS_BOUNDS"] for each in own} == {"2,4,1"}


@pytest.mark.parametrize("accelerator", ["v4-16", "v5p-128"])
def test_the_shape_of_a_block_is_left_out(accelerator):
    hosts = [f"host-{n}" for n in range(slice_shape.hosts(accelerator))]
    own = slice_shape.processes(accelerator, hosts, 1)
    assert [each["CLOUD_TPU_TASK_ID"] for each in own] == ["4", "5", "6", "7"]
    assert "TPU_PROCESS_BOUNDS" not in own[0]
    assert "asks the metadata server" in slice_shape.unknown(accelerator)


@pytest.mark.parametrize("accelerator", SLICES)
def test_slices_other_than_blocks_are_fully_known(accelerator):
    assert slice_shape.unknown(accelerator) == ""


@pytest.mark.parametrize("accelerator", ["tpu7x-8", "v9-8", "v5litepod", "v5litepod-12", "H100"])
def test_an_unknown_type_is_refused_with_examples(accelerator):
    with pytest.raises(UsageError, match="v5litepod-16"):
        slice_shape.hosts(accelerator)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_a_host_count_that_does_not_fit_the_type_is_refused(hosts):
    with pytest.raises(UsageError, match="A v5litepod-16 has 16 chips on 4 hosts"):
        slice_shape.chips_per_host("v5litepod-16", hosts)


def test_part_of_several_hosts_is_refused():
    with pytest.raises(UsageError, match="Omit -n"):
        slice_shape.processes("v5litepod-16", ["a", "b", "c", "d"], 0, n=2)
