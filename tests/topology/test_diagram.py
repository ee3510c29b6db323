"""Diagrams of this machine, as text."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology import diagram


def title(text):
    return text.splitlines()[0]


def chips(text):
    return text.splitlines()[2]


@pytest.fixture
def machine(monkeypatch):
    """machine(8) gives this machine 8 chips."""

    def has(chips):
        monkeypatch.setattr(diagram, "count_chips", lambda: chips)

    return has


def test_title_names_the_simulated_tpu_type(machine):
    machine(8)
    text = diagram.here({"XLA_NB_SIMULATE": "v6e-4"}, None)
    assert title(text) == "4 ranks on 1 host in 1 slice, simulated v6e-4: on this machine"


def test_title_names_a_simulated_cpu(machine):
    machine(0)
    text = diagram.here({"XLA_NB_SIMULATE": "cpu"}, 2)
    assert title(text).startswith("2 ranks on 1 host in 1 slice, simulated as a CPU")
    assert chips(text) == "slice 0  localhost  [0][1]"


@pytest.mark.parametrize(("n", "count"), [(None, 8), (2, 2)])
def test_diagram_shows_the_ranks_a_launch_would_start(machine, n, count):
    machine(8)
    text = diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, n)
    assert chips(text).count("[") == count
    assert title(text) == f"{count} ranks on 1 host in 1 slice, v5litepod-8: this machine"
    with pytest.raises(UsageError, match="1, 2, 4 or 8"):
        diagram.here({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, 3)


@pytest.mark.parametrize("accelerator", ["v5litepod-16", "tpu7x-8"])
def test_host_of_a_larger_slice_shows_only_its_own_chips(machine, accelerator):
    machine(4)
    text = diagram.here({"TPU_ACCELERATOR_TYPE": accelerator}, None)
    assert chips(text).count("[") == 4
    assert f" on 1 host in 1 slice, {accelerator}: this machine" in title(text)


def test_host_of_an_unknown_type_shows_its_chips(machine):
    machine(8)
    text = diagram.here({}, 2)
    assert title(text) == "2 ranks on 1 host in 1 slice, TPU: this machine"
    assert chips(text) == "slice 0  localhost  [0][1]"


def test_two_ranks_share_a_v3_chip(machine):
    machine(4)
    text = diagram.here({"TPU_ACCELERATOR_TYPE": "v3-8"}, None)
    assert chips(text) == "slice 0  localhost  [0 1][2 3][4 5][6 7]"


@pytest.mark.parametrize(
    ("chips", "n", "accelerator", "message"),
    [
        (8, 3, "v6e-8", "1, 2, 4 or 8"),
        (0, 10**8, "", "100,000,000 ranks are too many to draw. Draw at most 1,024"),
    ],
)
def test_impossible_diagrams_are_refused(machine, chips, n, accelerator, message):
    machine(chips)
    with pytest.raises(UsageError, match=message):
        diagram.here({"TPU_ACCELERATOR_TYPE": accelerator} if accelerator else {}, n)


def test_lines_fit_the_width_with_many_ranks(machine):
    machine(0)
    lines = diagram.here({}, 512).splitlines()
    assert max(map(len, lines)) <= diagram.WIDTH
    assert lines[2].startswith("slice 0  localhost  [  0][  1]")
    assert lines[2].endswith("[510][511]")
