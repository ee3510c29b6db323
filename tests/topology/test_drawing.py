"""Drawings as text: content, folding and width."""

import textwrap

import pytest

from xla_nb.topology import drawing
from xla_nb.topology.drawing import Diagram, DiagramHost, DiagramProcess


def world(slices, hosts, ranks, each=1, name="host-{}", **variables):
    """A diagram of `slices` slices, `hosts` hosts in each and `ranks` ranks on each host, `each` to
    a process; a variable's value is a function of (slice, host in it, process on that)."""
    count = iter(range(slices * hosts * ranks))
    return Diagram(
        "a world",
        [
            [
                DiagramHost(
                    name.format(s * hosts + h),
                    [
                        DiagramProcess(
                            [next(count) for _ in range(each)],
                            {key: value(s, h, p) for key, value in variables.items()},
                        )
                        for p in range(ranks // each)
                    ],
                )
                for h in range(hosts)
            ]
            for s in range(slices)
        ],
    )


def drawn(*args, **variables):
    return drawing.draw(world(*args, **variables)).splitlines()


def shape(*args, **options):
    """The drawing without its title."""
    return "\n".join(drawn(*args, **options)[2:])


def block(text):
    return textwrap.dedent(text).strip("\n")


# ---------------------------------------------------------------- hosts and ranks


def test_a_host_is_a_line_with_a_box_for_each_process():
    assert shape(1, 1, 4) == "slice 0 ─ host-0  [0][1][2][3]"


def test_a_process_with_two_ranks_has_both_in_its_box():
    assert shape(1, 1, 4, each=2) == "slice 0 ─ host-0  [0 1][2 3]"


def test_hosts_are_grouped_by_slice_and_ranks_are_aligned():
    assert shape(2, 2, 3) == block(
        """
        slice 0 ┬ host-0  [ 0][ 1][ 2]
                └ host-1  [ 3][ 4][ 5]
        slice 1 ┬ host-2  [ 6][ 7][ 8]
                └ host-3  [ 9][10][11]
        """
    )


def test_many_hosts_are_folded_to_the_first_few_and_the_last():
    assert shape(1, 64, 1) == block(
        """
        slice 0 ┬ host-0   [ 0]
                ├ host-1   [ 1]
                ├ host-2   [ 2]
                ├ host-3   [ 3]
                ⋮ 59 more hosts
                └ host-63  [63]
        """
    )


def test_many_slices_are_folded_to_the_first_few_and_the_last():
    assert shape(12, 1, 1) == block(
        """
        slice 0  ─ host-0   [ 0]
        slice 1  ─ host-1   [ 1]
        ⋮ 9 more slices
        slice 11 ─ host-11  [11]
        """
    )


def test_many_ranks_on_a_host_are_folded_to_the_first_few_and_the_last():
    (line,) = shape(1, 1, 256).splitlines()
    assert "[  0][  1]" in line
    assert line.endswith(" … [255]")
    assert len(line) > 90


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("value", "heading", "values"),
    [
        (lambda s, h, p: "CPU", "every process", "CPU"),
        (lambda s, h, p: str(s), "one for each slice", "0 | 1"),
        (lambda s, h, p: str(p), "one for each process of a host", "0 | 1 | 2 | 3"),
        (lambda s, h, p: str(h), "one for each host of a slice", "0 | 1 | 2"),
        (lambda s, h, p: str(3 * s + h), "one for each host", "0 … 5"),
        (lambda s, h, p: str(4 * h + p), "one for each process of a slice", "0 … 11"),
        (lambda s, h, p: str(12 * s + 4 * h + p), "one for each process", "0 … 23"),
    ],
)
def test_a_variable_is_listed_under_what_its_values_depend_on(value, heading, values):
    assert drawn(2, 3, 4, NAME=value)[-2:] == [f"{heading}:", f"  NAME  {values}"]


def test_long_lists_in_values_are_folded():
    def addresses(s, h, p):
        return ",".join(f"host-{s}-{n}:8476" for n in range(16))

    assert drawn(2, 1, 1, ADDRESSES=addresses)[-1] == (
        "  ADDRESSES  host-0-0:8476, …, host-0-15:8476 | host-1-0:8476, …, host-1-15:8476"
    )


def test_a_variable_missing_in_some_processes_is_shown_as_not_set():
    drawn_world = world(1, 2, 1)
    drawn_world.slices[0][0].processes[0] = DiagramProcess([0], {"NAME": "x"})
    assert drawing.draw(drawn_world).splitlines()[-1] == "  NAME  x | not set"


# ---------------------------------------------------------------- room


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 64, 8), (64, 1, 256), (128, 64, 4)])
@pytest.mark.parametrize("name", ["host-{}", "a-name-as-long-as-clouds-like-to-give-them-{}"])
def test_lines_and_drawings_stay_short_for_any_size(sizes, name):
    lines = drawn(
        *sizes,
        name=name,
        LONG=lambda s, h, p: "x" * 300,
        LIST=lambda s, h, p: ",".join([f"{s}-{h}-{'y' * 60}"] * 9),
    )
    assert max(map(len, lines)) <= drawing.WIDTH
    assert len(lines) < 40


def test_notes_are_wrapped_below():
    lines = drawing.draw(Diagram("t", world(1, 1, 1).slices, ["word " * 40])).splitlines()
    assert lines[-1].startswith("word")
    assert max(map(len, lines)) <= drawing.WIDTH
