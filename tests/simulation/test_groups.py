"""Which ranks of a group reduce the same share, one on each host."""

import pytest

from xla_nb.simulation.groups import same_share


@pytest.mark.parametrize(
    ("group", "rank", "ranks_here", "expected"),
    [
        ([0, 1, 2, 3], 0, 2, [0, 2]),
        ([0, 1, 2, 3], 3, 2, [1, 3]),
        ([0, 1, 4, 5], 5, 4, [1, 5]),
        ([5, 1, 4, 0], 1, 4, [5, 1]),
        ([0, 1, 2, 3], 0, 4, []),  # one host
        ([0, 2], 0, 2, []),  # one rank on each
        ([0, 1, 2], 0, 2, []),  # unequal numbers on each
    ],
)
def test_ranks_with_the_same_share_are_on_different_hosts(group, rank, ranks_here, expected):
    assert same_share(group, rank, ranks_here) == expected
