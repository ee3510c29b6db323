"""Diagrams: of cluster hosts, of this machine, and as text."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import diagram, slices
from xla_nb.topology.chips import process_bounds


def hosts(*names, slices_=1):
    return slices.seats([slices.Host(name) for name in names], slices_, pod=False)


def ranks(world):
    return [[*process.ranks] for process in world.processes]


# ---------------------------------------------------------------- a cluster's hosts


def test_cluster_hosts_are_shown_by_name_or_address():
    seats = slices.seats([slices.Host("10.0.0.1", "one"), slices.Host("10.0.0.2")], 2, pod=False)
    world = diagram.of(seats, 1, None, "on Ray")
    assert [process.host for process in world.processes] == ["one", "10.0.0.2"]
    assert world.title == "2 ranks on 2 hosts in 2 slices, simulated v4-8 each: on Ray"


def test_ranks_of_simulated_hosts_are_numbered_over_all_of_them():
    world = diagram.of(hosts("a", "b", "c", "d", slices_=2), 2, None, "on Ray")
    assert ranks(world) == [[number] for number in range(8)]
    assert world.title == "8 ranks on 4 hosts in 2 slices, simulated v4-8 each: on Ray"


def test_two_ranks_share_a_v3_chip():
    world = diagram.of(hosts("a"), None, "v3-8", "on Ray")
    assert ranks(world) == [[0, 1], [2, 3], [4, 5], [6, 7]]


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


@pytest.mark.parametrize(
    ("count", "n", "accelerator", "message"),
    [
        (2, None, "v5litepod-16", "A v5litepod-16 has 16 chips on 4 hosts"),
        (1, 3, "v6e-8", "1, 2, 4 or 8"),
        (1, None, "H100", "Unknown TPU type H100"),
        (65, None, None, "Draw at most 64 hosts, and 1,024 ranks in all"),
        (8, 10**8, None, "Draw at most 64 hosts, and 1,024 ranks in all"),
    ],
)
def test_impossible_diagrams_are_refused(count, n, accelerator, message):
    seats = hosts(*(f"host-{number}" for number in range(count)))
    with pytest.raises(UsageError, match=message):
        diagram.of(seats, n, accelerator, "on Ray")


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


def test_ranks_may_be_told_of_a_cpu(machine):
    machine(0)
    world = diagram.here({"XLA_NB_SIMULATE": "cpu"}, 2)
    assert world.title.startswith("2 ranks on 1 host in 1 slice, simulated, as a CPU")
    assert ranks(world) == [[0], [1]]


@pytest.mark.parametrize(("n", "count"), [(None, 8), (2, 2)])
def test_a_tpu_host_is_shown_as_a_launch_would_use_it(machine, n, count):
    machine(8)
    world = diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, n)
    assert len(world.processes) == count
    assert world.title == f"{count} ranks on 1 host in 1 slice, v5litepod-8: this machine"
    with pytest.raises(UsageError, match="1, 2, 4 or 8"):
        diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, 3)


@pytest.mark.parametrize("accelerator", ["v5litepod-16", "tpu7x-8"])
def test_a_host_of_a_slice_is_shown_with_its_own_chips(machine, accelerator):
    machine(4)
    world = diagram.here({"TPU_ACCELERATOR_TYPE": accelerator}, None)
    assert len(world.processes) == 4
    assert f" on 1 host in 1 slice, {accelerator}: this machine" in world.title


# ---------------------------------------------------------------- as text


def test_a_host_is_a_line():
    own = [
        diagram.Process(0, "a", range(1)),
        diagram.Process(0, "a", range(1, 2)),
        diagram.Process(1, "b", range(2, 3)),
    ]
    assert str(diagram.Diagram("title", own, "note " * 30)).splitlines()[:4] == [
        "title",
        "",
        "slice 0  a  [0][1]",
        "slice 1  b  [2]",
    ]


def test_lines_stay_short_for_any_size():
    seats = hosts(*(f"host-{number}" for number in range(4)), slices_=2)
    lines = str(diagram.of(seats, 256, None, "on Ray")).splitlines()
    assert max(map(len, lines)) <= diagram.WIDTH
    assert lines[2].startswith("slice 0  host-0  [   0][   1]")
    assert lines[2].endswith("[ 254][ 255]")
