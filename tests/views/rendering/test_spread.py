"""Many ranks' lines as their mean and a band."""

import math

from xla_nb.views.rendering import figures


def over_ranks(*about):
    """The mean and the band."""
    spread = figures.over_ranks(*about)
    return [one[:2] for one in spread], [(one.x, one.min, one.max) for one in spread]


def drawn(points):
    return [(x, y) for x, y in points if not math.isnan(y)]


def test_the_mean_and_the_band_of_ranks_that_report_at_the_same_steps():
    mean, band = over_ranks({0: [(0.0, 1.0), (1.0, 3.0)], 1: [(0.0, 3.0), (1.0, 7.0)]})
    assert mean == [(0.0, 2.0), (1.0, 5.0)]
    assert band == [(0.0, 1.0, 3.0), (1.0, 3.0, 7.0)]


def test_a_rank_counts_between_points_from_which_others_were_left_out():
    lines = {0: [(0.0, 0.0), (2.0, 4.0), (3.0, 4.0)], 1: [(1.0, 4.0)]}
    mean, band = over_ranks(lines, {0})
    assert drawn(mean) == [(0.0, 0.0), (1.0, 3.0), (2.0, 4.0), (3.0, 4.0)]
    assert (1.0, 2.0, 4.0) in band
    assert drawn(over_ranks(lines)[0]) == [(0.0, 0.0), (1.0, 4.0), (2.0, 4.0), (3.0, 4.0)]


def test_a_rank_that_reported_nothing_for_a_while_does_not_count_there():
    lines = {rank: [(float(x), 1.0 + rank) for x in range(60)] for rank in range(2)}
    del lines[1][20:40]
    _, band = over_ranks(lines, {1})
    assert [low == high for _, low, high in band if math.isfinite(low)] == (
        [False] * 20 + [True] * 20 + [False] * 20
    )


def test_what_is_not_finite_does_not_count():
    mean, _ = over_ranks({0: [(0.0, math.nan), (1.0, 2.0)], 1: [(0.0, 1.0), (1.0, math.inf)]})
    assert drawn(mean) == [(0.0, 1.0), (1.0, 2.0)]
    assert over_ranks({0: [(0.0, math.nan)]}) == ([], [])


def test_a_rank_does_not_count_between_points_that_are_not_finite():
    steps = [float(n) for n in range(5)]
    whole = {rank: [(x, 1.0 + rank) for x in steps] for rank in range(2)}
    mean, band = over_ranks({**whole, 1: [(x, math.nan if x == 2 else 2.0) for x in steps]})
    assert drawn(mean) == [(0.0, 1.5), (1.0, 1.5), (2.0, 1.0), (3.0, 1.5), (4.0, 1.5)]
    assert (2.0, 1.0, 1.0) in band
    mean, _ = over_ranks(
        {rank: [(x, math.nan if x == 2 else 1.0) for x in steps] for rank in range(2)}
    )
    assert [x for x, _ in drawn(mean)] == [0.0, 1.0, 3.0, 4.0]
    assert [x for x, y in mean if math.isnan(y)] == [2.0]  # no line leads across


def test_the_mean_of_fewer_ranks_is_apart():
    lines = {0: [(float(x), 1.0) for x in range(4)], 1: [(0.0, 3.0), (1.0, 3.0)]}
    mean, _ = over_ranks(lines)
    assert drawn(mean) == [(0.0, 2.0), (1.0, 2.0), (2.0, 1.0), (3.0, 1.0)]
    assert [x for x, y in mean if math.isnan(y)] == [1.5]


def test_the_mean_ends_before_a_lone_step_of_those_that_are_ahead():
    lines = {0: [(float(x), 9.0 * (x == 2)) for x in range(3)], 1: [(0.0, 0.0), (1.0, 0.0)]}
    assert over_ranks(lines) == ([(0.0, 0.0), (1.0, 0.0)], [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0)])
    far = {rank: [(float(x), 0.0) for x in range(3 + rank)] for rank in range(3)}
    assert over_ranks(far)[0] == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]
    assert over_ranks({0: [(0.0, 1.0)], 1: []})[0] == [(0.0, 1.0)]


def test_the_points_of_a_mean_are_bounded_and_the_last_is_among_them():
    lines = {rank: [(float(x), 1.0) for x in range(rank, 5000, 7)] for rank in range(7)}
    mean, _ = over_ranks(lines)
    assert len(drawn(mean)) <= 401
    assert mean[-1][0] == 4999.0


def test_a_step_has_the_number_of_ranks_that_its_mean_is_of():
    lines = {rank: [(float(x), 1.0) for x in range(3 + 2 * rank)] for rank in range(3)}
    counted = {one.x: one.ranks for one in figures.over_ranks(lines) if one.ranks}
    assert counted == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2, 5: 1, 6: 1}
