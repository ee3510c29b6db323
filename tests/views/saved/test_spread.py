"""Many ranks' lines as their mean and a band."""

import math

from xla_nb.views.saved.figures import over_ranks


def test_the_mean_and_the_band_of_ranks_that_report_at_the_same_steps():
    one = over_ranks({0: [(0.0, 1.0), (1.0, 3.0)], 1: [(0.0, 3.0), (1.0, 7.0)]})
    assert one.mean == [(0.0, 2.0), (1.0, 5.0)]
    assert one.band == [(0.0, 1.0, 3.0), (1.0, 3.0, 7.0)]


def test_a_rank_counts_between_its_points_where_others_report():
    one = over_ranks({0: [(0.0, 0.0), (2.0, 4.0)], 1: [(1.0, 4.0)]})
    assert one.mean == [(0.0, 0.0), (1.0, 3.0), (2.0, 4.0)]
    assert one.band[1] == (1.0, 2.0, 4.0)


def test_what_is_not_finite_does_not_count():
    one = over_ranks({0: [(0.0, math.nan), (1.0, 2.0)], 1: [(0.0, 1.0), (1.0, math.inf)]})
    assert one.mean == [(0.0, 1.0), (1.0, 2.0)]
    assert over_ranks({0: [(0.0, math.nan)]}).mean == []


def test_the_points_of_a_mean_are_bounded_and_the_last_is_among_them():
    lines = {rank: [(float(x), 1.0) for x in range(rank, 5000, 7)] for rank in range(7)}
    one = over_ranks(lines)
    assert len(one.mean) <= 401
    assert one.mean[-1][0] == 4999.0
