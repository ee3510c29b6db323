"""Completing the axes of a mesh."""

import pytest

from xla_nb.topology.mesh_axes import complete


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        ({"data": 2, "model": 4}, {"data": 2, "model": 4}),
        ({"data": -1}, {"data": 8}),
        ({"data": -1, "model": 4}, {"data": 2, "model": 4}),
        ({"data": 8, "model": -1}, {"data": 8, "model": 1}),
    ],
)
def test_minus_one_becomes_what_the_other_axes_leave(axes, sizes):
    assert complete(axes, 8) == sizes


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 3},
        {"data": 3, "model": -1},
        {"data": 16, "model": -1},
        {"data": 0, "model": -1},
        {"data": -2, "model": -4},
        {"data": -1, "model": -1},
    ],
)
def test_axes_that_do_not_cover_the_devices_have_no_sizes(axes):
    assert complete(axes, 8) is None


def test_only_one_axis_may_be_minus_one_even_for_one_device():
    assert complete({"data": -1, "model": -1}, 1) is None
