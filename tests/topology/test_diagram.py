"""Diagrams: on paper, of cluster hosts, of this machine, and as text."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import diagram, slices, tpu_types
from xla_nb.topology.chips import process_bounds


def variables(world, slice_, host, process):
    own = [each for each in world.processes if (each.slice, each.host) == (slice_, host)]
    return own[process].variables


def ranks(world):
    return [[*process.ranks] for process in world.processes]


@pytest.mark.parametrize(
    ("options", "slices_", "hosts", "each"),
    [
        ((None, None, None, None), 1, 1, 4),
        ((4, 2, 3, None), 2, 4, 3),
        ((None, 3, None, None), 3, 3, 4),
        ((None, 2, None, "v5litepod-16"), 2, 8, 4),
        ((None, 1, 4, "v6e-8"), 1, 1, 4),
        ((None, None, None, "v3-32"), 1, 4, 8),
    ],
)
def test_a_diagram_on_paper_has_the_requested_slices_hosts_and_ranks(options, slices_, hosts, each):
    world = diagram.on_paper(*options)
    assert world.processes[-1].slice == slices_ - 1
    assert len({(process.slice, process.host) for process in world.processes}) == hosts
    assert [rank for own in ranks(world) for rank in own] == list(range(hosts * each))
    assert world.title.startswith(f"{hosts * each} ranks on {hosts} host")


def test_two_ranks_share_a_v3_chip():
    world = diagram.on_paper(None, None, None, "v3-8")
    assert ranks(world) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "slice 0  host-0  [0 1][2 3][4 5][6 7]" in str(world)


def test_simulated_processes_have_the_variables_of_their_hosts_seat():
    own = variables(diagram.on_paper(4, 2, 4, None), 1, "host-3", 0)
    seat = slices.seats([slices.Host(f"host-{n}") for n in range(4)], 2, pod=False)[3]
    as_on_a_tpu = tpu_types.processes("v4-16", ["host-2", "host-3"], 1)[0]
    assert own == {**seat.variables, **as_on_a_tpu, "TPU_PROCESS_BOUNDS": "2,2,2"}


def test_tpu_processes_have_the_variables_that_torch_xla_sets():
    own = variables(diagram.on_paper(None, 2, None, "v5litepod-16"), 1, "host-6", 3)
    expected = tpu_types.processes("v5litepod-16", ["host-4", "host-5", "host-6", "host-7"], 2)[3]
    assert own.items() >= expected.items()
    assert own["MEGASCALE_SLICE_ID"] == "1"


def test_cluster_hosts_are_shown_by_name_or_address():
    seats = slices.seats([slices.Host("10.0.0.1", "one"), slices.Host("10.0.0.2")], 2, pod=False)
    world = diagram.of(seats, 1, None, "on Ray")
    assert [process.host for process in world.processes] == ["one", "10.0.0.2"]
    assert world.title == "2 ranks on 2 hosts in 2 slices, simulated v4-8 each: on Ray"


@pytest.mark.parametrize(
    ("count", "accelerator", "chips"), [(2, "v6e-8", 8), (1, "v5litepod-8", 4)]
)
def test_part_of_several_tpu_hosts_is_refused_as_a_launch_refuses_it(count, accelerator, chips):
    seats = slices.seats([slices.Host("a"), slices.Host("b")], count, pod=True)
    with pytest.raises(UsageError) as launch:
        process_bounds(accelerator, chips, 2, hosts=2)
    with pytest.raises(UsageError) as shown:
        diagram.of(seats, 2, accelerator, "on Ray")
    assert str(shown.value) == str(launch.value)
    assert ranks(diagram.of(seats, None, accelerator, "on Ray"))[-1] == [2 * chips - 1]


def test_an_unknown_slice_shape_is_explained_in_a_note():
    world = diagram.on_paper(None, None, None, "v4-16")
    assert "shape is chosen" in world.notes[-1]
    assert "TPU_PROCESS_BOUNDS" not in variables(world, 0, "host-0", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((3, 2, None, None), "Use 1 or 3 slices"),
        ((4, 2, None, "v5litepod-16"), "A v5litepod-16 has 16 chips on 4 hosts"),
        ((None, None, 3, "v6e-8"), "1, 2, 4 or 8"),
        ((None, None, None, "H100"), "Unknown TPU type H100"),
        ((10**8, None, None, None), "Draw at most 64 hosts, and 1,024 ranks in all"),
        ((8, None, 10**8, None), "Draw at most 64 hosts, and 1,024 ranks in all"),
    ],
)
def test_impossible_diagrams_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        diagram.on_paper(*options)


# ---------------------------------------------------------------- this machine


@pytest.fixture
def machine(monkeypatch):
    """machine(8) gives this machine 8 chips."""

    def has(chips):
        monkeypatch.setattr(diagram, "count_chips", lambda: chips)

    return has


def test_simulated_ranks_are_shown_as_the_tpu_that_was_asked_for(machine):
    machine(8)
    world = diagram.here({"XLA_NB_SIMULATE": "v6e-4"}, None)
    assert world.title == "4 ranks on 1 host in 1 slice, simulated v6e-4: on this machine"
    assert variables(world, 0, "localhost", 3)["TPU_VISIBLE_CHIPS"] == "3"


def test_ranks_that_are_told_of_a_cpu_have_no_variables_of_a_tpu(machine):
    machine(0)
    world = diagram.here({"XLA_NB_SIMULATE": "cpu"}, 2)
    assert variables(world, 0, "localhost", 1) == {
        "PJRT_DEVICE": "CPU",
        "PJRT_LOCAL_PROCESS_RANK": "1",
        "PJRT_LOCAL_PROCESS_COUNT": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }


@pytest.mark.parametrize(("n", "bounds"), [(None, "2,4,1"), (2, "1,2,1")])
def test_a_tpu_host_is_shown_as_a_launch_would_use_it(machine, n, bounds):
    machine(8)
    world = diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, n)
    assert len(ranks(world)) == (n or 8)
    assert variables(world, 0, "localhost", 0)["TPU_PROCESS_BOUNDS"] == bounds
    with pytest.raises(UsageError, match="1, 2, 4 or 8"):
        diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, 3)


@pytest.mark.parametrize("accelerator", ["v5litepod-16", "tpu7x-8"])
def test_variables_from_the_metadata_server_are_not_shown(machine, accelerator):
    machine(4)
    world = diagram.here({"TPU_ACCELERATOR_TYPE": accelerator}, None)
    assert variables(world, 0, "localhost", 0) == {"PJRT_DEVICE": "TPU"}
    assert "asks the metadata server" in world.notes[-1]


# ---------------------------------------------------------------- as text


def test_values_are_listed_once_under_what_is_the_same_and_what_is_not():
    own = [
        diagram.Process(0, "a", range(1), {"SAME": "x", "RANK": "0", "ONE": "y"}),
        diagram.Process(0, "a", range(1, 2), {"SAME": "x", "RANK": "1"}),
        diagram.Process(1, "b", range(2, 3), {"SAME": "x", "RANK": "0"}),
    ]
    assert str(diagram.Diagram("title", own, ["note " * 30])).splitlines()[2:-3] == [
        "slice 0  a  [0][1]",
        "slice 1  b  [2]",
        "",
        "every process:",
        "  SAME  x",
        "differs between processes:",
        "  RANK  0 | 1",
        "  ONE   y | not set",
    ]


def test_lines_stay_short_for_any_size():
    lines = str(diagram.on_paper(4, 2, 256, None)).splitlines()
    assert max(map(len, lines)) <= diagram.WIDTH
    assert lines[2].startswith("slice 0  host-0  [   0][   1]")
    assert lines[2].endswith("[ 254][ 255]")
